"""The host's reductions against NumPy and ml_dtypes: every dtype and operator, on random bit patterns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import r2ccl
from r2ccl._native import core
from r2ccl.types import LOW_PRECISION, NUMPY_OF, DType, ReduceOp

pytestmark = pytest.mark.timeout(30)

Array = np.ndarray[Any, Any]
COUNTS = (0, 1, 3, 31, 1023, 4099)
GUARD = 0xA5
REFUSED = {(DType.BOOL, ReduceOp.AVG)} | {
    (d, o) for d in (DType.COMPLEX64, DType.COMPLEX128) for o in (ReduceOp.MIN, ReduceOp.MAX)
}
COMBINATIONS = [(d, o) for d in DType for o in ReduceOp if (d, o) not in REFUSED]
WIDE_DST, WIDE_A, WIDE_B = 1, 2, 4


def random_bits(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """Any bits at all, NaN, infinities and subnormal numbers among them; bool holds 0 or 1."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count, np.uint8).view(np.bool_)
    return rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(NUMPY_OF[dtype])


def reference(a: Array, b: Array, op: ReduceOp, avg_ranks: int, dtype: DType) -> Array:
    """In the accumulation type; the caller rounds."""
    if dtype is DType.BOOL:
        return np.logical_or(a, b) if op in (ReduceOp.SUM, ReduceOp.MAX) else np.logical_and(a, b)
    if op is ReduceOp.PROD and a.dtype.kind == "c":
        # In the schoolbook order: the compiler may not contract or reorder it.
        product = np.empty_like(a)
        product.real = a.real * b.real - a.imag * b.imag
        product.imag = a.real * b.imag + a.imag * b.real
        return product
    ufunc = {ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}.get(op, np.add)
    result: Array = ufunc(a, b)
    if op is not ReduceOp.AVG or avg_ranks <= 1:
        return result
    if result.dtype.kind in "iu":
        quotient = np.abs(result.astype(object)) // avg_ranks
        return np.where(result < 0, -quotient, quotient).astype(result.dtype)
    if result.dtype.kind == "c":
        part = result.real.dtype.type(avg_ranks)
        divided = np.empty_like(result)
        divided.real, divided.imag = result.real / part, result.imag / part
        return divided
    return (result / result.dtype.type(avg_ranks)).astype(result.dtype)


def assert_same(got: Array, want: Array, what: str) -> None:
    """The same bits, but for the payload of a NaN."""
    if got.dtype.kind == "c":
        part = got.real.dtype
        got, want = got.view(part), want.view(part)
    bits = np.dtype(f"u{got.dtype.itemsize}")
    nan = np.zeros(got.shape, bool)
    if got.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):
            nan = np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))
    wrong = np.flatnonzero((got.view(bits) != want.view(bits)) & ~nan)
    assert not wrong.size, f"{what}: {wrong.size} of {got.size}, [{wrong[0]}] = {got[wrong[0]]}, not {want[wrong[0]]}"


def placed(array: Array, offset: int) -> Array:
    """A copy whose first byte is ``offset`` bytes past an aligned one, with a guard behind it."""
    memory = np.full(array.nbytes + offset + 64, GUARD, np.uint8)
    memory[offset : offset + array.nbytes] = array.view(np.uint8)
    return memory[offset:]


def reduce(a: Array, b: Array, dtype: DType, op: ReduceOp, avg_ranks: int, wide: int, offset: int, alias: str) -> Array:
    """host_reduce on views at odd addresses; ``alias``: dst is "a", "b" or an array of its own."""
    out_type = np.dtype(np.float32) if wide & WIDE_DST and dtype in LOW_PRECISION else NUMPY_OF[dtype]
    count = a.size
    left, right = placed(a, offset), placed(b, (offset * 3) % 8)
    out = {"a": left, "b": right}.get(alias)
    if out is None:
        out = placed(np.zeros(count, out_type), (offset * 5) % 8)
    core.host_reduce(out.ctypes.data, left.ctypes.data, right.ctypes.data, count, int(dtype), int(op), avg_ranks, wide)
    nbytes = count * out_type.itemsize
    assert (out[nbytes : nbytes + 48] == GUARD).all(), "wrote beyond its array"
    return out[:nbytes].copy().view(out_type)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("dtype", "op"), COMBINATIONS, ids=lambda v: v.name.lower())
def test_against_numpy(dtype: DType, op: ReduceOp) -> None:
    rng = np.random.default_rng(int(dtype) * 10 + int(op))
    low = dtype in LOW_PRECISION
    for i, count in enumerate(COUNTS):
        a, b = random_bits(dtype, count, rng), random_bits(dtype, count, rng)
        wide_a, wide_b = (a.astype(np.float32), b.astype(np.float32)) if low else (a, b)
        for avg_ranks in (0, 3) if op is ReduceOp.AVG else (0,):
            exact = reference(wide_a, wide_b, op, avg_ranks, dtype)
            want = exact.astype(NUMPY_OF[dtype])
            for alias in ("", "a", "b"):
                got = reduce(a, b, dtype, op, avg_ranks, 0, (i * 3 + 1) % 8, alias)
                assert_same(got, want, f"count {count}, alias {alias!r}, avg_ranks {avg_ranks}")
            for wide in range(1, 8) if low else ():
                left, right = wide_a if wide & WIDE_A else a, wide_b if wide & WIDE_B else b
                got = reduce(left, right, dtype, op, avg_ranks, wide, (i + 1) % 8, "")
                assert_same(got, exact if wide & WIDE_DST else want, f"count {count}, wide {wide}")


def test_low_precision_sums_round_once() -> None:
    """1 + 3 x 2^-8 in bfloat16: rounding at every step gives 1, rounding once gives the next number above."""
    dtype = DType.BFLOAT16
    one, small = (np.array([v], NUMPY_OF[dtype]) for v in (1.0, 2.0**-8))
    total = one.astype(np.float32)
    for _ in range(3):
        out = np.zeros(1, np.float32)
        core.host_reduce(
            out.ctypes.data,
            total.ctypes.data,
            small.ctypes.data,
            1,
            int(dtype),
            int(ReduceOp.SUM),
            0,
            WIDE_DST | WIDE_A,
        )
        total = out
    stepwise = one
    for _ in range(3):
        stepwise = (stepwise.astype(np.float32) + small.astype(np.float32)).astype(NUMPY_OF[dtype])
    assert float(stepwise[0]) == 1.0
    assert float(total.astype(NUMPY_OF[dtype])[0]) == 1.0 + 2.0**-6  # 1.01171875 lies halfway: to even
    assert float(total[0]) == 1.0 + 3 * 2.0**-8


@pytest.mark.parametrize(("dtype", "op"), sorted(REFUSED), ids=lambda v: v.name.lower())
def test_what_has_no_meaning_is_refused(dtype: DType, op: ReduceOp) -> None:
    a = np.zeros(4, NUMPY_OF[dtype])
    with pytest.raises(r2ccl.InvalidArgument, match=dtype.name):
        core.host_reduce(a.ctypes.data, a.ctypes.data, a.ctypes.data, 4, int(dtype), int(op))


def test_the_comparison_notices_one_bit() -> None:
    a = np.arange(8, dtype=np.float32)
    b = a.copy()
    b.view(np.uint32)[5] ^= 1
    with pytest.raises(AssertionError, match=r"1 of 8, \[5\]"):
        assert_same(b, a, "flipped")
