"""Which interfaces are unsuitable as rails unless they are asked for by name, and why."""

from __future__ import annotations

from fnmatch import fnmatchcase

from .interface import Interface

_CONTAINER_NAMES = (
    "docker*",
    "br-*",
    "veth*",
    "virbr*",
    "vnet*",
    "cni*",
    "flannel*",
    "cali*",
    "cilium*",
    "lxc*",
    "lxdbr*",
    "podman*",
    "weave*",
    "kube-*",
    "nodelocaldns*",
)
_KINDS = {
    "bridge": "a bridge",
    "tun": "a tunnel",
    "wireguard": "a tunnel",
    "sit": "a tunnel",
    "gre": "a tunnel",
    "ip6gre": "a tunnel",
    "ipip": "a tunnel",
    "ip6tnl": "a tunnel",
    "vxlan": "a tunnel",
    "geneve": "a tunnel",
    "ifb": "a pseudo-device",
    "dummy": "a pseudo-device",
    "vrf": "a pseudo-device",
    "nlmon": "a pseudo-device",
    "vcan": "a pseudo-device",
}


def unsuitable(interface: Interface) -> str:
    """Why an interface is not taken as a rail by itself; empty when it is suitable."""
    if interface.loopback:
        return "loopback"
    if any(fnmatchcase(interface.name, pattern) for pattern in _CONTAINER_NAMES):
        return "its name is one of containers or virtual machines"
    if interface.is_bridge:
        return "a bridge"
    if interface.kind in _KINDS:
        return _KINDS[interface.kind]
    if interface.master:
        return f"part of {interface.master}"
    return unusable(interface) or ("" if _global_addresses(interface) else "link-local addresses only")


def unusable(interface: Interface) -> str:
    """Why nothing can be sent through an interface now; empty when it can."""
    if not interface.addresses:
        return "no address" if interface.up else "down, no address"
    if not interface.up:
        return "down"
    if not interface.carrier:
        return "no carrier"
    if not any(address.usable for address in interface.addresses):
        return "no usable address (tentative, deprecated or duplicate)"
    return ""


def _global_addresses(interface: Interface) -> bool:
    return any(address.usable and not address.is_link_local for address in interface.addresses)
