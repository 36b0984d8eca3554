"""What a machine has: hosts, rails, their networks and distances, as plain values; and how they are found.

Imports config and errors only. ``model`` and ``pairing`` are pure; ``discover`` reads the kernel (netlink, sysfs).
"""

from .cluster import Cluster, Host
from .model import LeftOut, RailInfo, RankInfo
from .pairing import pair_rails

__all__ = ["Cluster", "Host", "LeftOut", "RailInfo", "RankInfo", "pair_rails"]
