"""Where the sockets for r2ccl-top lie: a directory of this user's that nobody else can enter."""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from pathlib import Path

SUFFIX = ".sock"
_HIDDEN = ".new"
_YOUNG_S = 10.0
_MAX_PATH = 100  # what a Unix address holds is a little more
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def directory() -> Path:
    """$XDG_RUNTIME_DIR/r2ccl, or /tmp/r2ccl-<uid> where there is none. It need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # Under sudo the variable may still be another user's.
    usable = os.path.isabs(runtime) and len(runtime) <= _MAX_PATH - 40 and os.path.isdir(runtime)
    if usable and os.stat(runtime).st_uid == os.geteuid():
        return Path(runtime) / "r2ccl"
    return Path(f"/tmp/r2ccl-{os.geteuid()}")


def make(path: Path) -> None:
    """Create the directory, with mode 0700. Raises OSError when it is there and is not ours alone."""
    path.mkdir(mode=0o700, exist_ok=True)
    if reason := not_ours(path):
        raise PermissionError(f"{path} {reason}")


def not_ours(path: Path) -> str:
    """Why sockets in the directory must not be trusted; empty: they may."""
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode):
        return "is not a directory"
    if about.st_uid != os.geteuid():
        return f"belongs to user {about.st_uid}"
    if about.st_mode & 0o077:
        return f"has mode {stat.S_IMODE(about.st_mode):04o}, not 0700"
    return ""


def listen(path: Path) -> socket.socket:
    """A listening socket at the path, mode 0600. It appears there only when it can be connected to."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    hidden = path.with_suffix(_HIDDEN)
    try:
        sock.bind(str(hidden))
        hidden.chmod(0o600)
        sock.listen(8)
        hidden.rename(path)
    except BaseException:
        sock.close()
        hidden.unlink(missing_ok=True)
        raise
    return sock


def connect(path: Path, timeout_s: float) -> socket.socket | None:
    """A connection to the process behind the path; None when there is none any more: then the socket is removed."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        sock.connect(str(path))
        if may_talk(sock):
            return sock
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
    except OSError:  # it is there and too busy
        pass
    sock.close()
    return None


def may_talk(sock: socket.socket) -> bool:
    """The process at the other end belongs to this user, or to root."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)[1] in (os.geteuid(), 0)


def remove_stale(path: Path) -> None:
    """Removes the sockets of processes that are gone."""
    young = time.time() - _YOUNG_S
    for entry in [*path.glob("*" + SUFFIX), *path.glob("*" + _HIDDEN)]:
        # One that does not listen yet looks as if nobody were there.
        if entry.suffix == _HIDDEN and _made_s(entry) > young:
            continue
        if not _alive(entry) and (sock := connect(entry, 0.1)) is not None:
            sock.close()  # the number belongs to a process of another namespace, which lives


def _made_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _alive(path: Path) -> bool:
    """A process with the number in the file's name lives; it is not looked at any closer."""
    try:
        os.kill(int(path.name.split("-")[0]), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:
        pass
    return True
