"""RDMA devices asked from libibverbs by pyverbs, where it can be imported; the same answer as sysfs'.

Place and slot come from sysfs in both: verbs do not know them.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from typing import Any

from .pci import place_of, slot_mbps
from .ports import ACTIVE, ETHERNET, IB, INFINIBAND, LANE_MBPS, LANES, ROCE_V1, ROCE_V2, Gid, RdmaDevice, RdmaPort

_TYPES = {0: IB, 1: ROCE_V1, 2: ROCE_V2}  # enum ibv_gid_type
_LAYERS = {1: INFINIBAND, 2: ETHERNET}
_STATES = {1: "DOWN", 2: "INIT", 3: "ARMED", 4: ACTIVE, 5: "ACTIVE_DEFER"}


def is_available() -> bool:
    """Whether pyverbs can be imported and libibverbs loaded."""
    try:
        import pyverbs.device  # noqa: F401
    except ImportError:
        return False
    return True


def read_devices(root: Path) -> tuple[RdmaDevice, ...]:
    """All devices that libibverbs can open, by name. ``root``: sysfs, for what verbs do not tell."""
    from pyverbs import device

    names = sorted(entry.name.decode() for entry in device.get_device_list())
    return tuple(_device(root, name, device.Context(name=name)) for name in names)


def _device(root: Path, name: str, context: Any) -> RdmaDevice:
    with context:
        gids = context.query_gid_table(_entries(context))
        ports = tuple(_port(context, number, gids) for number in range(1, context.query_device().phys_port_cnt + 1))
    folder = root / "class" / "infiniband" / name / "device"
    return RdmaDevice(name, place_of(root, folder), ports, slot_mbps(folder))


def _entries(context: Any) -> int:
    count = context.query_device().phys_port_cnt
    return max(1, sum(int(context.query_port(number).gid_tbl_len) for number in range(1, count + 1)))


def _port(context: Any, number: int, entries: list[Any]) -> RdmaPort:
    port = context.query_port(number)
    lane, lanes = LANE_MBPS.get(port.active_speed), LANES.get(port.active_width)
    return RdmaPort(
        number=number,
        link_layer=_LAYERS.get(port.link_layer, ""),
        state=_STATES.get(port.state, ""),
        lid=port.lid,
        mbps=lane * lanes if lane and lanes else None,
        gids=tuple(_gid(entry) for entry in entries if entry.port_num == number),
    )


def _gid(entry: Any) -> Gid:
    value = str(ipaddress.IPv6Address(entry.gid_str()))
    return Gid(entry.gid_index, value, _TYPES.get(entry.gid_type, ""), _name(entry.ndev_ifindex))


def _name(ifindex: int) -> str:
    try:
        return socket.if_indextoname(ifindex) if ifindex else ""
    except OSError:  # of another network namespace
        return ""
