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
from dataclasses import dataclass, field

from .address import SocketAddress, is_loopback, socket_address
from .auth import derive, job_id
from .route import Around, Keys

Way = tuple[int, "SocketAddress | str"]
"""(family, address) to connect to."""

REFUSED = os.strerror(errno.ECONNREFUSED)
"""What a dial reports when no process listens at an address any more."""

_DOUBT_S = 0.05
_PROOF = 2  # refusals that leave no doubt: by two addresses, or by this host's own kernel
_PERSISTENT_S = 5.0


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
    here = info.netns == me.netns
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


def weight(way: Way) -> int:
    """Of a refusal there: nothing stands between a rank and a Unix name."""
    return _PROOF if way[0] == socket.AF_UNIX else 1


class Refusals:
    """Weighs refused connections to ranks: whether their processes have ended."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def prove_end(self, peer: int, refused: int, now_s: float) -> bool:
        """After one look: ``refused`` addresses refused, see ``weight``, and none took a connection; 0: silence, or it lives."""
        if not refused:
            self.forget(peer)
            return False
        return refused >= _PROOF or now_s - self._since.setdefault(peer, now_s) >= _PERSISTENT_S

    def forget(self, peer: int) -> None:
        """It lives: earlier refusals no longer count."""
        self._since.pop(peer, None)


def refusals(around: Around, peer: int, timeout_s: float) -> int:
    """How many addresses refuse connections to a rank's door, see ``weight``.

    0 when it lives, and when nothing can be told: no answer, no way there.
    """
    pending: dict[int, socket.socket] = {}
    weights: dict[int, int] = {}
    refused = 0
    poll = select.poll()
    try:
        for way in ways_to(around, peer):
            sock = socket.socket(way[0], socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            pending[sock.fileno()] = sock
            weights[sock.fileno()] = weight(way)
            code = _connect(sock, way[1])
            if code == 0:
                return 0
            refused += weight(way) * (code == errno.ECONNREFUSED)
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
                    return 0
                refused += weights[fd] * (code == errno.ECONNREFUSED)
        return refused
    finally:
        for sock in pending.values():
            sock.close()


def _connect(sock: socket.socket, target: SocketAddress | str) -> int:
    try:
        return sock.connect_ex(target)
    except OSError as error:
        return error.errno or errno.EIO
