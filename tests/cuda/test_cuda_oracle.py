"""The GPU's reductions against NumPy and ml_dtypes: every dtype and operator, on random bit patterns. On whatever driver
R2CCL_CUDA_LIBRARY names: on a real GPU this is the test of its kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from test_reduce_oracle import COMBINATIONS, WIDE_DST, assert_same, random_bits, reference

from r2ccl import InvalidArgument
from r2ccl._native import core
from r2ccl.types import LOW_PRECISION, NUMPY_OF, DType, ReduceOp

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore::RuntimeWarning")]

Array = np.ndarray[Any, Any]
COUNTS = (0, 1, 15, 16, 257, 4099)
GUARD = 0xA5
MARGIN = 64
SIGNIFICANT = {DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.FLOAT8_E4M3FN: 4, DType.FLOAT8_E5M2: 3}  # bits


@pytest.fixture(scope="module")
def device(cuda_library: str) -> Iterator[core.CudaDevice]:
    device = core.CudaDevice(0, cuda_library)
    yield device
    assert device.failure() is None
    device.close()


class Staging:
    """Pinned memory that NumPy and the GPU work on alike."""

    def __init__(self, device: core.CudaDevice, nbytes: int) -> None:
        import ctypes

        self.device, self.address = device, device.allocate(nbytes, staging=True)
        self.bytes = np.ctypeslib.as_array(ctypes.cast(self.address, ctypes.POINTER(ctypes.c_uint8)), (nbytes,))

    def place(self, array: Array, offset: int) -> int:
        """Copies the array to so many bytes behind an aligned address, with guards around it; returns the address."""
        self.bytes[: 2 * MARGIN + offset + array.nbytes] = GUARD
        self.bytes[MARGIN + offset : MARGIN + offset + array.nbytes] = array.view(np.uint8)
        return self.address + MARGIN + offset

    def take(self, count: int, dtype: Any, offset: int) -> Array:
        """A copy of what lies there; the guards must be whole."""
        end = MARGIN + offset + count * np.dtype(dtype).itemsize
        assert (self.bytes[: MARGIN + offset] == GUARD).all() and (self.bytes[end : end + MARGIN] == GUARD).all()
        return self.bytes[MARGIN + offset : end].copy().view(dtype)


@pytest.fixture
def staging(device: core.CudaDevice) -> Iterator[Callable[[int], Staging]]:
    made: list[Staging] = []

    def make(nbytes: int) -> Staging:
        made.append(Staging(device, nbytes))
        return made[-1]

    yield make
    for memory in made:
        device.release(memory.address, staging=True)


def finish(device: core.CudaDevice, queue: int = core.QUEUE_LOCAL) -> None:
    mark = device.mark(queue)
    deadline = time.monotonic() + 30
    while device.passed(queue) < mark:
        assert device.failure() is None, device.failure()
        assert time.monotonic() < deadline, "the queue does not get on"


@pytest.mark.parametrize(("dtype", "op"), COMBINATIONS, ids=lambda v: v.name.lower())
def test_against_numpy(device: core.CudaDevice, staging: Callable[[int], Staging], dtype: DType, op: ReduceOp) -> None:
    rng = np.random.default_rng(1000 + int(dtype) * 10 + int(op))
    low = dtype in LOW_PRECISION
    room = 2 * MARGIN + 16 + max(COUNTS) * max(dtype.itemsize, 4)
    left, right, out = staging(room), staging(room), staging(room)
    for i, count in enumerate(COUNTS):
        a, b = random_bits(dtype, count, rng), random_bits(dtype, count, rng)
        wide_a, wide_b = (a.astype(np.float32), b.astype(np.float32)) if low else (a, b)
        ranks = 3 if op is ReduceOp.AVG else 0
        exact = reference(wide_a, wide_b, op, ranks, dtype)
        want = exact.astype(NUMPY_OF[dtype])
        for wide in range(8) if low else (0,):
            for offset in (0, (i * 3 + 1) % 16):
                sources = left.place(wide_a if wide & 2 else a, offset), right.place(wide_b if wide & 4 else b, offset)
                out_type = np.dtype(np.float32) if wide & WIDE_DST else NUMPY_OF[dtype]
                dst = out.place(np.zeros(count, out_type), offset)
                device.reduce(dst, sources, count, int(dtype), int(op), ranks, wide)
                finish(device)
                got = out.take(count, out_type, offset)
                assert_same(got, exact if wide & WIDE_DST else want, f"count {count}, wide {wide}, offset {offset}")


@pytest.mark.parametrize("dtype", sorted(LOW_PRECISION), ids=lambda v: v.name.lower())
def test_conversions_of_every_code_and_of_random_numbers(
    device: core.CudaDevice, staging: Callable[[int], Staging], dtype: DType
) -> None:
    codes = np.arange(1 << (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(NUMPY_OF[dtype])
    narrow, wide = staging(1 << 19), staging(1 << 19)
    device.copy(wide.place(codes.astype(np.float32) * 0, 0), narrow.place(codes, 0), codes.size, int(dtype), wide=1)
    finish(device)
    assert_same(wide.take(codes.size, np.float32, 0), codes.astype(np.float32), "widened")

    rng = np.random.default_rng(int(dtype))
    numbers = rng.integers(0, 256, 4 * 60000, np.uint8).view(np.float32)
    # Random bits are mostly out of range: half of them near numbers of the type, at ties and beside them.
    near = codes.astype(np.float32)[rng.integers(0, codes.size, numbers.size)]
    between = near + rng.choice(np.float32([0, 0.5, 0.25, 0.4999, 0.5001]), near.size) * np.spacing(near) * np.float32(
        2.0 ** (24 - SIGNIFICANT[dtype])
    )
    numbers[::2] = between[::2]
    device.copy(
        narrow.place(codes[:1].repeat(numbers.size), 0), wide.place(numbers, 0), numbers.size, int(dtype), wide=2
    )
    finish(device)
    assert_same(narrow.take(numbers.size, NUMPY_OF[dtype], 0), numbers.astype(NUMPY_OF[dtype]), "narrowed")


def test_eight_operands_round_once(device: core.CudaDevice, staging: Callable[[int], Staging]) -> None:
    """1 + 7 x 2^-9 in bfloat16: rounding at every step gives 1, rounding once gives the next number above."""
    dtype = DType.BFLOAT16
    one, small = (np.full(100, v, NUMPY_OF[dtype]) for v in (1.0, 2.0**-9))
    first, rest, out = staging(1024), staging(1024), staging(1024)
    sources = [first.place(one, 0)] + [rest.place(small, 0)] * 7
    device.reduce(out.place(one, 0), sources, 100, int(dtype), int(ReduceOp.SUM))
    finish(device)
    assert_same(out.take(100, NUMPY_OF[dtype], 0), np.full(100, 1.0 + 2.0**-7 * 2, NUMPY_OF[dtype]), "eight operands")


def test_a_reduction_waits_for_a_word_and_publishes_one(
    device: core.CudaDevice, staging: Callable[[int], Staging]
) -> None:
    """What the host wrote before it raised the word is reduced; the result is there when the other word shows."""
    count, rounds = 200_003, 20
    words = staging(4096)
    words.bytes[:] = 0
    ready, done = words.bytes[:8].view(np.uint64), words.bytes[256:264].view(np.uint64)
    arrived = device.allocate(256)
    device.copy(arrived, words.address + 512, 64, int(DType.UINT8))
    total, chunk = staging(4 * count + 256), staging(4 * count + 256)
    dst, source = total.place(np.zeros(count, np.int32), 0), chunk.place(np.zeros(count, np.int32), 4)
    landed = chunk.bytes[MARGIN + 4 : MARGIN + 4 + 4 * count].view(np.int32)
    for turn in range(1, rounds + 1):
        gate = (words.address, turn, words.address + 256, turn, arrived)
        device.reduce(dst, [dst, source], count, int(DType.INT32), int(ReduceOp.SUM), queue=core.QUEUE_IN, gate=gate)
        landed[:] = turn
        assert done[0] == turn - 1, "it did not wait"
        ready[0] = turn
        deadline = time.monotonic() + 30
        while done[0] < turn:
            assert device.failure() is None and time.monotonic() < deadline
        assert (total.take(count, np.int32, 0) == turn * (turn + 1) // 2).all(), f"round {turn}"
    finish(device, core.QUEUE_IN)
    device.release(arrived)


def test_what_has_no_meaning_is_refused(device: core.CudaDevice) -> None:
    with pytest.raises(InvalidArgument, match="BOOL cannot be reduced with operator 4 from 2 sources"):
        device.reduce(0, [0, 0], 4, int(DType.BOOL), int(ReduceOp.AVG))
    with pytest.raises(InvalidArgument, match="from 1 sources"):
        device.reduce(0, [0], 4, int(DType.INT8), int(ReduceOp.SUM))
    with pytest.raises(InvalidArgument, match="from 9 sources"):
        device.reduce(0, [0] * 9, 4, int(DType.INT8), int(ReduceOp.SUM))
    with pytest.raises(InvalidArgument, match="queue = 3"):
        device.mark(3)
