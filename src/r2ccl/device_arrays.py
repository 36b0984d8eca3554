"""``as_device_buffer``: what an array is in the memory of a GPU, or an error that says what is wrong with it."""

from __future__ import annotations

import math
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from .errors import InvalidArgument
from .types import DTYPE_OF, DType

_DL_CUDA, _DL_MANAGED = 2, 13
# DLPack's type codes; what is left out NumPy has no type for.
_DL_KINDS = {
    (0, 8): np.int8, (0, 16): np.int16, (0, 32): np.int32, (0, 64): np.int64,
    (1, 8): np.uint8, (1, 16): np.uint16, (1, 32): np.uint32, (1, 64): np.uint64,
    (2, 16): np.float16, (2, 32): np.float32, (2, 64): np.float64, (4, 16): ml_dtypes.bfloat16,
    (5, 64): np.complex64, (5, 128): np.complex128, (6, 8): np.bool_,
    (10, 8): ml_dtypes.float8_e4m3fn, (12, 8): ml_dtypes.float8_e5m2,
}  # fmt: skip


class DeviceLike(Protocol):
    """What is needed to know of the communicator's device."""

    @property
    def ordinal(self) -> int: ...
    @property
    def name(self) -> str: ...
    def pointer(self, address: int) -> tuple[str, int, int]: ...


def as_device_buffer(array: Any, writable: bool, name: str, device: DeviceLike) -> tuple[int, int, DType]:
    """Address, element count and dtype of a contiguous array on ``device``.

    CuPy's arrays are read by their attributes, others by ``__cuda_array_interface__``, then DLPack. ``name`` is the
    argument's name for messages. Raises InvalidArgument; never copies, and puts nothing on a stream.
    """
    if type(array).__module__.split(".")[0] == "cupy" and hasattr(array, "data"):
        if array.device.id != device.ordinal:
            raise _elsewhere(name, f"cuda:{array.device.id}", device)
        if not array.flags.c_contiguous:
            raise InvalidArgument(
                f"{name} is not contiguous: shape {array.shape}, strides {array.strides} bytes; pass "
                f"cupy.ascontiguousarray({name})"
            )
        return int(array.data.ptr), int(array.size), _dtype(name, array.dtype)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(array, interface, writable, name, device)
    if isinstance(array, (np.ndarray, memoryview, bytes, bytearray)) or not hasattr(array, "__dlpack_device__"):
        raise InvalidArgument(
            f"{name} ({type(array).__module__}.{type(array).__name__}) lies in host memory, and this communicator works on "
            f"{device.name}: pass cupy.asarray({name}), or use a communicator made with init(device='cpu')"
        )
    return _from_dlpack(array, writable, name, device)


def _from_interface(
    array: Any, interface: dict[str, Any], writable: bool, name: str, device: DeviceLike
) -> tuple[int, int, DType]:
    address, read_only = interface["data"]
    shape = tuple(interface["shape"])
    # The interface has no names for the types of ml_dtypes: the array itself may.
    dtype = np.dtype(interface["typestr"])
    own = getattr(array, "dtype", None)
    if dtype.kind == "V" and isinstance(own, np.dtype):
        dtype = own
    found = _dtype(name, dtype)
    count = math.prod(shape)
    strides = interface.get("strides")
    if strides is not None and count and not _dense(shape, strides, dtype.itemsize):
        raise InvalidArgument(
            f"{name} is not contiguous: shape {shape}, strides {strides} bytes, itemsize {dtype.itemsize}"
        )
    if writable and read_only:
        raise InvalidArgument(f"{name} is read-only (shape {shape}, {dtype}): the result cannot be stored there")
    if interface.get("mask") is not None:
        raise InvalidArgument(f"{name} has a mask: only whole arrays can be sent")
    if count:
        kind, ordinal, _ = device.pointer(address)
        if kind not in ("device", "managed"):
            raise _elsewhere(name, "the host", device)
        if kind == "device" and ordinal != device.ordinal:
            raise _elsewhere(name, f"cuda:{ordinal}", device)
    return int(address or 0), count, found


def _from_dlpack(array: Any, writable: bool, name: str, device: DeviceLike) -> tuple[int, int, DType]:
    kind, ordinal = array.__dlpack_device__()
    if int(kind) not in (_DL_CUDA, _DL_MANAGED) or int(ordinal) != device.ordinal:
        raise _elsewhere(
            name, f"cuda:{ordinal}" if int(kind) == _DL_CUDA else f"DLPack device ({int(kind)}, {ordinal})", device
        )
    # -1: nothing is put on a stream; the call is ordered on the one that it is given.
    from ._native.core import dlpack_view  # which imports this module

    try:
        capsule = array.__dlpack__(stream=-1)
    except (BufferError, TypeError, RuntimeError) as error:
        raise InvalidArgument(f"{name} ({type(array).__name__}) is not readable through DLPack: {error}") from None
    address, code, bits, lanes, shape, strides, read_only = dlpack_view(capsule)
    kind_of = _DL_KINDS.get((code, bits)) if lanes == 1 else None
    if kind_of is None:
        raise InvalidArgument(f"{name} has DLPack type (code {code}, {bits} bits, {lanes} lanes), which cannot be sent")
    if strides is not None and not _dense(shape, strides, 1):
        raise InvalidArgument(f"{name} is not contiguous: shape {shape}, strides {strides} elements")
    if writable and read_only:
        raise InvalidArgument(f"{name} is read-only (shape {shape}): the result cannot be stored there")
    return address, math.prod(shape), _dtype(name, np.dtype(kind_of))


def _dense(shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> bool:
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


def _dtype(name: str, dtype: np.dtype[Any]) -> DType:
    found = DTYPE_OF.get(dtype)
    if found is None or not dtype.isnative:
        raise InvalidArgument(
            f"{name} has dtype {dtype}, which cannot be sent; supported: {', '.join(d.name.lower() for d in DType)}"
        )
    return found


def _elsewhere(name: str, where: str, device: DeviceLike) -> InvalidArgument:
    return InvalidArgument(
        f"{name} lies on {where}, and this communicator works on {device.name}: copy it there, or make a communicator "
        f"with init(device=...) for each GPU"
    )
