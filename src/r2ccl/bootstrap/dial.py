"""One outgoing connection: non-blocking connect, then the handshake."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

from .address import SocketAddress, bind_to_device
from .auth import HANDSHAKE_S, ClientHandshake
from .handshake_io import HandshakeIO
from .loop import WRITE, Loop

OnEnd = Callable[["socket.socket | None", "str | None"], None]


class Dial:
    """``on_end(socket, None)`` hands over an authenticated non-blocking socket; ``on_end(None, reason)`` says why not.

    It is called once, possibly before the constructor returns. ``source`` and ``device`` make the connection leave
    through one NIC. ``close`` gives up quietly.
    """

    def __init__(
        self,
        loop: Loop,
        family: int,
        address: SocketAddress | str,
        machine: ClientHandshake,
        on_end: OnEnd,
        *,
        source: SocketAddress | None = None,
        device: str = "",
        connect_s: float = 1.0,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._loop = loop
        self._machine = machine
        self._on_end: OnEnd | None = on_end
        self._handshake: HandshakeIO | None = None
        self._handshake_s = handshake_s
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._timer = loop.after(connect_s, lambda: self._fail(f"no answer within {connect_s:g} s"))
        try:
            bind_to_device(self._sock, device)
            if source is not None:
                self._sock.bind(source)
            code = self._sock.connect_ex(address)
        except OSError as error:
            code = error.errno or errno.EIO
        if code == 0:
            self._connected()
        elif code == errno.EINPROGRESS:
            loop.watch(self._sock, WRITE, self._on_writable)
        else:
            self._fail(os.strerror(code))

    @property
    def pending(self) -> bool:
        """Whether ``on_end`` is still to be called."""
        return self._on_end is not None

    def close(self) -> None:
        """Give up; ``on_end`` will not be called any more."""
        self._on_end = None
        if self._handshake is not None:
            self._handshake.fail("given up")
        else:
            self._fail("given up")

    def _on_writable(self, _events: int) -> None:
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(os.strerror(code))
        elif self._is_connected_to_itself():
            self._fail("nobody listens there (the connection met itself)")
        else:
            self._connected()

    def _is_connected_to_itself(self) -> bool:
        # TCP on one machine can connect a socket to its own ephemeral port.
        return self._sock.family != socket.AF_UNIX and self._sock.getsockname() == self._sock.getpeername()

    def _connected(self) -> None:
        self._timer.cancel()
        self._loop.forget(self._sock)
        self._handshake = HandshakeIO(self._loop, self._sock, self._machine, self._handshake_ended, self._handshake_s)

    def _handshake_ended(self, handshake: HandshakeIO, error: str | None) -> None:
        self._report(None if error else handshake.sock, error)

    def _fail(self, reason: str) -> None:
        self._timer.cancel()
        self._loop.forget(self._sock)
        self._sock.close()
        self._report(None, reason)

    def _report(self, sock: socket.socket | None, error: str | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(sock, error)
