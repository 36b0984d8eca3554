"""``r2ccl-perf``: times the collectives and checks every element, with the flags and columns of nccl-tests.

``flags`` what to run, ``sizes`` which message sizes, ``ops`` one record per collective, ``data`` inputs and
expected results, ``launch`` who the ranks are, ``run`` the measurement, ``report`` table and JSON lines.
Uses the public API only, as any user's program would.
"""
