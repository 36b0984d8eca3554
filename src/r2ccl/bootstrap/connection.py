"""One connection on its way, and the options that it has when it is up."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from .dial import Dial
from .wanted import Wanted

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))


@dataclass
class Connection:
    """One wanted connection on its way: up with a socket, given up with a reason, or neither yet."""

    wanted: Wanted
    sock: socket.socket | None = None
    attempt: int = 0  # the dialler's count; both ends must hold the same one
    run: int = 0  # the dialler's, see Around.runs: its attempts count from there
    reason: str = ""
    given_up: bool = False
    handed_over: bool = False  # its socket is somebody else's now
    segment: int | None = None  # shared memory that came over this control connection
    needs_segment: bool = False
    dial: Dial | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be waited for."""
        return (
            self.given_up
            or self.handed_over
            or (self.sock is not None and (self.segment is not None or not self.needs_segment))
        )

    def close(self) -> None:
        """Release its descriptors."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        if self.segment is not None:
            os.close(self.segment)
            self.segment = None


def prepare(sock: socket.socket) -> None:
    """Options of every connection at hand-over: non-blocking, no delay, keepalive against idle-dropping firewalls."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
