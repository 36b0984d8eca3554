"""Which address a connection is dialled at, and from which address and interface it leaves."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..topology.model import RankInfo
from .address import SocketAddress, is_loopback, socket_address
from .announce import Announcement
from .listeners import Listeners
from .wanted import Wanted


@dataclass(frozen=True)
class Keys:
    """What authenticates the connections of one communicator."""

    secret: bytes = field(repr=False)
    job: bytes


@dataclass
class Around:
    """What a rank knows of itself and the others when it connects."""

    me: RankInfo
    ranks: Sequence[RankInfo]
    announcements: Mapping[int, Announcement]
    listeners: Listeners
    keys: Keys
    hint: str | None = None  # own address on the way to rank 0: gives link-local addresses of peers their scope
    segment_bytes: int = 0  # 0: no shared memory
    runs: int = 0  # how often this rank has begun to connect


def route(around: Around, wanted: Wanted, attempt: int) -> tuple[int, SocketAddress | str, SocketAddress | None, str]:
    """(family, target, source, device) for the attempt. ``ValueError`` tells why there is no way."""
    me = around.me
    peer = around.ranks[wanted.peer]
    announced = around.announcements[wanted.peer]
    if not wanted.is_oob:
        rail = me.rails[wanted.my_rail]
        entry = announced.rail_port(wanted.peer_rail, wanted.peer_address)
        if not entry.port:
            raise ValueError(entry.reason)
        family, source = socket_address(wanted.my_address, 0)
        target = _scoped(wanted.peer_address, entry.port, rail.name)
        if len(source) != len(target):
            raise ValueError(f"{wanted.my_address} cannot reach {wanted.peer_address}: another address family")
        device = "" if peer.netns == me.netns or rail.is_loopback else rail.name
        return family, target, source, device
    if announced.unix and peer.host_id == me.host_id and peer.netns == me.netns:
        return socket.AF_UNIX, "\0" + announced.unix, None, ""
    local = peer.netns == me.netns
    addresses = [a for a in announced.oob if local or not is_loopback(a)] + (["127.0.0.1"] if local else [])
    if not addresses or not announced.oob_port:
        raise ValueError(f"rank {wanted.peer} announced no address that is reachable from another machine")
    address = addresses[attempt % len(addresses)]
    scope = (around.hint or "").partition("%")[2]
    target = _scoped(address, announced.oob_port, scope)
    return socket.AF_INET6 if ":" in address else socket.AF_INET, target, None, ""


def _scoped(address: str, port: int, interface: str) -> SocketAddress:
    """A peer's address to dial; a link-local one gets this machine's scope, since the peer's means nothing here."""
    bare = address.partition("%")[0]
    if bare.lower().startswith("fe80:"):
        if not interface:
            raise ValueError(f"{bare} is link-local and no interface is known that leads to it")
        bare = f"{bare}%{interface}"
    return socket_address(bare, port)[1]
