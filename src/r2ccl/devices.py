"""``device_of``: what ``init(device=...)`` says, and the devices of this process."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from ._native.core import CudaDevice
from .errors import InvalidArgument

_open: dict[tuple[str, int], CudaDevice] = {}


def device_of(device: Any, library: str) -> CudaDevice | None:
    """The device of a communicator; None: the host. ``library``: the driver (``Config.cuda_library``).

    None and "cpu": the host. "cuda": CuPy's current device if CuPy is loaded, else the first. "cuda:1", 1, and objects
    with an ``id`` such as ``cupy.cuda.Device``: that one. A GPU is opened once in a process and serves all its
    communicators. Raises InvalidArgument, saying what is missing, if it cannot be used.
    """
    ordinal = _ordinal(device)
    if ordinal is None:
        return None
    key = (library, ordinal)
    if key not in _open:
        _open[key] = CudaDevice(ordinal, library)
    return _open[key]


def _ordinal(device: Any) -> int | None:
    wrong = InvalidArgument(f"device = {device!r}: 'cpu', 'cuda', 'cuda:N', the number of a GPU, or a cupy.cuda.Device")
    if device is None:
        return None
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        if device == "cpu":
            return None
        if kind != "cuda" or (colon and not number.isdecimal()):
            raise wrong
        return int(number) if colon else _current()
    if isinstance(device, bool):
        raise wrong
    ordinal = device if isinstance(device, int) else getattr(device, "id", None)
    if not isinstance(ordinal, int) or ordinal < 0:
        raise wrong
    return ordinal


def _current() -> int:
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        try:
            return int(cupy.cuda.Device().id)
        except RuntimeError:  # its runtime finds no GPU
            pass
    return 0


def _forget() -> None:
    """After a fork, in the child: the driver's state is the parent's, and of no use here."""
    for device in _open.values():
        device.forget()
    _open.clear()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _close() -> None:
    """At exit, after the communicators: the handler that closes those is registered later, so it runs first."""
    for device in _open.values():
        device.close()
    _open.clear()
