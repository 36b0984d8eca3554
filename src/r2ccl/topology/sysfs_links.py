"""Interfaces of a recorded tree, where no kernel can be asked: names and states from sysfs, addresses from RoCE GIDs.

What sysfs does not hold stays unknown: prefixes (every address is a network of its own), routes, other addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .netlink import Address, Link
from .pci import place_of, read_number, read_text
from .place import Place
from .ports import ETHERNET, RdmaDevice

_IFF_UP = 0x1
_TYPE_LOOPBACK = 772  # ARPHRD_LOOPBACK


def links_of_tree(root: Path, devices: Sequence[RdmaDevice]) -> list[Link]:
    """As ``read_links`` would have listed them, by index."""
    folder = root / "class" / "net"
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    links = [_link(entry, _addresses(entry.name, place_of(root, entry / "device"), devices)) for entry in entries]
    return sorted(links, key=lambda link: link.ifindex)


def _addresses(name: str, place: Place, devices: Sequence[RdmaDevice]) -> list[Address]:
    """What the GIDs of the interface's own card tell; a name alone may be that of another namespace's interface."""
    found: dict[str, Address] = {}
    for device in devices:
        if device.place.bus_id != place.bus_id:
            continue
        for gid in (gid for port in device.ports if port.link_layer == ETHERNET for gid in port.gids):
            if gid.netdev == name:
                text, bits = (gid.ipv4, 32) if gid.ipv4 else (gid.value, 64 if gid.is_link_local else 128)
                found.setdefault(text, Address(text, bits))
    return list(found.values())


def _link(folder: Path, addresses: list[Address]) -> Link:
    up = bool((read_number(folder / "flags") or 0) & _IFF_UP)
    carrier = read_number(folder / "carrier")
    master = folder / "master"
    return Link(
        name=folder.name,
        ifindex=read_number(folder / "ifindex") or 0,
        up=up,
        carrier=up if carrier is None else bool(carrier),
        loopback=read_number(folder / "type") == _TYPE_LOOPBACK,
        kind=_kind(folder),
        master=read_number(master / "ifindex") or 0 if master.exists() else 0,
        addresses=addresses,
    )


def _kind(folder: Path) -> str:
    """The kernel's kind of interface, as far as ``uevent`` tells it (bridge, bond, vlan, …)."""
    for line in (read_text(folder / "uevent") or "").splitlines():
        key, _, value = line.partition("=")
        if key == "DEVTYPE":
            return value
    return ""
