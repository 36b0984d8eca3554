"""RDMA devices read from sysfs: works without any library, in containers, and on recorded trees."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from .pci import place_of, read_number, read_text, slot_mbps
from .ports import ETHERNET, IB, ROCE_V1, ROCE_V2, Gid, RdmaDevice, RdmaPort

_RATE = re.compile(r"([0-9.]+) Gb/sec")
_LARGEST_TABLE = 1 << 16
_LONG_RUN = 32
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def read_devices(root: Path) -> tuple[RdmaDevice, ...]:
    """All devices under ``root`` (``/sys``), by name."""
    folder = root / "class" / "infiniband"
    if not folder.is_dir():
        return ()
    return tuple(_device(root, entry) for entry in sorted(folder.iterdir()))


def read_devices_of(root: Path, netdev: str) -> tuple[RdmaDevice, ...]:
    """Those that may serve an interface: the device on its card or above it, where sysfs shows one, else all.

    (A bond or VLAN has none of its own: its GIDs are in the tables of the devices below it.)
    """
    folder = root / "class" / "infiniband"
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    # Soft devices name the interface that they were put upon.
    own = [e for e in entries if (e / "device" / "net" / netdev).exists() or read_text(e / "parent") == netdev]
    return tuple(_device(root, entry) for entry in own or entries)


def _device(root: Path, folder: Path) -> RdmaDevice:
    ports = folder / "ports"
    numbers = sorted(int(p.name) for p in ports.iterdir() if p.name.isdigit()) if ports.is_dir() else []
    device = folder / "device"
    found = tuple(_port(ports / str(number), number) for number in numbers)
    return RdmaDevice(folder.name, place_of(root, device), found, slot_mbps(device))


def _port(folder: Path, number: int) -> RdmaPort:
    layer = read_text(folder / "link_layer") or ""
    rate = _RATE.match(read_text(folder / "rate") or "")
    return RdmaPort(
        number=number,
        link_layer=layer,
        state=(read_text(folder / "state") or "").partition(": ")[2],
        lid=read_number(folder / "lid") or 0,
        mbps=int(float(rate[1]) * 1000) if rate else None,
        gids=_gids(folder, layer),
    )


def _gids(folder: Path, layer: str) -> tuple[Gid, ...]:
    """The table has hundreds of entries, most of them empty. The kernel fills the lowest free one, so that a long run
    of empty ones is the end."""
    found = []
    empty = 0
    for index in range(_LARGEST_TABLE):
        text = read_text(folder / "gids" / str(index))
        if text is None or empty == _LONG_RUN:
            break
        kind = "" if text == _NO_GID else read_text(folder / "gid_attrs" / "types" / str(index))
        if not kind:  # the kernel refuses to tell the type of an empty entry
            empty += 1
            continue
        empty = 0
        found.append(Gid(index, str(ipaddress.IPv6Address(text)), _type(kind, layer), _netdev(folder, index)))
    return tuple(found)


def _type(kind: str, layer: str) -> str:
    if "v2" in kind:
        return ROCE_V2
    return ROCE_V1 if layer == ETHERNET else IB


def _netdev(folder: Path, index: int) -> str:
    return read_text(folder / "gid_attrs" / "ndevs" / str(index)) or ""
