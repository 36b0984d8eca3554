"""RDMA devices and their ports as plain values, whoever read them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from .model import ETHERNET as ETHERNET
from .model import INFINIBAND as INFINIBAND
from .place import Place

ACTIVE = "ACTIVE"
IB, ROCE_V1, ROCE_V2 = "IB", "RoCE v1", "RoCE v2"
# Port speed codes of the InfiniBand specification (PortInfo) and of its annexes -> Mb/s of one lane.
LANE_MBPS = {1: 2_500, 2: 5_000, 4: 10_000, 8: 10_000, 16: 14_000, 32: 25_000, 64: 50_000, 128: 100_000, 256: 200_000}
LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}


@dataclass(frozen=True)
class Gid:
    """An entry of a port's table. ``netdev`` is the interface it belongs to; empty for InfiniBand ports."""

    index: int
    value: str
    """As an IPv6 address, in the short form."""
    type: str
    netdev: str = ""

    @property
    def ipv4(self) -> str:
        """The address that it stands for, if it is a mapped one; else empty."""
        mapped = ipaddress.IPv6Address(self.value).ipv4_mapped
        return str(mapped) if mapped else ""

    @property
    def is_link_local(self) -> bool:
        """Reaches its own subnet only."""
        return ipaddress.IPv6Address(self.value).is_link_local


@dataclass(frozen=True)
class RdmaPort:
    """``mbps`` is None when unknown; ``lid`` 0 where there is none (Ethernet)."""

    number: int
    link_layer: str
    state: str
    lid: int = 0
    mbps: int | None = None
    gids: tuple[Gid, ...] = ()

    @property
    def netdevs(self) -> tuple[str, ...]:
        """Interfaces that its GIDs belong to."""
        return tuple(dict.fromkeys(gid.netdev for gid in self.gids if gid.netdev))


@dataclass(frozen=True)
class RdmaDevice:
    """``slot_mbps``: what its PCIe slot can carry, one direction; None when unknown."""

    name: str
    place: Place
    ports: tuple[RdmaPort, ...] = ()
    slot_mbps: int | None = None
