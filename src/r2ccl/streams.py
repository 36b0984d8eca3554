"""``stream_handle``: which stream of a GPU a call is ordered on, as the number that the driver knows it by."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .errors import InvalidArgument

LEGACY, PER_THREAD = 1, 2  # CUDA's own numbers of the default streams; 0 is the legacy one, too


def stream_handle(stream: Any, arrays: Iterable[Any] = ()) -> int:
    """The handle of ``stream``: a ``cupy.cuda.Stream``, an object with ``__cuda_stream__``, one of PyTorch (``cuda_stream``)
    or Numba (``handle``), or the number itself.

    None: the stream that an array of another library names in ``__cuda_array_interface__``; else CuPy's current stream
    if CuPy is loaded; else the legacy default stream. Raises InvalidArgument for anything else.
    """
    if stream is None:
        return _default(arrays)
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream < 0:
            raise InvalidArgument(
                f"stream = {stream}: a stream's handle, 0, {LEGACY} (legacy) or {PER_THREAD} (per thread)"
            )
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, handle = protocol() if callable(protocol) else protocol
        if version != 0:
            raise InvalidArgument(
                f"stream = {stream!r}: version {version} of __cuda_stream__; this build knows version 0"
            )
        return int(handle)
    for name in ("ptr", "cuda_stream", "handle"):
        value = getattr(stream, name, None)
        value = getattr(value, "value", value)  # Numba's is a ctypes number
        if isinstance(value, int):
            return value
    raise InvalidArgument(
        f"stream = {stream!r} ({type(stream).__name__}): a cupy.cuda.Stream, an object with __cuda_stream__ or a handle (int)"
    )


def _default(arrays: Iterable[Any]) -> int:
    for array in arrays:
        if array is None or _of_cupy(array):
            continue
        interface = getattr(array, "__cuda_array_interface__", None)
        named = interface.get("stream") if interface is not None else None
        if named is not None:
            return int(named)
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        try:
            return int(cupy.cuda.get_current_stream().ptr)
        except RuntimeError:  # its runtime finds no GPU, though the driver that this communicator uses has one
            pass
    return 0


def _of_cupy(array: Any) -> bool:
    return type(array).__module__.split(".")[0] == "cupy"
