"""Accepts and authenticates connections on listening sockets; strangers cost bounded time, memory and log lines."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from functools import partial

from .address import peer_text
from .auth import HANDSHAKE_S, Hello, Judge, ServerHandshake
from .handshake_io import HandshakeIO
from .loop import READ, Loop
from .user import other_user

log = logging.getLogger("r2ccl.bootstrap")
_ACCEPTS_PER_ROUND = 32
_MAX_LOGGED = 64
_PAUSE_S = 0.1
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """``on_peer(sock, hello, listener)`` gets each authenticated connection and owns it from then on.

    All handshakes run side by side, so a silent stranger delays nobody. At most ``limit`` are open at once; beyond
    that the oldest one is dropped. Peers on AF_UNIX must be of this process's user; ``own_user_only`` asks that of
    those on loopback, too. ``quiet`` keeps refusals out of the log.
    """

    def __init__(
        self,
        loop: Loop,
        secret: bytes,
        job: bytes,
        judge: Judge,
        on_peer: Callable[[socket.socket, Hello, socket.socket], None],
        *,
        purpose: str,
        limit: int = 128,
        handshake_s: float = HANDSHAKE_S,
        own_user_only: bool = False,
        quiet: bool = False,
    ) -> None:
        self._loop = loop
        self._secret = secret
        self._job = job
        self._judge = judge
        self._on_peer = on_peer
        self._purpose = purpose
        self._limit = limit
        self._handshake_s = handshake_s
        self._own_user_only = own_user_only
        self._quiet = quiet
        self._listeners: list[socket.socket] = []
        self._open: dict[HandshakeIO, socket.socket] = {}  # in order of arrival
        self._closing = False
        self._logged: set[tuple[str, str]] = set()

    @property
    def pending(self) -> int:
        """How many handshakes are open."""
        return len(self._open)

    def listen(self, sock: socket.socket) -> None:
        """Serve a listening, non-blocking socket; the caller keeps owning it."""
        self._listeners.append(sock)
        self._loop.watch(sock, READ, lambda _events: self._accept(sock))

    def close(self) -> None:
        """Stop listening and drop unfinished handshakes."""
        for sock in self._listeners:
            self._loop.forget(sock)
        self._listeners.clear()
        self._closing = True
        for handshake in list(self._open):
            handshake.fail("this rank has stopped listening")

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._pause(listener, error)
                    return
                continue  # the connection died before it was accepted
            sock.setblocking(False)
            if len(self._open) >= self._limit:
                next(iter(self._open)).fail(f"more than {self._limit} unfinished handshakes: the oldest is dropped")
            machine = ServerHandshake(self._secret, self._job, self._judge)
            on_end = partial(self._ended, peer_text(sock))
            handshake = HandshakeIO(self._loop, sock, machine, on_end, self._handshake_s)
            self._open[handshake] = listener

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Out of descriptors: strangers may hold them; come back when their handshakes have run out."""
        log.warning("%s: cannot accept a connection: %s (ulimit -n)", self._purpose, error.strerror)
        self._loop.forget(listener)
        self._loop.after(_PAUSE_S, lambda: self._resume(listener))

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.watch(listener, READ, lambda _events: self._accept(listener))

    def _ended(self, who: str, handshake: HandshakeIO, error: str | None) -> None:
        listener = self._open.pop(handshake)
        machine = handshake.machine
        if error is not None:
            self._log_refusal(who, error)
            return
        stranger = (
            other_user(handshake.sock) if self._own_user_only or handshake.sock.family == socket.AF_UNIX else None
        )
        if stranger is not None:
            handshake.sock.close()
            self._log_refusal(who, stranger)
            return
        assert machine.hello is not None  # proven, since the handshake has ended without an error
        self._on_peer(handshake.sock, machine.hello, listener)

    def _log_refusal(self, who: str, reason: str) -> None:
        host = who.rsplit(":", 1)[0]
        if self._closing or self._quiet or (host, reason) in self._logged or len(self._logged) >= _MAX_LOGGED:
            log.debug("%s: refused %s: %s", self._purpose, who, reason)
            return
        self._logged.add((host, reason))
        log.warning("%s: refused %s: %s", self._purpose, who, reason)
