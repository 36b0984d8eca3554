"""Addresses of either family: parsing, scope ids, listening, and what is local. Host names are never trusted."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import struct
from typing import Any

from ..errors import BootstrapError

SocketAddress = tuple[Any, ...]
"""What ``socket.connect`` takes: (address, port) or (address, port, flow, scope)."""


def resolve(host: str, port: int, *, what: str) -> list[tuple[int, SocketAddress]]:
    """All (family, socket address) of a host name, or of an address with or without brackets and ``%scope``.

    IPv4 comes first, since every IPv4 address is reachable alike while IPv6 ones have scopes. ``BootstrapError`` when
    the name has no address; ``what`` is where the name came from, as in ``MASTER_ADDR``.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        found = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BootstrapError(
            f"{what}={host!r} has no address ({error}): use the IP address of rank 0's machine"
        ) from error
    unique = dict.fromkeys((int(family), address) for family, _, _, _, address in found if family in _FAMILIES)
    return sorted(unique, key=lambda entry: entry[0] != socket.AF_INET)


def socket_address(address: str, port: int) -> tuple[int, SocketAddress]:
    """(family, socket address) of a numeric address such as ``10.0.0.1`` or ``fe80::1%eth0``; never asks a name server.

    ``ValueError`` for anything else: addresses come from peers, too.
    """
    bare, _, scope = address.partition("%")
    ip = ipaddress.ip_address(bare)
    if ip.version == 4:
        return socket.AF_INET, (bare, port)
    return socket.AF_INET6, (bare, port, 0, _scope_id(scope) if scope else 0)


def _scope_id(scope: str) -> int:
    if scope.isdigit():
        return int(scope)
    try:
        return socket.if_nametoindex(scope)
    except OSError:
        raise ValueError(f"no interface {scope!r} on this machine") from None


def is_local(address: SocketAddress, family: int) -> bool:
    """Whether an address belongs to this machine (this network namespace): only then can a socket be bound to it."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address[0], 0, *address[2:]))
        except OSError:
            return False
    return not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_unspecified


def is_loopback(address: str) -> bool:
    """Whether a numeric address, with or without scope, is in 127/8 or ::1."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def listen_everywhere(port: int, backlog: int = 1024) -> list[socket.socket]:
    """One non-blocking socket for IPv6 and IPv4, or IPv4 alone on machines without IPv6. ``OSError`` when taken."""
    if socket.has_ipv6:
        try:
            return [listen_on(socket.AF_INET6, ("::", port, 0, 0), backlog, dual_stack=True)]
        except OSError as error:
            if error.errno not in _NO_FAMILY:
                raise
    return [listen_on(socket.AF_INET, ("0.0.0.0", port), backlog)]


def listen_on_loopback(port: int, backlog: int = 1024) -> list[socket.socket]:
    """Non-blocking sockets on 127.0.0.1 and, where the machine has it, ::1. ``OSError`` when taken."""
    first = listen_on(socket.AF_INET, ("127.0.0.1", port), backlog)
    if not socket.has_ipv6:
        return [first]
    try:
        return [first, listen_on(socket.AF_INET6, ("::1", first.getsockname()[1], 0, 0), backlog)]
    except OSError as error:
        if error.errno in _NO_FAMILY or port == 0:  # the port that the system chose may be taken on ::1 only
            return [first]
        first.close()
        raise


def listen_on(
    family: int, address: SocketAddress, backlog: int, *, dual_stack: bool = False, device: str = ""
) -> socket.socket:
    """A non-blocking listening socket; ``device`` also pins it, and what it accepts, to one interface if permitted."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        bind_to_device(sock, device)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def bind_to_device(sock: socket.socket, device: str) -> None:
    """Pin a socket to an interface, if permitted, so that routing cannot send a rail's bytes through another NIC."""
    if not device:
        return
    # Where it is forbidden the source address alone picks the rail, given separate subnets or source routing.
    with contextlib.suppress(PermissionError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")


def local_address(sock: socket.socket) -> str:
    """This end's address without port: IPv4 in plain clothes, link-local IPv6 with its ``%scope``."""
    name = sock.getsockname()
    host = str(name[0])
    if host.startswith("::ffff:") and "." in host:
        return host[7:]
    if len(name) == 4 and name[3] and "%" not in host:
        return f"{host}%{socket.if_indextoname(name[3])}"
    return host


def peer_text(sock: socket.socket) -> str:
    """``10.0.0.1:5000``, ``[fe80::1%eth0]:5000`` or ``local process 123``, for messages."""
    try:
        if sock.family == socket.AF_UNIX:
            return f"local process {peer_credentials(sock)[0]}"
        return address_text(sock.getpeername())
    except OSError:
        return "a peer that is gone already"


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """(process id, user id) of the process at the other end of an AF_UNIX socket, as the kernel knows them."""
    pid, uid, _gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def address_text(address: SocketAddress) -> str:
    """A socket address for messages; IPv4 addresses mapped into IPv6 are shown as IPv4."""
    host = str(address[0])
    if host.startswith("::ffff:") and "." in host:
        host = host[7:]
    if len(address) == 4 and address[3] and "%" not in host:
        host = f"{host}%{address[3]}"
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # IPv6 is not compiled in, or switched off
_UCRED = struct.Struct("3i")
