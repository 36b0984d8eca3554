"""Interfaces, addresses and gateways of this network namespace, asked from the kernel by rtnetlink.

The kernel's answer is for the namespace of the calling thread, while a mounted sysfs may show another one.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_LINK = struct.Struct("=BxHiII")  # family, device type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix, flags, scope, index
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, dst_len, src_len, tos, table, protocol, scope, type, flags

_NEWLINK, _GETLINK = 16, 18
_NEWADDR, _GETADDR = 20, 22
_NEWROUTE, _GETROUTE = 24, 26
_ERROR, _DONE = 2, 3
_REQUEST_DUMP = 0x001 | 0x300

_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_CARRIER = 1, 3, 10, 18, 33
_IFLA_INFO_KIND = 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFA_F_DADFAILED, _IFA_F_DEPRECATED, _IFA_F_TENTATIVE = 0x08, 0x20, 0x40
_RTA_OIF, _RTA_GATEWAY, _RTA_MULTIPATH, _RTA_VIA = 4, 5, 9, 18
_NEXT_HOP = struct.Struct("=HBBi")  # length, flags, hops, index
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_TYPE_MASK = 0x3FFF
_RECV_BYTES = 1 << 16


@dataclass(frozen=True)
class Address:
    """One address of an interface; ``usable`` unless it is tentative, deprecated or a duplicate."""

    text: str
    prefix_len: int
    usable: bool = True

    @property
    def family(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.text else 4

    @property
    def is_link_local(self) -> bool:
        """169.254/16 or fe80::/10."""
        return ipaddress.ip_address(self.text).is_link_local


@dataclass
class Link:
    """One interface as the kernel lists it; ``kind`` is empty for devices with a driver of their own."""

    name: str
    ifindex: int
    up: bool
    carrier: bool
    loopback: bool
    kind: str = ""
    master: int = 0
    mac: str = ""
    routed: bool = False
    addresses: list[Address] = field(default_factory=list)


def read_links() -> list[Link]:
    """All interfaces of this thread's network namespace, by index. ``OSError`` when the kernel refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as sock:
        sock.bind((0, 0))
        sock.settimeout(5.0)
        links = {link.ifindex: link for link in map(parse_link, _dump(sock, _GETLINK, _NEWLINK, _LINK.size))}
        for index, address in map(parse_address, _dump(sock, _GETADDR, _NEWADDR, _ADDRESS.size)):
            if index in links and address is not None:
                links[index].addresses.append(address)
        for body in _dump(sock, _GETROUTE, _NEWROUTE, _ROUTE.size):
            for index in parse_gateway_links(body):
                if index in links:
                    links[index].routed = True
    return [links[index] for index in sorted(links)]


def parse_link(body: bytes) -> Link:
    """One RTM_NEWLINK."""
    _family, _device_type, index, flags, _change = _LINK.unpack_from(body)
    found = dict(_attributes(body, _LINK.size))
    info = dict(_attributes(found.get(_IFLA_LINKINFO, b""), 0))
    return Link(
        name=_text(found.get(_IFLA_IFNAME, b"")),
        ifindex=index,
        up=bool(flags & _IFF_UP),
        carrier=found.get(_IFLA_CARRIER, b"\1")[:1] != b"\0",
        loopback=bool(flags & _IFF_LOOPBACK),
        kind=_text(info.get(_IFLA_INFO_KIND, b"")),
        master=_u32(found.get(_IFLA_MASTER, b"")),
        mac=found.get(_IFLA_ADDRESS, b"").hex(":"),
    )


def parse_address(body: bytes) -> tuple[int, Address | None]:
    """(interface index, address) of one RTM_NEWADDR; None for another family."""
    family, prefix, flags8, _scope, index = _ADDRESS.unpack_from(body)
    found = dict(_attributes(body, _ADDRESS.size))
    flags = _u32(found.get(_IFA_FLAGS, b"")) or flags8
    # On point-to-point interfaces ADDRESS is the other end; LOCAL is always this one.
    raw = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS) or b""
    if (family, len(raw)) not in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
        return index, None
    usable = not flags & (_IFA_F_DADFAILED | _IFA_F_DEPRECATED | _IFA_F_TENTATIVE)
    return index, Address(str(ipaddress.ip_address(raw)), prefix, usable)


def parse_gateway_links(body: bytes) -> list[int]:
    """Indexes of the interfaces through which a route leads to a gateway."""
    found = dict(_attributes(body, _ROUTE.size))
    if _RTA_GATEWAY in found or _RTA_VIA in found:
        return [_u32(found.get(_RTA_OIF, b""))]
    hops, links = found.get(_RTA_MULTIPATH, b""), []
    while len(hops) >= _NEXT_HOP.size:
        length, _flags, _hops, index = _NEXT_HOP.unpack_from(hops)
        if length < _NEXT_HOP.size:
            break
        if {_RTA_GATEWAY, _RTA_VIA} & dict(_attributes(hops[:length], _NEXT_HOP.size)).keys():
            links.append(index)
        hops = hops[(length + 3) & ~3 :]
    return links


def _dump(sock: socket.socket, request: int, answer: int, head_bytes: int) -> Iterator[bytes]:
    body = bytes((head_bytes + 3) & ~3)
    sock.send(_HEADER.pack(_HEADER.size + len(body), request, _REQUEST_DUMP, request, 0) + body)
    while True:
        data = sock.recv(_RECV_BYTES)
        while len(data) >= _HEADER.size:
            length, kind, _flags, sequence, _port = _HEADER.unpack_from(data)
            if length < _HEADER.size:
                return
            part, data = data[_HEADER.size : length], data[(length + 3) & ~3 :]
            if sequence != request:
                continue
            if kind == _DONE:
                return
            if kind == _ERROR:
                code = -struct.unpack_from("=i", part)[0]
                raise OSError(code, f"rtnetlink: {os.strerror(code)}")
            if kind == answer and len(part) >= head_bytes:
                yield part


def _attributes(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def _u32(raw: bytes) -> int:
    return int(struct.unpack("=I", raw)[0]) if len(raw) == 4 else 0
