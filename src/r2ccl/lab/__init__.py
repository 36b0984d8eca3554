"""An emulated multi-NIC cluster on one Linux machine (network namespaces), with faults; the command ``r2ccl-lab``.

It runs any program and knows nothing of the communicator: nothing here may import it or the native core.
"""

from .fabric import Fabric, RailCounters
from .faults import Drops
from .kinds import KINDS, MGMT
from .namespace import LinkCounters
from .requirements import LabError, available

__all__ = ["KINDS", "MGMT", "Drops", "Fabric", "LabError", "LinkCounters", "RailCounters", "available"]
