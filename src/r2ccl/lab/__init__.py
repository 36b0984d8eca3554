"""An emulated multi-NIC cluster on one Linux machine (network namespaces), with faults; the command ``r2ccl-lab``.

It runs any program and knows nothing of the communicator: nothing here may import it or the native core.
"""

from .fabric import Fabric, RailCounters
from .faults import Drops
from .kinds import KINDS, MGMT
from .launch import RankResult, Run, RunResult, run_ranks_on
from .namespace import LinkCounters
from .requirements import LabError, available
from .schedule import ScheduledFault, parse_fault
from .script import FiredFault, Sample

__all__ = [
    "KINDS",
    "MGMT",
    "Drops",
    "Fabric",
    "FiredFault",
    "LabError",
    "LinkCounters",
    "RailCounters",
    "RankResult",
    "Run",
    "RunResult",
    "Sample",
    "ScheduledFault",
    "available",
    "parse_fault",
    "run_ranks_on",
]
