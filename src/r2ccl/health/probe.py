"""Which end of a failed link is at fault, where no other link can tell: connections tried across rails.

Three tries side by side: own rail to another rail of the peer, another own rail to the peer's rail, and, to know whether
rails reach each other at all, two rails that are well. A refused connection is an answer, too: it came back.

Only across networks that gateways join. On one wire any interface of a host may answer for any address of it (Linux
does), so an answer would not say which NIC it came through.
"""

from __future__ import annotations

import errno
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from enum import IntEnum

from ..bootstrap.address import socket_address
from ..bootstrap.route import Around
from ..topology.model import RailInfo

_ANSWER_S = 0.2
_DISCARD_PORT = 9
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Finding(IntEnum):
    """What is known of a rail; the numbers are those of flow/diagnosis.h."""

    UNKNOWN = 0
    ALIVE = 1
    DEAD = 2


def probe(
    around: Around, peer: int, my_rail: int, peer_rail: int, well: Sequence[tuple[int, int]]
) -> tuple[Finding, Finding]:
    """Findings about this rank's rail and the peer's, after at most a fifth of a second.

    well: (my rail, peer's rail) of links to this peer that are in use. An answer proves a rail. Silence condemns it only
    where two rails that are well do reach each other.
    """
    mine = around.me.rails
    theirs = around.ranks[peer].rails
    tries: dict[str, tuple[RailInfo, RailInfo]] = {}
    for own, other in well:
        for name, pair in (("mine", (mine[my_rail], theirs[other])), ("theirs", (mine[own], theirs[peer_rail]))):
            if _crosses(*pair):
                tries.setdefault(name, pair)
        for another, _ in well:
            if another != own and _crosses(mine[another], theirs[other]):
                tries.setdefault("control", (mine[another], theirs[other]))
    answered = _answers(around, peer, tries)
    joined = "control" in answered
    return tuple(  # type: ignore[return-value]
        Finding.ALIVE if name in answered else Finding.DEAD if joined and name in tries else Finding.UNKNOWN
        for name in ("mine", "theirs")
    )


def _crosses(source: RailInfo, target: RailInfo) -> bool:
    """A connection between the two leaves through one NIC and arrives at the other, and no NIC beside it."""
    return source.routed and target.routed and source.fabric != target.fabric and source.family == target.family


def _answers(around: Around, peer: int, tries: dict[str, tuple[RailInfo, RailInfo]]) -> set[str]:
    """Names of the tries that were answered."""
    answered: set[str] = set()
    with selectors.DefaultSelector() as selector:
        try:
            for name, (source, target) in tries.items():
                _begin(around, peer, source, target, name, selector, answered)
            deadline = time.monotonic() + _ANSWER_S
            while selector.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    selector.unregister(key.fileobj)
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNREFUSED):
                        answered.add(key.data)
                    sock.close()
        finally:
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
    return answered


def _begin(
    around: Around,
    peer: int,
    source: RailInfo,
    target: RailInfo,
    name: str,
    selector: selectors.BaseSelector,
    answered: set[str],
) -> None:
    port = around.announcements[peer].rail_port(target.index, target.address).port or _DISCARD_PORT
    try:
        family, where = socket_address(target.address.partition("%")[0], port)
        own_family, here = socket_address(source.address, 0)
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    except (OSError, ValueError):
        return
    try:
        if family != own_family:
            raise OSError(errno.EAFNOSUPPORT, "another address family")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        if not source.is_loopback and around.ranks[peer].netns != around.me.netns:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, source.name.encode())
        sock.bind(here)
        code = sock.connect_ex(where)
    except (OSError, PermissionError):
        sock.close()
        return
    if code in (0, errno.ECONNREFUSED):
        answered.add(name)
        sock.close()
    elif code == errno.EINPROGRESS:
        selector.register(sock, selectors.EVENT_WRITE, name)
    else:
        sock.close()
