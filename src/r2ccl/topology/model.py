"""Rails and ranks as plain values, and their form on the wire: compact JSON that is checked field by field."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import BootstrapError

MAX_RAILS = 64
MAX_LEFT_OUT = 64
MAX_TEXT = 128
UP = "up"
DOWN = "down"
INFINIBAND = "InfiniBand"  # link layers of RDMA ports, as sysfs says it
ETHERNET = "Ethernet"


@dataclass(frozen=True)
class RailInfo:
    """One local way out: an address of a network interface.

    Attributes:
        name: interface name, or the address itself for an emulated rail on loopback.
        index: position among this rank's rails, 0-based.
        address: numeric; link-local IPv6 ones carry ``%scope``, which means something on their own machine only.
        prefix_len: bits of the network part of ``address``.
        family: 4 or 6.
        fabric: the network as text (``10.0.1.0/24``); rails of equal fabric can reach each other.
            ``loopback/K`` for the K-th rail on loopback.
        others: further ``address/prefix_len`` of the same interface, for peers of the other family.
        speed_mbps: as the driver tells it; None when unknown or meaningless (veth, virtio).
        numa: NUMA node of the device; None when unknown.
        pci_path: PCI address such as ``0000:3b:00.0``; None for virtual devices.
        ifindex: of the interface; 1 for loopback, by kernel convention.
        routed: a gateway leads further, so that other networks may be reachable through this rail.
        state: ``up``, or ``down`` for a rail that was chosen by name but has no link now.
        rdma_device: the RDMA device behind it, with ``rdma_port``, ``rdma_gid`` (index in the port's table; -1: named by
            local identifiers) and ``rdma_layer``; empty: none, or not to be used.
        reach: what part of the NIC's speed the rank's GPU gets through it, by its distance; 1: no GPU, or next to it.
    """

    name: str
    index: int
    address: str
    prefix_len: int
    family: int
    fabric: str
    others: tuple[str, ...] = ()
    speed_mbps: int | None = None
    numa: int | None = None
    pci_path: str | None = None
    ifindex: int = 0
    routed: bool = False
    state: str = UP
    rdma_device: str = ""
    rdma_port: int = 0
    rdma_gid: int = -1
    rdma_layer: str = ""
    reach: float = 1.0

    @property
    def is_loopback(self) -> bool:
        """Whether it is an emulated rail."""
        return self.fabric.startswith("loopback/")

    @property
    def mbps(self) -> float:
        """What the rank can move through it, as a weight among rails; a rail of unknown speed counts as 1 Mb/s."""
        return (self.speed_mbps or 1) * self.reach

    @property
    def networks(self) -> dict[str, str]:
        """Fabric -> own address in it; the primary one first."""
        known = {self.fabric: self.address}
        for text in self.others:
            address, _, bits = text.rpartition("/")
            known.setdefault(fabric_of(address, int(bits)), address)
        return known


@dataclass(frozen=True)
class LeftOut:
    """A candidate that is not a rail, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class RankInfo:
    """What one rank tells all others about itself.

    Attributes:
        rank: its number.
        host_id: ranks of equal ``host_id`` share memory (boot, network namespace, /dev/shm; or ``Config.host_id``).
        netns: names the network stack itself, whatever ``Config.host_id`` says: equal means addresses are local.
        pid: process id, in its own pid namespace. For messages.
        label: host name. For messages only, never used to find anything.
        rails: by index.
        left_out: candidates that are no rails, for messages.
    """

    rank: int
    host_id: str
    netns: str
    pid: int
    label: str
    rails: tuple[RailInfo, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def to_bytes(self) -> bytes:
        """Compact JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, rank: int) -> RankInfo:
        """The value that rank ``rank`` sent. ``BootstrapError`` names the rank and the field that is wrong."""
        try:
            raw = json.loads(data)
            values = _checked(raw, _RANK_FIELDS, "")
            values["rails"] = tuple(_rail(i, item) for i, item in enumerate(_items(raw, "rails", MAX_RAILS)))
            values["left_out"] = tuple(
                LeftOut(**_checked(item, {"name": _text, "reason": _text}, "left_out."))
                for item in _items(raw, "left_out", MAX_LEFT_OUT)
            )
            if values["rank"] != rank:
                raise ValueError(f"rank: {values['rank']}, expected {rank}")
            return cls(**values)
        except (ValueError, RecursionError) as error:
            raise BootstrapError(f"rank {rank} sent a description of itself that is malformed: {error}") from None

    @property
    def host_name(self) -> str:
        """``node7 (rank 12)``, for messages."""
        return f"{self.label or self.host_id} (rank {self.rank})"


def fabric_of(address: str, prefix_len: int) -> str:
    """The network of an address as text, the scope of link-local addresses left out."""
    return str(ipaddress.ip_network((address.partition("%")[0], prefix_len), strict=False))


Check = Callable[[Any], Any]


def _rail(index: int, item: Any) -> RailInfo:
    values = _checked(item, _RAIL_FIELDS, f"rails[{index}].")
    others = _items(item, "others", MAX_RAILS)
    for text in others:
        address, _, bits = _text(text).rpartition("/")
        fabric_of(_address(address), int(bits))
    rail = RailInfo(**values, others=tuple(others))
    if rail.index != index:
        raise ValueError(f"rails[{index}].index: {rail.index}")
    if rail.family != ipaddress.ip_address(rail.address.partition("%")[0]).version:
        raise ValueError(f"rails[{index}].family: {rail.family} for {rail.address}")
    fabric_of(rail.address, rail.prefix_len)
    return rail


def _checked(item: Any, checks: dict[str, Check], where: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ValueError(f"{where or 'it'}: not an object")
    values = {}
    for name, check in checks.items():
        if name not in item:
            raise ValueError(f"{where}{name}: missing")
        values[name] = _check_one(where + name, check, item[name])
    return values


def _check_one(where: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _items(item: Any, name: str, limit: int) -> list[Any]:
    items = item.get(name)
    if not isinstance(items, list) or len(items) > limit:
        raise ValueError(f"{name}: not a list of at most {limit}")
    return items


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise ValueError(f"not a printable text of at most {MAX_TEXT} characters: {str(value)[:40]!r}")
    return value


def _address(value: Any) -> str:
    text = _text(value)
    ipaddress.ip_address(text.partition("%")[0])
    return text


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{str(value)[:40]}: not a whole number from {low} to {high}")
        return value

    return check


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{str(value)[:40]}: not true or false")
    return value


def _state(value: Any) -> str:
    if value not in (UP, DOWN):
        raise ValueError(f"{str(value)[:40]!r}: not {UP} or {DOWN}")
    return str(value)


def _layer(value: Any) -> str:
    if value not in ("", INFINIBAND, ETHERNET):
        raise ValueError(f"{str(value)[:40]!r}: not {INFINIBAND} or {ETHERNET}")
    return str(value)


def _fraction(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise ValueError(f"{str(value)[:40]}: not a number above 0, 1 at most")
    return float(value)


_BIG = (1 << 31) - 1
_RAIL_FIELDS: dict[str, Check] = {
    "name": _text,
    "index": _integer(0, MAX_RAILS - 1),
    "address": _address,
    "prefix_len": _integer(0, 128),
    "family": _integer(4, 6),
    "fabric": _text,
    "speed_mbps": _optional(_integer(1, _BIG)),
    "numa": _optional(_integer(0, _BIG)),
    "pci_path": _optional(_text),
    "ifindex": _integer(0, _BIG),
    "routed": _boolean,
    "state": _state,
    "rdma_device": _text,
    "rdma_port": _integer(0, 255),
    "rdma_gid": _integer(-1, 255),
    "rdma_layer": _layer,
    "reach": _fraction,
}
_RANK_FIELDS: dict[str, Check] = {
    "rank": _integer(0, _BIG),
    "host_id": _text,
    "netns": _text,
    "pid": _integer(0, _BIG),
    "label": _text,
}
assert {f.name for f in fields(RailInfo)} == {*_RAIL_FIELDS, "others"}
