"""Small JSON messages over an authenticated, non-blocking socket, in the event loop."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

from .loop import READ, Loop

MAX_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")
_SEND_S = 2.0

Message = dict[str, Any]


class Channel:
    """``on_message(channel, message)`` for each; ``on_end(channel)`` once, when the peer has ended it or sends nonsense.

    Reads not a byte beyond a message, so that the socket can be handed on after one.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        rank: int,
        on_message: Callable[[Channel, Message], None],
        on_end: Callable[[Channel], None],
        *,
        dialled: bool,
    ) -> None:
        self.rank = rank
        self.dialled = dialled  # by this end
        self._loop = loop
        self._sock: socket.socket | None = sock
        self._on_message = on_message
        self._on_end = on_end
        self._in = bytearray()
        self._wanted = _LENGTH.size
        self._in_body = False
        loop.watch(sock, READ, lambda _events: self._on_ready())

    def send(self, message: Message) -> None:
        """Send, blocking for at most two seconds; a peer that is gone shows by its end."""
        if self._sock is None:
            return
        with contextlib.suppress(OSError):
            self._sock.settimeout(_SEND_S)
            self._sock.sendall(packed(message))
            self._sock.setblocking(False)

    def take(self) -> socket.socket | None:
        """The socket, unwatched; None when it has ended."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.forget(sock)
        return sock

    def close(self) -> None:
        """Without a call of ``on_end``. Idempotent."""
        sock = self.take()
        if sock is not None:
            sock.close()

    def _on_ready(self) -> None:
        try:
            while self._sock is not None and self._step(self._sock):
                pass
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, ValueError, RecursionError):
            self._end()

    def _step(self, sock: socket.socket) -> bool:
        data = sock.recv(self._wanted - len(self._in))
        if not data:
            self._end()
            return False
        self._in += data
        if len(self._in) < self._wanted:
            return True
        whole, self._in = bytes(self._in), bytearray()
        if not self._in_body:
            (self._wanted,) = _LENGTH.unpack(whole)
            self._in_body = True
            if not 0 < self._wanted <= MAX_BYTES:
                raise ValueError("length")
            return True
        self._wanted, self._in_body = _LENGTH.size, False
        message = json.loads(whole)
        if not isinstance(message, dict):
            raise ValueError("not an object")
        self._on_message(self, message)
        return True

    def _end(self) -> None:
        if self._sock is not None:
            self.close()
            self._on_end(self)


def packed(message: Message) -> bytes:
    """Length and body."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body
