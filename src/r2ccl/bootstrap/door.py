"""The way in that every rank keeps for the life of a communicator: survivors of a lost rank meet there.

Nobody serves it before a rank calls ``shrink``. Until then it tells one thing: while the process lives its kernel takes
connections, and once it has ended its kernel refuses them. A firewall on the way can refuse them, too, so that refusals
by one address alone count only when they go on (``Refusals``).
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from .address import SocketAddress, is_loopback, socket_address
from .auth import derive, job_id
from .route import Around, Keys

Way = tuple[int, "SocketAddress | str"]
"""(family, address) to connect to."""

REFUSED = os.strerror(errno.ECONNREFUSED)
"""What a dial reports when no process listens at an address any more."""

_DOUBT_S = 0.05
_MANY_S, _FEW_S = 1.0, 5.0  # see Refused.patience_s


@dataclass
class Door:
    """The listening control sockets of one communicator, and what is needed to find the others' ones."""

    around: Around
    keys: Keys
    sockets: list[socket.socket] = field(default_factory=list)

    @classmethod
    def of(cls, around: Around, secret: bytes) -> Door:
        """Takes over the control sockets of the listeners."""
        key = derive(secret, "door")
        return cls(around, Keys(key, job_id("door", derive(secret, "door id").hex())), around.listeners.take_control())

    def close(self) -> None:
        """Nobody can come in any more, and the others see that. Idempotent."""
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()


def ways_to(around: Around, peer: int) -> list[Way]:
    """Every address at which a rank's door is open while it lives, and that can be reached from here."""
    me, info, announced = around.me, around.ranks[peer], around.announcements[peer]
    here = on_same_stack(around, peer)
    if announced.unix and here and info.host_id == me.host_id:
        return [(int(socket.AF_UNIX), "\0" + announced.unix)]
    if not announced.oob_port:
        return []
    addresses = list(announced.oob) or ["127.0.0.1"]
    ways: list[Way] = []
    for address in addresses if here else [a for a in addresses if not is_loopback(a)]:
        bare = address.partition("%")[0]
        if bare.lower().startswith("fe80:"):  # the peer's scope means nothing here
            scope = (around.hint or "").partition("%")[2]
            if not scope:
                continue
            bare = f"{bare}%{scope}"
        try:
            family, target = socket_address(bare, announced.oob_port)
        except ValueError:
            continue
        ways.append((int(family), target))
    return ways


def on_same_stack(around: Around, peer: int) -> bool:
    """The rank's addresses are this one's own."""
    return around.ranks[peer].netns == around.me.netns


@dataclass(frozen=True)
class Refused:
    """What one look at a rank's door showed.

    Attributes:
        addresses: those that refused a connection while no other took one; empty: silence, or the rank lives.
        asked: how many there are.
        reset: a control connection that stood was reset.
        here: the rank shares this one's network stack: no firewall but the host's own stands between them.
    """

    addresses: frozenset[str] = frozenset()
    asked: int = 0
    reset: bool = False
    here: bool = False

    @classmethod
    def by(cls, ways: Collection[Way], asked: int, here: bool) -> Refused:
        """These of the ways that were tried refused."""
        return cls(frozenset(_address(way) for way in ways), asked, here=here)

    @property
    def patience_s(self) -> float:
        """How long it must go on before the end is proven: firewalls on some of the ways refuse, too.

        Not at all where all addresses refuse. (Where there is only one, on another host, a firewall there is as bad as the
        end; but it should have reset what stood, too.)
        """
        n = len(self.addresses)
        if n == self.asked and (n > 1 or self.reset or self.here):
            return 0.0
        return _MANY_S if n > 1 and 2 * n > self.asked else _FEW_S


def _address(way: Way) -> str:
    return way[1] if isinstance(way[1], str) else way[1][0].partition("%")[0]


class Refusals:
    """Weighs refused connections to ranks over time: whether their processes have ended."""

    def __init__(self) -> None:
        self._since: dict[int, dict[float, float]] = {}  # by peer and patience: since then no look asked for more

    def prove_end(self, peer: int, refused: Refused, now_s: float) -> bool:
        """After one look."""
        if not refused.addresses:
            self.forget(peer)
            return False
        since = self._since.setdefault(peer, {})
        needed = refused.patience_s
        for patience_s in (_MANY_S, _FEW_S):
            if patience_s < needed:
                since.pop(patience_s, None)
            else:
                since.setdefault(patience_s, now_s)
        return needed == 0 or any(now_s - begin_s >= patience_s for patience_s, begin_s in since.items())

    def forget(self, peer: int) -> None:
        """It lives: earlier refusals no longer count."""
        self._since.pop(peer, None)


def look_at_door(around: Around, peer: int, timeout_s: float) -> Refused:
    """Which addresses refuse connections to a rank's door.

    None when it lives, and when nothing can be told: no answer, no way there.
    """
    pending: dict[int, socket.socket] = {}
    way_of: dict[int, Way] = {}
    refused: list[Way] = []
    poll = select.poll()
    ways = ways_to(around, peer)
    try:
        for way in ways:
            sock = socket.socket(way[0], socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            pending[sock.fileno()] = sock
            way_of[sock.fileno()] = way
            code = _connect(sock, way[1])
            if code == 0:
                return Refused(asked=len(ways))
            if code == errno.ECONNREFUSED:
                refused.append(way)
            if code == errno.EINPROGRESS:
                poll.register(sock, select.POLLOUT)
        end_s = time.monotonic() + timeout_s
        waiting = len(pending)
        while waiting and (left_s := end_s - time.monotonic()) > 0:
            # After a refusal another address may know better, but not after long.
            found = poll.poll(1000 * (min(left_s, _DOUBT_S) if refused else left_s))
            if refused and not found:
                break
            for fd, _events in found:
                poll.unregister(fd)
                waiting -= 1
                code = pending[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    return Refused(asked=len(ways))
                if code == errno.ECONNREFUSED:
                    refused.append(way_of[fd])
        return Refused.by(refused, len(ways), on_same_stack(around, peer))
    finally:
        for sock in pending.values():
            sock.close()


def _connect(sock: socket.socket, target: SocketAddress | str) -> int:
    try:
        return sock.connect_ex(target)
    except OSError as error:
        return error.errno or errno.EIO
