"""Shared memory between two ranks of one host: a sealed memfd, passed over their control socket.

Nothing has a name, so nothing is left behind, however the processes end.
"""

from __future__ import annotations

import fcntl
import os
import socket

from ..config import Config
from ..errors import BootstrapError

_HEAD_BYTES = 4096  # per direction: cursors of the ring
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MARK = b"\x01"


def segment_bytes(config: Config) -> int:
    """Size of one pair's segment: a ring and a page of cursors for each direction."""
    return 2 * (config.shm_ring_bytes + _HEAD_BYTES)


def create_segment(name: str, size_bytes: int) -> int:
    """A zeroed memfd of fixed size. ``BootstrapError`` when the system refuses."""
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise BootstrapError(f"memfd_create: {error.strerror}; set R2CCL_SHM=0 to do without shared memory") from error
    try:
        os.ftruncate(fd, size_bytes)
        # The size is final, so neither side can make the other fault by truncating it.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        os.close(fd)
        raise BootstrapError(
            f"shared memory of {size_bytes} bytes: {error.strerror}; lower R2CCL_SHM_RING_BYTES or set R2CCL_SHM=0"
        ) from error
    return fd


def send_segment(sock: socket.socket, fd: int) -> None:
    """Pass a segment to the peer at the other end of an AF_UNIX socket."""
    socket.send_fds(sock, [_MARK], [fd])


def receive_segment(sock: socket.socket, size_bytes: int) -> int:
    """The segment that the peer passes. ``BlockingIOError``: not yet; ``BootstrapError``: it is something else."""
    data, fds, _flags, _address = socket.recv_fds(sock, len(_MARK), 1)
    if data != _MARK or len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise BootstrapError(f"expected one shared segment, got {len(fds)} descriptors and {data!r}")
    fd = fds[0]
    os.set_inheritable(fd, False)
    try:
        actual = os.fstat(fd).st_size
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        os.close(fd)
        raise BootstrapError(f"the descriptor that the peer passed is no memfd ({error.strerror})") from error
    if actual != size_bytes or seals & _SEALS != _SEALS:
        os.close(fd)
        raise BootstrapError(f"the peer's segment has {actual} bytes and seals {seals:#x}, expected {size_bytes} bytes")
    return fd
