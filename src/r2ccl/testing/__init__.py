"""For tests of r2ccl and of programs that use it: local ranks with a deadline, and faults injected on cue.

``run_ranks`` runs a function on n processes of this machine; ``RankGroup`` does the same for tests that kill or
freeze a rank. ``FaultScript`` writes ``Config.fault_script``. Nothing here is imported by the library itself.
"""

from .faults import KINDS, Fault, FaultScript
from .ranks import RankError, RankGroup, RankTimeout, run_ranks

__all__ = ["KINDS", "Fault", "FaultScript", "RankError", "RankGroup", "RankTimeout", "run_ranks"]
