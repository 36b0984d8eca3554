"""Which RDMA ports can serve as rails here, by which GID, and why the others cannot. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .interface import Interface
from .ports import ACTIVE, ETHERNET, INFINIBAND, ROCE_V1, ROCE_V2, Gid, RdmaDevice, RdmaPort


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


def best_gid(port: RdmaPort, interface: Interface, own_card: bool = False) -> Gid | None:
    """The GID to use through an interface: RoCE v2 of an IPv4 address, then of an IPv6 one, then link-local; then v1.

    Only GIDs that the interface has an address for: in a container another interface of that name may show through.
    ``own_card``: it is certain that the interface is the port's, so its link-local GIDs, which stand for its MAC, will do.
    """
    addresses = {address.text for address in interface.addresses if address.usable}
    own = [gid for gid in port.gids if gid.netdev == interface.name]
    valid = [gid for gid in own if (gid.ipv4 or gid.value) in addresses or (own_card and gid.is_link_local)]
    return min(valid, key=_rank, default=None)


def _rank(gid: Gid) -> tuple[bool, bool, bool, int]:
    return gid.type != ROCE_V2, gid.is_link_local, not gid.ipv4, gid.index


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
        bus_id = device.place.bus_id
        if interface is None or (bus_id and interface.pci_path and interface.pci_path != bus_id):
            continue
        gid = best_gid(port, interface, own_card=bool(bus_id) and interface.pci_path == bus_id)
        if gid is None:
            return out(f"no GID for an address of {name}", name)
        if gid.type == ROCE_V1:
            return out("RoCE v1 only: it passes no router and is not used", name)
        return PortChoice(device.name, port.number, name, gid)
    return out(f"its interface {port.netdevs[0]} is not in this network namespace", port.netdevs[0])
