"""Where a PCI device hangs in its machine, and how far two of them are from each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class PathClass(IntEnum):
    """The way between two devices of a machine, the best first. In brackets what NCCL calls it."""

    SWITCH = 1  # below one root port, so through PCIe switches only (PIX, PXB)
    ROOT = 2  # through one root complex (PHB)
    NUMA = 3  # through the fabric of one NUMA node (PHB, NODE)
    ACROSS = 4  # from one NUMA node to another (SYS)
    UNKNOWN = 5  # the machine does not say, as virtual ones often do not

    @property
    def label(self) -> str:
        """For tables and messages."""
        return "?" if self is PathClass.UNKNOWN else self.name.lower()


@dataclass(frozen=True)
class Place:
    """Attributes:

    bus_id: PCI address, such as ``0000:3b:00.0``; empty for a device that is on no bus (soft RDMA).
    root: the root complex, such as ``pci0000:3a``; empty: unknown.
    bridges: PCI addresses of the ports above the device, the one next to the root complex first.
    numa: NUMA node; None: unknown.
    """

    bus_id: str = ""
    root: str = ""
    bridges: tuple[str, ...] = ()
    numa: int | None = None

    @property
    def card(self) -> str:
        """The bus address without its function: ports of one card share it. Empty: no card."""
        return self.bus_id.rpartition(".")[0]


def path_class(a: Place, b: Place) -> PathClass:
    """The class of the shortest way between two devices."""
    if a.bridges and b.bridges and a.bridges[0] == b.bridges[0]:
        return PathClass.SWITCH
    if a.root and a.root == b.root:
        return PathClass.ROOT
    if a.numa is None or b.numa is None:
        return PathClass.UNKNOWN
    return PathClass.NUMA if a.numa == b.numa else PathClass.ACROSS
