"""An interface as discovery sees it: what netlink and sysfs tell, joined."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .netlink import Address, Link, read_links
from .sysfs import read_device

SYSFS = Path("/sys")


@dataclass(frozen=True)
class Interface:
    """A candidate for a rail. ``master`` is the name of the bridge or bond that it is part of; empty: none."""

    name: str
    ifindex: int
    up: bool
    carrier: bool
    loopback: bool
    kind: str = ""
    master: str = ""
    is_bridge: bool = False
    routed: bool = False
    addresses: tuple[Address, ...] = ()
    speed_mbps: int | None = None
    numa: int | None = None
    pci_path: str | None = None

    @property
    def is_down(self) -> bool:
        """Whether it is switched off or has no carrier."""
        return not (self.up and self.carrier)


def find_interfaces(sysfs: Path = SYSFS, links: list[Link] | None = None) -> list[Interface]:
    """All interfaces of this network namespace, or those of recorded ``links``, by index."""
    links = read_links() if links is None else links
    names = {link.ifindex: link.name for link in links}
    found = []
    for link in links:
        device = read_device(sysfs, link.name, link.ifindex, link.kind)
        found.append(
            Interface(
                link.name,
                link.ifindex,
                link.up,
                link.carrier,
                link.loopback,
                link.kind,
                names.get(link.master, f"interface {link.master}") if link.master else "",
                device.is_bridge or link.kind == "bridge",
                link.routed,
                tuple(link.addresses),
                device.speed_mbps,
                device.numa,
                device.pci_path,
            )
        )
    return found
