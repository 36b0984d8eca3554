"""A simulator of clusters of any size: the library's own plans on a flow-level model, and what they mean for a job.

``fair`` shares links, ``messages`` reads plans, ``fluid`` moves bytes, ``collective`` times one all-reduce; ``training``,
``serving`` and ``montecarlo`` build on it; ``scenario`` reads the TOML files. docs/simulator.md states the assumptions.
Nothing outside this package imports it. It reads plans and never writes one.
"""
