"""Brings up the wanted connections of one rank: dials and accepts them all at once, in one event loop."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ..errors import BootstrapError
from .acceptor import Acceptor
from .auth import ClientHandshake, Hello
from .base import Deadline
from .connection import Connection, prepare
from .dial import Dial
from .loop import READ, Loop, Timer
from .route import Around, route
from .shared import create_segment, receive_segment, send_segment
from .wanted import Wanted

_RETRY_S = 0.1
_DIALS_AT_ONCE = 64
_GRACE_S = 3.0
_NO_RAIL_S = 10.0
_CHECK_S = 0.1


class Connector:
    """Runs until every connection is settled or the deadline has passed. ``connections`` then holds the outcome.

    on_up: takes each rail's socket as soon as it is up. A rank that begins anew does not know what the other end holds of
    its earlier runs: what a later run dials replaces it.
    """

    def __init__(
        self, around: Around, wanted: Sequence[Wanted], on_up: Callable[[Wanted, socket.socket], None] | None = None
    ) -> None:
        self._around = around
        around.runs += 1
        self._run = around.runs
        self._on_up = on_up
        self._loop = Loop()
        self.connections = {(w.place, w.control): Connection(w) for w in wanted}
        self._unsettled = set(self.connections)
        self._rails_of: dict[int, list[Connection]] = {}
        for connection in self.connections.values():
            if not connection.wanted.is_oob:
                self._rails_of.setdefault(connection.wanted.peer, []).append(connection)
        self._waiting: deque[Connection] = deque()  # to be dialled when a place is free
        self._dialling = 0
        self._grace: dict[int, Timer] = {}
        self._grace_s = _GRACE_S
        self._no_rail_s = _NO_RAIL_S
        self._progress_s = time.monotonic()

    def run(self, deadline: Deadline, check: Callable[[], None] | None = None) -> None:
        """Connect. What did not come up has ``given_up`` and a ``reason``. ``check`` may raise, to end it early."""
        self._grace_s = min(_GRACE_S, deadline.remaining() / 3)
        self._no_rail_s = min(_NO_RAIL_S, deadline.remaining() * 2 / 3)
        keys = self._around.keys
        acceptor = Acceptor(
            self._loop,
            keys.secret,
            keys.job,
            self._judge,
            self._on_peer,
            purpose=f"rank {self._around.me.rank}",
            limit=512,
        )
        try:
            for listener in self._around.listeners.sockets:
                acceptor.listen(listener)
            for connection in self.connections.values():
                self._begin(connection)
            self._start_dials()
            while not deadline.expired and self._unsettled:
                if check is not None:
                    check()
                self._loop.run_once(min(deadline.remaining(), _CHECK_S))
            self._give_up_rest(deadline)
        finally:
            acceptor.close()
            for connection in self.connections.values():
                if connection.dial is not None:
                    connection.dial.close()
            self._loop.close()

    def close(self) -> None:
        """Release every connection."""
        for connection in self.connections.values():
            connection.close()

    def _note(self, connection: Connection) -> None:
        """Keep count after a change."""
        key = (connection.wanted.place, connection.wanted.control)
        if connection.settled:
            self._unsettled.discard(key)
        else:
            self._unsettled.add(key)

    def _begin(self, connection: Connection) -> None:
        wanted = connection.wanted
        if wanted.down:
            self._give_up(connection, wanted.down)
            return
        info = self._around.ranks[wanted.peer]
        same_host = info.host_id == self._around.me.host_id
        connection.needs_segment = wanted.is_oob and same_host and bool(self._around.segment_bytes)
        dials = wanted.peer < self._around.me.rank
        connection.reason = "" if dials else f"rank {wanted.peer} has not dialled it"
        if dials:
            self._waiting.append(connection)
        if not wanted.is_oob:
            self._watch_over(wanted.peer, self._no_rail_s)

    # Giving up rails: the last ones of a pair may hold up the start only so long after the last progress anywhere. (A
    # big job on few cores is slow without anything being wrong.)

    def _watch_over(self, peer: int, limit_s: float, wait_s: float | None = None) -> None:
        timer = self._grace.pop(peer, None)
        if timer is not None:
            timer.cancel()
        self._grace[peer] = self._loop.after(limit_s if wait_s is None else wait_s, partial(self._late, peer, limit_s))

    def _late(self, peer: int, limit_s: float) -> None:
        idle_s = time.monotonic() - self._progress_s
        if idle_s < limit_s:
            self._watch_over(peer, limit_s, limit_s - idle_s)
            return
        for connection in self._rails_of.get(peer, ()):
            if not connection.settled:
                self._give_up(connection, connection.reason or "no answer")

    def _give_up(self, connection: Connection, reason: str) -> None:
        connection.given_up = True
        connection.reason = reason
        self._note(connection)
        if connection.dial is not None:
            connection.dial.close()
            connection.dial = None
            self._dialling -= 1
            self._start_dials()

    def _give_up_rest(self, deadline: Deadline) -> None:
        for connection in self.connections.values():
            if not connection.settled:
                self._give_up(connection, connection.reason or f"not connected within {deadline.seconds:g} s")

    # Dialling.

    def _start_dials(self) -> None:
        while self._waiting and self._dialling < _DIALS_AT_ONCE:
            connection = self._waiting.popleft()
            if not connection.settled:
                self._dial(connection)

    def _dial(self, connection: Connection) -> None:
        try:
            family, target, source, device = route(self._around, connection.wanted, connection.attempt)
        except ValueError as error:
            self._dial_failed(connection, str(error))
            return
        wanted = connection.wanted
        connection.attempt += 1
        hello = {
            "for": "oob" if wanted.is_oob else "control" if wanted.control else "rail",
            "token": self._around.announcements[wanted.peer].token,
            "rank": self._around.me.rank,
            "to": wanted.peer,
            "rail": wanted.my_rail,
            "peer_rail": wanted.peer_rail,
            "run": self._run,
            "attempt": connection.attempt,
        }
        machine = ClientHandshake(self._around.keys.secret, self._around.keys.job, hello)
        self._dialling += 1
        ended = False

        def on_end(sock: socket.socket | None, reason: str | None) -> None:
            nonlocal ended
            ended = True
            connection.dial = None
            self._dialling -= 1
            if sock is not None:
                self._up(connection, sock)
            else:
                where = target if isinstance(target, str) else target[0]
                self._dial_failed(connection, f"{where.lstrip(chr(0))}: {reason}")
            self._start_dials()

        dial = Dial(self._loop, family, target, machine, on_end, source=source, device=device)
        if not ended:
            connection.dial = dial

    def _dial_failed(self, connection: Connection, reason: str) -> None:
        connection.reason = reason
        if connection.given_up:
            return

        def again() -> None:
            self._waiting.append(connection)
            self._start_dials()

        self._loop.after(_RETRY_S, again)

    # Accepting.

    def _judge(self, hello: Hello) -> str | None:
        me = self._around.me
        if hello.get("token") != self._around.listeners.announcement.token or hello.get("to") != me.rank:
            return f"this is rank {me.rank} of another group of connections"
        connection = self._of(hello)
        if connection is None or connection.wanted.peer <= me.rank:
            return f"rank {me.rank} expects no such connection"
        for count in ("run", "attempt"):
            if type(hello.get(count)) is not int or not 0 < hello[count] < 1 << 31:
                return f"the {count} is not a number"
        if (hello["run"], hello["attempt"]) <= (connection.run, connection.attempt):
            return "a later attempt was quicker"
        return None

    def _of(self, hello: Hello) -> Connection | None:
        peer, rail, peer_rail = hello.get("rank"), hello.get("rail"), hello.get("peer_rail")
        if type(peer) is not int or type(rail) is not int or type(peer_rail) is not int:
            return None
        if (hello.get("for") == "oob") != (rail == -1):
            return None
        return self.connections.get(((peer, peer_rail, rail), hello.get("for") == "control"))

    def _on_peer(self, sock: socket.socket, hello: Hello, listener: socket.socket) -> None:
        connection = self._of(hello)
        own = self._around.listeners.rails.get(listener)
        rail = own.rail if own else -1
        if connection is None or self._judge(hello) is not None or rail != connection.wanted.my_rail:
            sock.close()
            return
        connection.close()  # an earlier attempt, which the dialler has given up
        connection.run, connection.attempt = hello["run"], hello["attempt"]
        self._up(connection, sock)

    def _up(self, connection: Connection, sock: socket.socket) -> None:
        if connection.given_up:
            sock.close()
            return
        try:
            prepare(sock)
        except OSError as error:
            sock.close()
            connection.reason = error.strerror or str(error)
            self._note(connection)
            return
        connection.reason = ""
        self._progress_s = time.monotonic()
        if self._on_up is not None and not connection.wanted.is_oob:
            connection.handed_over = True
            self._on_up(connection.wanted, sock)
            self._note(connection)
            return
        connection.sock = sock
        if not connection.wanted.is_oob:
            self._watch_over(connection.wanted.peer, self._grace_s)
        elif connection.needs_segment:
            self._exchange_segment(connection, sock)
        self._note(connection)

    def _exchange_segment(self, connection: Connection, sock: socket.socket) -> None:
        me, peer = self._around.me.rank, connection.wanted.peer
        if peer < me:
            self._loop.watch(sock, READ, lambda _events: self._receive_segment(connection, sock))
            return
        try:
            connection.segment = create_segment(f"r2ccl-{me}-{peer}", self._around.segment_bytes)
            send_segment(sock, connection.segment)
        except (OSError, BootstrapError) as error:
            connection.close()
            self._give_up(connection, f"shared memory: {error}")

    def _receive_segment(self, connection: Connection, sock: socket.socket) -> None:
        try:
            connection.segment = receive_segment(sock, self._around.segment_bytes)
        except BlockingIOError:
            return
        except (OSError, BootstrapError) as error:
            self._loop.forget(sock)
            connection.close()
            self._give_up(connection, f"shared memory: {error}")
            return
        self._loop.forget(sock)
        self._note(connection)
