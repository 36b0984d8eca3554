"""Which RDMA ports can serve as rails here, by which GID, and why the others cannot. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .interface import Interface
from .ports import ACTIVE, ETHERNET, INFINIBAND, ROCE_V2, Gid, RdmaDevice, RdmaPort


@dataclass(frozen=True)
class PortChoice:
    """``reason`` says why the port is left out; empty: it can be used, Ethernet ports by ``gid`` through ``netdev``."""

    device: str
    port: int
    netdev: str = ""
    gid: Gid | None = None
    reason: str = ""


def judge_ports(devices: Sequence[RdmaDevice], interfaces: Sequence[Interface]) -> tuple[PortChoice, ...]:
    """Every port of every device. ``interfaces``: those of this network namespace."""
    known = {interface.name: interface for interface in interfaces}
    return tuple(_judge(device, port, known) for device in devices for port in device.ports)


def best_gid(port: RdmaPort, netdev: str, addresses: Sequence[str], own_card: bool = False) -> Gid | None:
    """The GID to use through an interface with these addresses, the preferred ones first: RoCE v2, which can be routed,
    before v1; then in the order of the addresses; link-local ones last.

    Only GIDs of an address of the interface: in a container another interface of that name may show through.
    ``own_card``: it is certain that the interface is the port's, so its link-local GIDs, which stand for its MAC, will
    do. ``netdev`` empty: any.
    """
    place = {address: number for number, address in enumerate(addresses)}

    def rank(gid: Gid) -> tuple[bool, bool, int, int]:
        return gid.type != ROCE_V2, gid.is_link_local, place.get(gid.ipv4 or gid.value, len(place)), gid.index

    own = [gid for gid in port.gids if netdev in ("", gid.netdev)]
    valid = [gid for gid in own if (gid.ipv4 or gid.value) in place or (own_card and gid.is_link_local)]
    return min(valid, key=rank, default=None)


def may_be_of(device: RdmaDevice, pci_path: str | None) -> bool:
    """Whether an interface at this PCI address can be the device's: bonds, VLANs and soft devices have no address."""
    return not device.place.bus_id or not pci_path or pci_path == device.place.bus_id


def is_of(device: RdmaDevice, pci_path: str | None) -> bool:
    """Whether it certainly is."""
    return bool(device.place.bus_id) and pci_path == device.place.bus_id


def _judge(device: RdmaDevice, port: RdmaPort, known: dict[str, Interface]) -> PortChoice:
    choice = PortChoice(device.name, port.number)

    def out(reason: str, netdev: str = "") -> PortChoice:
        return PortChoice(device.name, port.number, netdev, reason=reason)

    if port.state != ACTIVE:
        return out(f"the port is {port.state or 'in an unknown state'}", next(iter(port.netdevs), ""))
    if port.link_layer == INFINIBAND:
        return choice if port.lid else out("no LID: no subnet manager has seen the port")
    if port.link_layer != ETHERNET:
        return out(f"link layer {port.link_layer or 'unknown'}")
    if not port.netdevs:
        return out("no GID that belongs to an interface")
    for name in port.netdevs:
        interface = known.get(name)
        if interface is None or not may_be_of(device, interface.pci_path):
            continue
        usable = sorted((a for a in interface.addresses if a.usable), key=lambda a: (a.is_link_local, a.family))
        gid = best_gid(port, name, [a.text for a in usable], own_card=is_of(device, interface.pci_path))
        if gid is None:
            return out(f"no GID for an address of {name}", name)
        return PortChoice(device.name, port.number, name, gid)
    return out(f"its interface {port.netdevs[0]} is not in this network namespace", port.netdevs[0])
