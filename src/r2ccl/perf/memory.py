"""Where the buffers of a measurement lie, and how the host fills and reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .data import Array


class HostMemory:
    """Buffers are NumPy arrays, and their own images."""

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Any:
        return np.zeros(count, dtype)

    def image(self, buffer: Any) -> Array:
        """A host array of the buffer's size, to be filled and stored."""
        image: Array = buffer
        return image

    def store(self, buffer: Any, image: Array) -> None:
        """What the image holds is put into the buffer, before anything that is called later."""

    def load(self, buffer: Any) -> Array:
        """What the buffer holds, when all that was called before is done."""
        return self.image(buffer)

    def finish(self, work: Any) -> None:
        """Wait for a call; calls without a handle have ended when they return."""
        if work is not None:
            work.wait()


class CudaMemory(HostMemory):
    """Buffers are CuPy arrays, calls are ordered on its current stream."""

    def __init__(self, cupy: Any, ordinal: int) -> None:
        self._cupy = cupy
        cupy.cuda.Device(ordinal).use()

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Any:
        return self._cupy.zeros(count, dtype)

    def image(self, buffer: Any) -> Array:
        return np.empty(buffer.shape, buffer.dtype)

    def store(self, buffer: Any, image: Array) -> None:
        buffer.set(image)

    def load(self, buffer: Any) -> Array:
        loaded: Array = buffer.get()
        return loaded

    def finish(self, work: Any) -> None:
        if work is not None:
            work.synchronize()
        self._cupy.cuda.get_current_stream().synchronize()


def memory_of(device: str) -> HostMemory:
    """For a communicator's ``device``. Raises InvalidArgument where CuPy is missing."""
    if device == "cpu":
        return HostMemory()
    try:
        import cupy
    except ImportError as error:
        raise InvalidArgument(f"--device {device} needs CuPy: pip install 'r2ccl[cuda13]' ({error})") from None
    return CudaMemory(cupy, int(device.partition(":")[2]))
