"""What a communicator of a GPU accepts as an array or a stream, and what it says about everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_driver import CupyOnFake, UserStream
from mp_checks import assert_equal
from on_device import on_gpus

import r2ccl
from r2ccl import InvalidArgument, ReduceOp

pytestmark = pytest.mark.timeout(60)


class Interface:
    """An array that has nothing but ``__cuda_array_interface__``."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "data": (array.data.ptr, False), "shape": array.shape, "typestr": array.dtype.str, "strides": None, "version": 3,
        } | changes  # fmt: skip


class DlPack:
    """An array that has nothing but DLPack."""

    def __init__(self, array: Any, where: tuple[int, int] = (2, 0)) -> None:
        self.array, self.where = array, where

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.where

    def __dlpack__(self, stream: int | None = None) -> Any:
        assert stream == -1  # nothing is to be waited for: the call has a stream
        # NumPy looks at no element: the address alone is what counts.
        import ctypes

        place = ctypes.cast(self.array.data.ptr, ctypes.POINTER(ctypes.c_uint8))
        flat = np.ctypeslib.as_array(place, (self.array.nbytes,))
        return flat.view(self.array.dtype).reshape(self.array.shape).__dlpack__()


def refused(call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def kinds_of_arrays(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    def total(wrap: Callable[[Any], Any], dtype: Any) -> None:
        mine, out = arrays.asarray(np.full(1000, comm.rank + 1), dtype), arrays.empty(1000, dtype)
        comm.all_reduce(wrap(mine), wrap(out)).synchronize()
        assert_equal(arrays.asnumpy(out), np.full(1000, 3).astype(dtype), f"{wrap} {dtype}")

    for dtype in (np.float32, np.int64, np.complex64, np.float16):
        for wrap in (lambda a: a, Interface, DlPack):
            total(wrap, dtype)
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        total(lambda a: a, dtype)
    # Shapes, views of contiguous parts, no elements at all.
    grid = arrays.asarray(np.full((6, 50), comm.rank, np.float32))
    comm.all_reduce(grid[2:4]).synchronize()
    assert_equal(arrays.asnumpy(grid)[2:4], np.ones((2, 50), np.float32), "rows")
    assert_equal(arrays.asnumpy(grid)[:2], np.full((2, 50), comm.rank, np.float32), "rows before")
    comm.all_reduce(arrays.empty(0, np.float32)).synchronize()
    comm.all_reduce(Interface(arrays.empty((0, 3), np.float32), data=(0, False))).synchronize()


def test_cupy_cuda_array_interface_and_dlpack(cuda_library: str) -> None:
    on_gpus(kinds_of_arrays, 2, cuda_library)


def wrong_arrays(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    x, grid = arrays.asarray(np.ones(12, np.float32)), arrays.asarray(np.ones((3, 4), np.float32))
    refused(lambda: comm.all_reduce(np.ones(3, np.float32)), "send", "host memory", "cuda:0", "cupy.asarray(send)")
    refused(lambda: comm.all_reduce([1.0, 2.0]), "host memory")
    other = arrays.asarray(np.ones(12, np.float32), ordinal=1)
    refused(lambda: comm.all_reduce(other), "cuda:1", "cuda:0")
    refused(lambda: comm.all_reduce(Interface(other)), "cuda:1", "cuda:0")
    refused(lambda: comm.all_reduce(DlPack(other, (2, 1))), "cuda:1", "cuda:0")
    refused(lambda: comm.all_reduce(DlPack(x, (1, 0))), "(1, 0)", "cuda:0")
    refused(lambda: comm.all_reduce(grid.T), "not contiguous", "cupy.ascontiguousarray(send)")
    refused(lambda: comm.all_reduce(Interface(grid, shape=(3, 2), strides=(16, 4))), "not contiguous")
    refused(lambda: comm.all_reduce(Interface(x, data=(x.data.ptr, True))), "read-only")
    refused(lambda: comm.all_reduce(Interface(x, typestr=">f4")), ">f4")
    host = np.ones(12, np.float32)
    refused(lambda: comm.all_reduce(Interface(x, data=(host.ctypes.data, False))), "the host", "cuda:0")
    refused(lambda: comm.all_reduce(x[:4], x[5:]), "4 elements", "7")
    refused(lambda: comm.all_reduce(x[:6], x[3:9]), "overlap")
    refused(lambda: comm.all_reduce(arrays.asarray(np.ones(3, np.complex64)), op=ReduceOp.MIN), "complex64")
    refused(lambda: comm.all_reduce(x, stream="default"), "stream", "'default'")
    refused(lambda: comm.all_reduce(x, stream=-5), "-5")
    comm.all_reduce(x).synchronize()  # nothing was sent, and the communicator is well
    assert_equal(arrays.asnumpy(x), np.full(12, comm.size, np.float32), "after all that")


def test_wrong_arrays_are_refused_with_their_remedy(cuda_library: str) -> None:
    on_gpus(wrong_arrays, 2, cuda_library)


def on_the_host(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    x = arrays.asarray(np.ones(12, np.float32))
    refused(lambda: comm.all_reduce(x), "GPU", "host memory")
    refused(lambda: comm.all_reduce(np.ones(3), stream=0), "init(device='cuda')")


def test_a_communicator_of_the_host_refuses_gpu_arrays(cuda_library: str) -> None:
    on_gpus(on_the_host, 1, cuda_library, device="cpu")


def every_kind_of_stream(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    import cupy

    own = UserStream(arrays.driver)

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, own.ptr

    x = arrays.asarray(np.ones(100, np.float32))
    streams = [own.ptr, own, cupy.cuda.ExternalStream(own.ptr, 0), Protocol(), 0, 1, 2, None]
    for i, stream in enumerate(streams):
        comm.all_reduce(x, stream=stream).synchronize()
        assert_equal(arrays.asnumpy(x), np.full(100, float(comm.size ** (i + 1)), np.float32), f"stream {stream!r}")
    # What an array says of the stream that it comes from is heeded where no other is given.
    own.delay(0.2)
    work = comm.all_reduce(Interface(x, stream=own.ptr))
    assert not work.done() and work.stream == own.ptr
    own.synchronize()
    assert work.done()


def test_streams_as_objects_numbers_and_by_default(cuda_library: str) -> None:
    on_gpus(every_kind_of_stream, 2, cuda_library)


def references(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    stream = UserStream(arrays.driver)
    stream.delay(0.3)
    x = arrays.asarray(np.ones(1000, np.float32))
    blocks = arrays.driver.count("device blocks")
    comm.all_reduce(x, stream=stream)
    del x
    assert arrays.driver.count("device blocks") == blocks  # the call has not begun
    stream.synchronize()
    comm.barrier()  # the next call lets go of what is done
    assert arrays.driver.count("device blocks") == blocks - 1


def test_arrays_live_until_their_call_is_done(cuda_library: str) -> None:
    on_gpus(references, 2, cuda_library)


def what_init_says(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    import cupy

    config = comm.config.with_(top=False)
    for device in ("cuda:1", 1, cupy.cuda.Device(1)):
        with r2ccl.init(device=device, config=config) as other:
            assert other.device == "cuda:1"
            x = arrays.asarray(np.ones(5, np.float32), ordinal=1)
            other.all_reduce(x).synchronize()
    with r2ccl.init(device="cuda", config=config) as other:
        assert other.device == "cuda:0"
    for wrong in ("gpu", "cuda:x", -1, True, 1.5):
        refused(lambda wrong=wrong: r2ccl.init(device=wrong, config=config), "device", repr(wrong), "cuda:N")
    refused(lambda: r2ccl.init(device="cuda:9", config=config), "9")
    refused(lambda: r2ccl.init(device="cuda", config=config.with_(cuda_library="/no/such/libcuda.so")), "/no/such")


def test_devices_by_name_number_and_object(cuda_library: str) -> None:
    def alone(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
        import os

        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        what_init_says(comm, arrays)

    on_gpus(alone, 1, cuda_library)
