"""``as_buffer``: what an array of any library is in memory, or an error that says what is wrong with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import InvalidArgument
from .types import DTYPE_OF, DType


def as_buffer(array: Any, writable: bool, name: str) -> tuple[int, int, DType]:
    """Address, element count and dtype of a contiguous array in host memory.

    Accepts NumPy arrays (ml_dtypes' types too), objects with ``__array_interface__``, DLPack on the CPU, and the
    buffer protocol. ``name`` is the argument's name for messages. Raises InvalidArgument; never copies.
    """
    if isinstance(array, np.ndarray):
        return _from_numpy(array, writable, name)
    if type(array).__module__.split(".")[0] == "cupy" or hasattr(array, "__cuda_array_interface__"):
        raise InvalidArgument(
            f"{name} lies in the memory of a GPU ({type(array).__module__}.{type(array).__name__}), and this communicator "
            "works on host memory: pass a NumPy array (cupy.asnumpy(x)), or use a communicator made with init(device='cuda')"
        )
    if hasattr(array, "__array_interface__"):
        return _from_numpy(np.asarray(array), writable, name)
    if hasattr(array, "__dlpack__"):
        try:
            return _from_numpy(np.from_dlpack(array), writable, name)
        except (BufferError, TypeError, RuntimeError) as error:
            raise InvalidArgument(f"{name} ({type(array).__name__}) is not readable through DLPack: {error}") from None
    try:
        view = memoryview(array)
    except TypeError:
        raise InvalidArgument(
            f"{name} is a {type(array).__name__}: an array with the buffer protocol, DLPack or __array_interface__ is needed"
        ) from None
    return _from_numpy(np.asarray(view), writable, name)


def _from_numpy(array: np.ndarray[Any, Any], writable: bool, name: str) -> tuple[int, int, DType]:
    dtype = array.dtype
    if not dtype.isnative:
        raise InvalidArgument(
            f"{name} has dtype {dtype.str}, which is not of this machine's byte order: convert it with "
            f"{name}.astype({dtype.newbyteorder('=').str!r})"
        )
    found = DTYPE_OF.get(dtype)
    if found is None:
        raise InvalidArgument(
            f"{name} has dtype {dtype}, which cannot be sent; supported: {', '.join(d.name.lower() for d in DType)}"
        )
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{name} is not contiguous: shape {array.shape}, strides {array.strides} bytes, itemsize {dtype.itemsize}; "
            f"pass numpy.ascontiguousarray({name})"
        )
    if writable and not array.flags.writeable:
        raise InvalidArgument(f"{name} is read-only (shape {array.shape}, {dtype}): the result cannot be stored there")
    return array.ctypes.data, array.size, found
