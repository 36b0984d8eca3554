"""Every dtype with every operator, through real collectives: sums round once, averages, NaN, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mp_checks import assert_equal

import r2ccl
from r2ccl import DType, ReduceOp
from r2ccl.testing import RankError, run_ranks
from r2ccl.types import LOW_PRECISION, NUMPY_OF

pytestmark = pytest.mark.timeout(60)

Array = np.ndarray[Any, Any]
COUNT = 1037
# Integers m * 2^e whose sums over a few ranks are exact in float32, whatever the order: (|m|, e) below.
EXACT = {DType.BFLOAT16: (256, 9), DType.FLOAT16: (2048, 4), DType.FLOAT8_E4M3FN: (16, 4), DType.FLOAT8_E5M2: (8, 8)}
REFUSED = {(DType.BOOL, ReduceOp.AVG)} | {
    (d, o) for d in (DType.COMPLEX64, DType.COMPLEX128) for o in (ReduceOp.MIN, ReduceOp.MAX)
}
COMBINATIONS = [(d, o) for d in DType for o in ReduceOp if (d, o) not in REFUSED]


def values(dtype: DType, op: ReduceOp, rank: int, count: int = COUNT) -> Array:
    """Inputs for which the result does not depend on the order of the reduction."""
    rng = np.random.default_rng([int(dtype), int(op), rank])
    out = NUMPY_OF[dtype]
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(out)
    if op is ReduceOp.PROD:
        factors = np.array([1, 2, 3, 4] if out.kind == "u" else [1, 2, -1, 3, -2, 4])
        if out.kind == "c":
            factors = np.array([1, 1j, -1, 1 + 1j, 2])
        elif out.kind not in "iu":
            factors = np.array([1, 2, -1, 3, 0.5, -0.25])
        return rng.choice(factors, count).astype(out)
    if dtype in LOW_PRECISION:
        m, e = EXACT[dtype]
        return (rng.integers(1 - m, m, count) * 2.0 ** rng.integers(0, e, count)).astype(np.float32).astype(out)
    if out.kind == "c":
        return (rng.integers(-999, 999, count) + 1j * rng.integers(-999, 999, count)).astype(out)
    if out.kind in "iu":
        info = np.iinfo(out)
        # An average is defined where the sum does not overflow; sums wrap, and shall be seen to.
        share = 16 if op is ReduceOp.AVG else 1
        return rng.integers(info.min // share, info.max // share, count, out, endpoint=True)
    return rng.integers(-9999, 9999, count).astype(out)


def expected(dtype: DType, op: ReduceOp, size: int, count: int = COUNT) -> Array:
    """In the accumulation type, rounded once."""
    inputs = [values(dtype, op, r, count) for r in range(size)]
    if dtype is DType.BOOL:
        either = op in (ReduceOp.SUM, ReduceOp.MAX)
        return np.logical_or.reduce(inputs) if either else np.logical_and.reduce(inputs)
    wide = [i.astype(np.float32) if dtype in LOW_PRECISION else i for i in inputs]
    ufunc = {ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}.get(op, np.add)
    total = wide[0]
    for other in wide[1:]:
        total = ufunc(total, other)
    if op is ReduceOp.AVG:
        if total.dtype.kind in "iu":
            total = np.array([abs(int(t)) // size * (1 if t >= 0 else -1) for t in total]).astype(total.dtype)
        elif total.dtype.kind == "c":
            total = (total.real / total.real.dtype.type(size) + 1j * (total.imag / total.real.dtype.type(size))).astype(
                total.dtype
            )
        else:
            total = total / total.dtype.type(size)
    return total.astype(NUMPY_OF[dtype])


def same(got: Array, want: Array, what: str) -> None:
    """The bits, but for the payload of NaN (which an 8-bit sum that overflows makes) and zeros of complex numbers."""
    if got.dtype.kind not in "iubc":
        nan = np.isnan(got.astype(np.float32))
        assert_equal(nan, np.isnan(want.astype(np.float32)), f"{what}: NaN")
        got, want = np.where(nan, got.dtype.type(0), got), np.where(nan, got.dtype.type(0), want)
    if got.dtype.kind == "c":
        got, want = got + 0, want + 0  # the sign of a zero depends on the order of products
    assert_equal(got, want, what)


def every_combination(comm: r2ccl.Communicator) -> bytes:
    """What the all_reduces gave, for the comparison between ranks."""
    results = []
    size, rank = comm.size, comm.rank
    for dtype, op in COMBINATIONS:
        what, mine, want = f"{dtype.name} {op.name}", values(dtype, op, rank), expected(dtype, op, size)
        out = np.empty(COUNT + 1, NUMPY_OF[dtype])[1:]  # at an odd address for the 8-bit types
        comm.all_reduce(mine, out, op)
        same(out, want, f"all_reduce {what}")
        results.append(out.tobytes())
        again = mine.copy()
        comm.reduce(again, op=op, root=size - 1)
        same(again, want if rank == size - 1 else mine, f"reduce {what}, in place")
        blocks = COUNT // size
        part = np.empty(blocks, NUMPY_OF[dtype])
        comm.reduce_scatter(mine[: blocks * size], part, op)
        same(part, want[rank * blocks : (rank + 1) * blocks], f"reduce_scatter {what}")
        counts = [COUNT - 7 * (size - 1), *[7] * (size - 1)]
        part = np.empty(counts[rank], NUMPY_OF[dtype])
        comm.reduce_scatter_v(mine, part, counts, op)
        first = sum(counts[:rank])
        same(part, want[first : first + counts[rank]], f"reduce_scatter_v {what}")
    return b"".join(results)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("n", "hosts", "rails"), [(1, 1, 0), (3, 1, 0), (4, 2, 2)])
def test_case_30_every_dtype_and_operator(n: int, hosts: int, rails: int) -> None:
    results = run_ranks(every_combination, n, hosts=hosts, rails=rails, timeout_s=50)
    assert len(set(results)) == 1, "ranks differ in the bits of a result"


@pytest.mark.parametrize("dtype", sorted(LOW_PRECISION), ids=lambda d: d.name.lower())
def test_the_inputs_tell_one_rounding_from_several(dtype: DType) -> None:
    """Negative control: summing in the type itself gives another result for these inputs."""
    stepwise = values(dtype, ReduceOp.SUM, 0)
    for r in (1, 2):
        stepwise = (stepwise.astype(np.float32) + values(dtype, ReduceOp.SUM, r).astype(np.float32)).astype(
            stepwise.dtype
        )
    with pytest.raises(AssertionError, match="differ"):
        assert_equal(stepwise, expected(dtype, ReduceOp.SUM, 3), "rounded at each step")


def moves(comm: r2ccl.Communicator) -> None:
    """Bits pass through unchanged in every type, signalling NaN and all."""
    size, rank = comm.size, comm.rank

    def bits(dtype: DType, r: int, count: int) -> Array:
        rng = np.random.default_rng([int(dtype), r])
        high = 2 if dtype is DType.BOOL else 256
        return rng.integers(0, high, count * dtype.itemsize, np.uint8).view(NUMPY_OF[dtype])

    def equal(got: Array, want: Array, what: str) -> None:
        assert got.tobytes() == want.tobytes(), what

    for dtype in DType:
        mine, name = bits(dtype, rank, 501), dtype.name
        out = np.zeros(501 * size, mine.dtype)
        comm.all_gather(mine, out)
        equal(out, np.concatenate([bits(dtype, r, 501) for r in range(size)]), f"all_gather {name}")
        one = mine.copy()
        comm.broadcast(one, root=size - 1)
        equal(one, bits(dtype, size - 1, 501), f"broadcast {name}")
        comm.all_to_all(out, back := np.zeros_like(out))
        equal(back, np.concatenate([bits(dtype, rank, 501)] * size), f"all_to_all {name}")
        with comm.group():
            comm.send(mine, (rank + 1) % size)
            comm.recv(one, (rank - 1) % size)
        equal(one, bits(dtype, (rank - 1) % size, 501), f"send and recv {name}")


@pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (3, 2)])
def test_every_dtype_is_moved_bit_by_bit(hosts: int, rails: int) -> None:
    run_ranks(moves, 3, hosts=hosts, rails=rails, timeout_s=40)


def nan_and_friends(comm: r2ccl.Communicator) -> None:
    """min and max: NaN of any rank wins, infinities are ordered."""
    inf, nan = np.inf, np.nan
    rows = [[nan, 1, -inf, inf, 5, 0], [1, nan, 2, 3, -7, 1], [2, 3, nan, -inf, inf, 2]]
    for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.FLOAT8_E5M2):
        mine = np.array(rows[comm.rank], NUMPY_OF[dtype])
        for op, want in ((ReduceOp.MIN, [nan, nan, nan, -inf, -7, 0]), (ReduceOp.MAX, [nan, nan, nan, inf, inf, 2])):
            out = np.zeros_like(mine)
            comm.all_reduce(mine, out, op)
            np.testing.assert_array_equal(out.astype(np.float64), want, f"{dtype.name} {op.name}")
        out = np.zeros_like(mine)
        comm.all_reduce(mine, out)
        np.testing.assert_array_equal(out.astype(np.float64), [nan, nan, nan, nan, inf, 3], f"{dtype.name} SUM")
    mine = np.array([[np.nan, 1], [2, np.nan], [3, 4]][comm.rank], NUMPY_OF[DType.FLOAT8_E4M3FN])
    comm.all_reduce(mine, op=ReduceOp.MAX)
    assert np.isnan(mine.astype(np.float32)).all()


def test_min_and_max_with_nan() -> None:
    run_ranks(nan_and_friends, 3, timeout_s=20)
    run_ranks(nan_and_friends, 3, hosts=3, timeout_s=20)


def bits_of_floats(comm: r2ccl.Communicator) -> bytes:
    """Sums whose rounding depends on the order: nevertheless the same on all ranks."""
    rng = np.random.default_rng(comm.rank)
    results = []
    for count in (5, 1000, 70_001):
        for dtype in (np.float32, np.float64, NUMPY_OF[DType.BFLOAT16], np.complex64):
            x = (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 6, count)).astype(dtype)
            comm.all_reduce(x)
            results.append(x.tobytes())
    return b"".join(results)


@pytest.mark.parametrize(("n", "hosts"), [(4, 1), (5, 2)])
def test_all_ranks_get_the_same_bits(n: int, hosts: int) -> None:
    assert len(set(run_ranks(bits_of_floats, n, hosts=hosts, timeout_s=30))) == 1


def refused(comm: r2ccl.Communicator) -> None:
    size = comm.size
    for dtype, op in sorted(REFUSED):
        x, y = np.zeros(4 * size, NUMPY_OF[dtype]), np.zeros(4, NUMPY_OF[dtype])
        for call in (
            lambda: comm.all_reduce(x, op=op),  # noqa: B023
            lambda: comm.reduce(x, op=op, root=1),  # noqa: B023
            lambda: comm.reduce_scatter(x, y, op),  # noqa: B023
            lambda: comm.reduce_scatter_v(x, y, [4] * size, op),  # noqa: B023
            lambda: comm.all_reduce(x, op=op, async_op=True),  # noqa: B023
        ):
            with pytest.raises(r2ccl.InvalidArgument, match=f"{op.name}.*{dtype.name.lower()}"):
                call()
    for wrong in (-1, 5, 300):
        with pytest.raises(r2ccl.InvalidArgument, match=f"op = {wrong}"):
            comm.all_reduce(np.zeros(4), op=wrong)  # type: ignore[arg-type]
    before = comm.stats()["calls"]
    one = np.ones(3, np.complex64)
    comm.all_reduce(one)
    assert_equal(one, np.full(3, size, np.complex64), "after refusals")
    assert before == 0, "a refused call was begun"


def test_case_30_combinations_without_meaning_are_refused_everywhere() -> None:
    run_ranks(refused, 3, timeout_s=20)
    with pytest.raises(RankError, match="DID NOT RAISE"):  # negative control: a good combination is not refused
        run_ranks(lambda comm: _expect_refusal(comm), 2, timeout_s=20)


def _expect_refusal(comm: r2ccl.Communicator) -> None:
    with pytest.raises(r2ccl.InvalidArgument):
        comm.all_reduce(np.zeros(3, np.bool_), op=ReduceOp.MAX)
