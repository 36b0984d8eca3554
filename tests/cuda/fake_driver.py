"""The tests' CUDA driver from Python: its knobs and books, streams, and CuPy arrays in its memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

NON_BLOCKING = 1
THINGS = ("contexts", "device blocks", "pinned blocks", "registrations", "imports", "streams", "events", "modules")


class FakeDriver:
    """What a program does with CUDA beside r2ccl: memory and streams of its own, in the GPUs' primary contexts."""

    def __init__(self, library: str) -> None:
        self.library = library
        self._lib = lib = ctypes.CDLL(library)
        lib.fake_cuda_host_address.restype = ctypes.c_void_p
        lib.fake_cuda_host_address.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
        lib.fake_cuda_count.restype = ctypes.c_long
        lib.fake_cuda_launches.restype = ctypes.c_long
        lib.fake_cuda_flushes.restype = ctypes.c_long
        self._check("cuInit", 0)

    def _check(self, name: str, *arguments: Any) -> None:
        result = getattr(self._lib, name)(*arguments)
        assert result == 0, f"{name} of the tests' driver returned {result}"

    @contextmanager
    def context(self, ordinal: int) -> Iterator[None]:
        """The GPU's primary context is current, as CuPy has it."""
        context = ctypes.c_void_p()
        self._check("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        self._check("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._check("cuCtxPopCurrent_v2", ctypes.byref(context))
            self._check("cuDevicePrimaryCtxRelease_v2", ordinal)

    def set(self, knob: str, value: int) -> None:
        """Sets ``FAKE_CUDA_<knob>`` now."""
        assert self._lib.fake_cuda_set(knob.encode(), ctypes.c_long(value)) == 0, f"no knob {knob}"

    def count(self, thing: str) -> int:
        """How many of THINGS exist."""
        return int(self._lib.fake_cuda_count(thing.encode()))

    def flushes(self) -> int:
        """How often it was asked to wait for what NICs wrote."""
        return int(self._lib.fake_cuda_flushes())

    def launches(self) -> int:
        """How many kernels were launched so far."""
        return int(self._lib.fake_cuda_launches())

    def allocate(self, nbytes: int, ordinal: int = 0) -> int:
        """Address of memory of a GPU."""
        address = ctypes.c_uint64()
        with self.context(ordinal):
            self._check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        return address.value

    def release(self, address: int, ordinal: int = 0) -> None:
        """Gives it back; waits for all streams, as the driver does."""
        with self.context(ordinal):
            self._check("cuMemFree_v2", ctypes.c_uint64(address))

    def bytes_at(self, address: int, nbytes: int) -> np.ndarray[Any, Any]:
        """The bytes of a GPU's memory, in place."""
        where = self._lib.fake_cuda_host_address(address, nbytes)
        assert where, f"no GPU reaches {nbytes} bytes at {address:#x}"
        return np.ctypeslib.as_array(ctypes.cast(where, ctypes.POINTER(ctypes.c_uint8)), (nbytes,))


class UserStream:
    """A stream as a user's program makes one. ``ptr`` is the handle, as CuPy names it."""

    def __init__(self, driver: FakeDriver, ordinal: int = 0, flags: int = NON_BLOCKING) -> None:
        self._driver, self._lib, self.ordinal = driver, driver._lib, ordinal
        handle = ctypes.c_void_p()
        with driver.context(ordinal):
            driver._check("cuStreamCreate", ctypes.byref(handle), flags)
        assert handle.value
        self.ptr: int = handle.value
        self.close = weakref.finalize(self, self._destroy, driver, self.ptr)

    @staticmethod
    def _destroy(driver: FakeDriver, ptr: int) -> None:
        driver._check("cuStreamDestroy_v2", ctypes.c_void_p(ptr))

    def delay(self, seconds: float) -> None:
        """What is put on the stream from now on begins so much later."""
        with self._driver.context(self.ordinal):
            self._driver._check("fake_cuda_delay", ctypes.c_void_p(self.ptr), ctypes.c_long(int(seconds * 1e6)))

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Stands for any work on the stream that reads and writes memory."""
        with self._driver.context(self.ordinal):
            arguments = ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), ctypes.c_void_p(self.ptr)
            self._driver._check("cuMemcpyAsync", *arguments)

    def capture(self, on: bool) -> None:
        """Begins or ends what stands for a graph's capture."""
        self._driver._check("fake_cuda_capture", ctypes.c_void_p(self.ptr), int(on))

    def idle(self) -> bool:
        """Everything on the stream is done."""
        with self._driver.context(self.ordinal):
            return bool(self._lib.cuStreamQuery(ctypes.c_void_p(self.ptr)) == 0)

    def synchronize(self) -> None:
        """Waits for everything on the stream."""
        with self._driver.context(self.ordinal):
            self._driver._check("cuStreamSynchronize", ctypes.c_void_p(self.ptr))


class _Block:
    """Owns memory for as long as arrays refer to it."""


class CupyOnFake:
    """Real ``cupy.ndarray`` objects in the tests' driver's memory. CuPy itself cannot compute there: this fills and reads."""

    def __init__(self, driver: FakeDriver) -> None:
        import cupy

        self._cupy, self.driver = cupy, driver

    def empty(self, shape: Any, dtype: Any, ordinal: int = 0) -> Any:
        """An array that is not initialised. Its memory goes with the last array that refers to it."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        address = self.driver.allocate(nbytes, ordinal)
        owner = _Block()
        weakref.finalize(owner, self.driver.release, address, ordinal)
        # With the device named, CuPy asks no driver.
        memory = self._cupy.cuda.UnownedMemory(address, max(nbytes, 1), owner, ordinal)
        return self._cupy.ndarray(shape, dtype=dtype, memptr=self._cupy.cuda.MemoryPointer(memory, 0))

    def view(self, array: Any) -> np.ndarray[Any, Any]:
        """The elements of a contiguous array, in place."""
        if array.nbytes == 0:
            return np.empty(array.shape, array.dtype)
        return self.driver.bytes_at(array.data.ptr, array.nbytes).view(array.dtype).reshape(array.shape)

    def asarray(self, values: Any, dtype: Any = None, ordinal: int = 0) -> Any:
        """A copy on a GPU."""
        values = np.ascontiguousarray(values, dtype)
        array = self.empty(values.shape, values.dtype, ordinal)
        self.view(array)[...] = values
        return array

    def asnumpy(self, array: Any) -> np.ndarray[Any, Any]:
        """A copy on the host, of what is there now: the caller has waited."""
        return self.view(array).copy()
