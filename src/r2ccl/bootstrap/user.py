"""Which user is at the other end of a connection on this machine."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from .address import peer_credentials

_TABLES = {4: "tcp", 16: "tcp6"}


def other_user(sock: socket.socket) -> str | None:
    """Why the other end is not this process's user; None when it is, or when that cannot be told.

    AF_UNIX: by the kernel's credentials. TCP on loopback: by the owner in the kernel's table of connections, so that
    other users of a shared machine stay out of a job that has no secret.
    """
    uid = peer_credentials(sock)[1] if sock.family == socket.AF_UNIX else _owner(sock)
    if uid is None or uid == os.getuid():
        return None
    return f"it runs as user {uid}, this rank as user {os.getuid()}"


def _owner(sock: socket.socket) -> int | None:
    """User id of the process that holds the other end of a TCP connection on loopback."""
    try:
        there, here = _entry(sock.family, sock.getpeername()), _entry(sock.family, sock.getsockname())
        table = Path("/proc/net", _TABLES[4 if sock.family == socket.AF_INET else 16]).read_text()
    except OSError:
        return None
    for line in table.splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == [there, here]:
            return int(fields[7])
    return None


def _entry(family: int, name: tuple[object, ...]) -> str:
    """An address as the table shows it: words in the machine's byte order, then the port."""
    raw = socket.inet_pton(family, str(name[0]).partition("%")[0])
    words = struct.unpack(f"={len(raw) // 4}I", raw)
    return "".join(f"{word:08X}" for word in words) + f":{int(str(name[1])):04X}"
