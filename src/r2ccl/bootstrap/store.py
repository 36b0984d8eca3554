"""Rank 0's store: one thread that authenticates the other ranks and answers their all-gathers."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable

from ..errors import BootstrapError
from .acceptor import Acceptor
from .address import local_address
from .auth import Hello
from .base import Deadline
from .gathers import Answer, Gathers
from .loop import READ, WRITE, Loop, Timer
from .wire import HEAD, MAX_GATHER_BYTES, GatherRequest, Kind, frame, parse_gather, parse_head

log = logging.getLogger("r2ccl.bootstrap")
_RECV_BYTES = 64 << 10
_CLOSE_S = 2.0
_LINGER_S = 0.5
Reply = tuple[Kind, bytes]


class _Member:
    """A connected rank: its socket, what is still to be sent, and the frame that is being received."""

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank = rank
        self.sock = sock
        self.out: deque[memoryview] = deque()
        self.body = bytearray()
        self.wanted = 0  # bytes of body; 0 while the head is awaited
        self.spoke = False
        self.timer: Timer | None = None


class Store:
    """Owns its listening sockets. Rank 0 takes part by ``gather``; everything else happens in the thread."""

    def __init__(
        self,
        listeners: list[socket.socket],
        size: int,
        secret: bytes,
        job: bytes,
        welcome: bytes,
        *,
        own_user_only: bool = False,
        tell_lost: bool = False,
    ) -> None:
        """tell_lost: ranks learn at once that another one has left, not only in the step that lacks it."""
        self._size = size
        self._welcome = welcome
        self._listeners = listeners
        self._loop = Loop()
        self._gathers = Gathers(size)
        self._members: dict[int, _Member] = {}
        self._local: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._local_timer: Timer | None = None
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._closing = False
        self._tell_lost = tell_lost
        self.lost = ""
        """Which rank has left, and why; with ``tell_lost``."""
        self.reached_at: str | None = None
        """A local address by which another rank came in; None before one did."""
        self._loop.watch(self._wake_in, READ, self._on_wake)
        self._acceptor = Acceptor(
            self._loop,
            secret,
            job,
            self._judge,
            self._on_peer,
            purpose="bootstrap store",
            limit=max(128, 2 * size),
            own_user_only=own_user_only,
        )
        for listener in listeners:
            self._acceptor.listen(listener)
        self._thread = threading.Thread(target=self._run, name="r2ccl-store", daemon=True)
        self._thread.start()

    def gather(self, request: GatherRequest, deadline: Deadline) -> Reply:
        """Rank 0's own part; the answer that a remote rank would get."""
        if self._closing:
            raise BootstrapError("the bootstrap is closed")
        self._call(lambda: self._add(0, request))
        try:
            return self._local.get(timeout=deadline.remaining() + _CLOSE_S)
        except queue.Empty:
            raise BootstrapError("the thread of rank 0's store does not answer") from None

    def adopt(self, rank: int, sock: socket.socket) -> None:
        """A rank that came in another way: its authenticated socket, which is the store's from now on."""
        sock.setblocking(False)
        self._call(lambda: self._join(rank, sock))

    def left(self, rank: int, why: str) -> None:
        """A rank that will not come."""
        self._call(lambda: self._left(rank, why))

    def close(self) -> None:
        """Answer whoever waits, deliver what is queued (at most 2 s), and end the thread."""
        if self._closing:
            return
        self._closing = True
        self._call(lambda: None)
        self._thread.join(2 * _CLOSE_S)

    # Everything below runs in the thread.

    def _call(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        with contextlib.suppress(OSError):  # full: the thread is awake already; closed: it has ended
            self._wake_out.send(b"\0")

    def _run(self) -> None:
        try:
            while not self._closing:
                self._loop.run_once(3600.0)
            self._give_up()
            end = Deadline(_CLOSE_S)
            while not end.expired and any(member.out for member in self._members.values()):
                self._loop.run_once(end.remaining())
            # A rank has left: those that come to a step after that shall read why, not a reset connection.
            end = Deadline(_LINGER_S)
            while self._gathers.gone and self._members and not end.expired:
                self._loop.run_once(end.remaining())
        except Exception:  # a bug: the other ranks learn by the closed connections
            log.exception("rank 0's store ended")
        finally:
            self._acceptor.close()
            for sock in [*self._listeners, *(m.sock for m in self._members.values()), self._wake_in, self._wake_out]:
                sock.close()
            self._loop.close()

    def _on_wake(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(4096)
        while not self._calls.empty():
            self._calls.get_nowait()()

    def _judge(self, hello: Hello) -> str | None:
        rank, size = hello.get("rank"), hello.get("size")
        if hello.get("for") != "store":
            return "this is the bootstrap store"
        if size != self._size:
            return f"WORLD_SIZE={size!r} there, {self._size} at rank 0: it must be equal on all ranks"
        if type(rank) is not int or not 0 < rank < self._size:
            return f"RANK={rank!r}: ranks 1 to {self._size - 1} may join"
        if rank in self._members or rank in self._gathers.gone:
            return f"rank {rank} has joined already (is RANK={rank} set for two processes?)"
        return None

    def _on_peer(self, sock: socket.socket, hello: Hello, _listener: socket.socket) -> None:
        if self._judge(hello) is not None:  # a twin was quicker between the judgement and its delivery
            sock.close()
            return
        self._join(hello["rank"], sock)

    def _join(self, rank: int, sock: socket.socket) -> None:
        member = _Member(rank, sock)
        self._members[rank] = member
        self._gathers.joined(rank)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.reached_at = local_address(sock)
        self._send(member, frame(Kind.WELCOME, self._welcome))

    def _watch(self, member: _Member) -> None:
        events = READ | (WRITE if member.out else 0)
        self._loop.watch(member.sock, events, lambda ready: self._on_ready(member, ready))

    def _on_ready(self, member: _Member, ready: int) -> None:
        try:
            if ready & WRITE:
                self._flush(member)
            if ready & READ:
                self._receive(member)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, BootstrapError) as error:
            self._drop(member, f"lost its connection ({error})")
            return
        if self._members.get(member.rank) is member:
            self._watch(member)

    def _receive(self, member: _Member) -> None:
        data = member.sock.recv(_RECV_BYTES)
        if not data:
            self._drop(member, "closed its connection")
            return
        member.spoke = True
        member.body += data
        while True:
            if not member.wanted and len(member.body) >= HEAD.size:
                length, kind = parse_head(bytes(member.body[: HEAD.size]), MAX_GATHER_BYTES)
                if kind is not Kind.GATHER or not length:
                    raise BootstrapError(f"it sent a frame of kind {kind}")
                member.wanted = length
                del member.body[: HEAD.size]
            if not member.wanted or len(member.body) < member.wanted:
                return
            request = parse_gather(bytes(member.body[: member.wanted]))
            del member.body[: member.wanted]
            member.wanted = 0
            if self._gathers.waits(member.rank):
                raise BootstrapError("it sent a second request before the first was answered")
            self._add(member.rank, request)

    def _add(self, rank: int, request: GatherRequest) -> None:
        answers = self._gathers.add(rank, request)
        if not self._gathers.waits(rank):
            self._deliver(answers)
            return
        timer = self._loop.after(request.remaining_s, lambda: self._deliver(self._gathers.expire(rank)))
        if rank == 0:
            self._local_timer = timer
        else:
            self._members[rank].timer = timer
        self._deliver(answers)

    def _deliver(self, answers: list[Answer]) -> None:
        for ranks, kind, body in answers:
            packed = frame(kind, body)  # one copy, however many ranks get it
            for rank in ranks:
                if rank == 0:
                    if self._local_timer is not None:
                        self._local_timer.cancel()
                    self._local.put((kind, body))
                elif rank in self._members:
                    member = self._members[rank]
                    if member.timer is not None:
                        member.timer.cancel()
                    self._send(member, packed)

    def _send(self, member: _Member, data: bytes) -> None:
        member.out.append(memoryview(data))
        try:
            self._flush(member)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # Dropped in a call of its own: this may run inside a loop over members.
            why = f"lost its connection ({error})"
            self._call(lambda: self._drop(member, why))
            return
        self._watch(member)

    def _flush(self, member: _Member) -> None:
        while member.out:
            sent = member.sock.send(member.out[0])
            if sent < len(member.out[0]):
                member.out[0] = member.out[0][sent:]
                return
            member.out.popleft()

    def _drop(self, member: _Member, why: str) -> None:
        if self._members.get(member.rank) is not member:
            return
        del self._members[member.rank]
        self._loop.forget(member.sock)
        member.sock.close()
        if member.timer is not None:
            member.timer.cancel()
        if member.spoke or self._tell_lost:
            log.debug("bootstrap store: rank %d %s", member.rank, why)
            self._left(member.rank, why)
        # A rank that never said anything may have lost patience with a slow handshake; it may join again.

    def _left(self, rank: int, why: str) -> None:
        answers = self._gathers.left(rank, why)
        self._deliver(answers)
        if self._tell_lost and not self.lost:
            self.lost = f"rank {rank} {why}"
            told = {r for ranks, _kind, _body in answers for r in ranks}
            packed = frame(Kind.LOST, self.lost.encode())
            for member in list(self._members.values()):
                if member.rank not in told:
                    self._send(member, packed)

    def _give_up(self) -> None:
        self._acceptor.close()
        self._deliver(self._gathers.give_up())
