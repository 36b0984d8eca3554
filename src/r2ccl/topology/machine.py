"""GPUs and RDMA devices of a machine, and the ways from each GPU to the network in the order of failover."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import ports_pyverbs, ports_sysfs
from .interface import SYSFS
from .model import RailInfo, RankInfo
from .pci import Gpu, find_gpus, place_of
from .place import PathClass, path_class
from .ports import ACTIVE, RdmaDevice

PortKey = tuple[str, int]  # device, port

# What a GPU gets through a NIC at each distance, of the NIC's speed. Field reports: 400 Gb/s from a NIC below the same
# switch, 70 from one across the machine; what lies between depends on the processor and is halved. These are where the
# shares begin: a link pulls its next chunk when it has room, so one that does better gets more.
REACH = {
    PathClass.SWITCH: 1.0,
    PathClass.ROOT: 0.5,
    PathClass.NUMA: 0.5,
    PathClass.ACROSS: 0.175,
    PathClass.UNKNOWN: 0.5,
}


@dataclass(frozen=True)
class Machine:
    """What hangs in it. GPUs by index, devices by name."""

    gpus: tuple[Gpu, ...]
    devices: tuple[RdmaDevice, ...]


@dataclass(frozen=True)
class Way:
    """From a GPU out of the machine. ``mbps``: what the port can carry, its slot considered; None: unknown."""

    device: str
    port: int
    path: PathClass
    mbps: float | None = None

    @property
    def key(self) -> PortKey:
        """Names the port."""
        return self.device, self.port


def read_machine(root: Path = SYSFS) -> Machine:
    """Of this machine, or of a recorded tree. Devices by pyverbs where it can be imported, else from sysfs."""
    live = root == SYSFS and ports_pyverbs.is_available()
    devices = ports_pyverbs.read_devices(root) if live else ports_sysfs.read_devices(root)
    return Machine(find_gpus(root), devices)


def ways_from(gpu: Gpu, devices: Sequence[RdmaDevice], failed: Collection[PortKey] = ()) -> tuple[Way, ...]:
    """Every active port but the ``failed`` ones, in the order in which a GPU should use them. Pure.

    The nearer class first. Within a class one port of each card before the second ones, since a card that dies takes
    all of its ports along (a failed port counts, so its card's other ports come late); then the faster first. What is
    equal begins with the GPU's own number, so that neighbours that see the same NICs do not all take the same one.
    """
    rate = port_rates(devices)
    equals: dict[tuple[PathClass, int, float], list[Way]] = {}
    seen: dict[str, int] = {}
    for device in devices:
        for port in device.ports:
            if port.state != ACTIVE:
                continue
            card = device.place.card or device.name
            turn = seen[card] = seen.get(card, -1) + 1
            way = Way(device.name, port.number, path_class(gpu.place, device.place), rate[device.name, port.number])
            if way.key not in failed:
                equals.setdefault((way.path, turn, -(way.mbps or 0.0)), []).append(way)
    ordered: list[Way] = []
    for _, ways in sorted(equals.items()):
        start = gpu.index % len(ways)
        ordered += ways[start:] + ways[:start]
    return tuple(ordered)


def weights(ways: Sequence[Way]) -> tuple[float, ...]:
    """How traffic should divide over the ways, in sum 1: by speed and distance, never equally over unequal paths.

    Ports of unknown speed count as the slowest of the known.
    """
    known = [way.mbps for way in ways if way.mbps is not None]
    least = min(known, default=1.0)
    raw = [(least if way.mbps is None else way.mbps) * REACH[way.path] for way in ways]
    total = sum(raw)
    return tuple(value / total for value in raw) if total > 0 else tuple(0.0 for _ in raw)


def port_rates(devices: Sequence[RdmaDevice]) -> dict[PortKey, float | None]:
    """What every port can carry, in Mb/s: the slot of a card is shared by its active ports.

    Virtual functions tell of no slot; they share their card's port anyway.
    """
    wanted: dict[str, float] = {}
    for device in devices:
        if device.slot_mbps:
            card = device.place.card or device.name
            wanted[card] = wanted.get(card, 0.0) + sum(port.mbps or 0 for port in device.ports if port.state == ACTIVE)
    rates: dict[PortKey, float | None] = {}
    for device in devices:
        total = wanted.get(device.place.card or device.name, 0.0)
        squeeze = min(1.0, device.slot_mbps / total) if device.slot_mbps and total else 1.0
        for port in device.ports:
            rates[device.name, port.number] = None if port.mbps is None else port.mbps * squeeze
    return rates


def seen_from(info: RankInfo, gpu_bus_id: str, root: Path = SYSFS) -> RankInfo:
    """The rank, whose GPU has that PCI address, with how much of each rail its GPU can use."""
    gpu = place_of(root, root / "bus" / "pci" / "devices" / gpu_bus_id.lower())

    def reach(name: str, device: str) -> float:
        nic = root / "class" / ("infiniband" if device else "net") / (device or name) / "device"
        return REACH[path_class(gpu, place_of(root, nic))]

    return replace(info, rails=tuple(replace(r, reach=reach(r.name, r.rdma_device)) for r in info.rails))


def goes_direct(rail: RailInfo, wanted: str) -> bool:
    """Whether NICs write what arrives over the rail to the memory of the rank's GPU; wanted: ``Config.gpu_direct``."""
    return wanted == "on" or (wanted == "auto" and rail.reach == REACH[PathClass.SWITCH])
