"""The checker of r2ccl-perf: it accepts exact results and finds a single wrong element anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.perf.data import PERIOD, Pattern, count_wrong, fill
from r2ccl.types import NUMPY_OF, DType, ReduceOp

REDUCIBLE = [d for d in DType if d not in (DType.BOOL,)]
ORDERED = [d for d in REDUCIBLE if d not in (DType.COMPLEX64, DType.COMPLEX128)]
CASES = [(d, op) for d in REDUCIBLE for op in ReduceOp if d in ORDERED or op not in (ReduceOp.MIN, ReduceOp.MAX)]


def reduce_in_type(op: ReduceOp, parts: list[np.ndarray], dtype: DType) -> np.ndarray:
    """The straightforward reduction, in float32 for small floats and in the type itself for all others."""
    wide = np.dtype(np.float32) if dtype.is_low_precision else NUMPY_OF[dtype]
    result = parts[0].astype(wide)
    combine = {ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}.get(op, np.add)
    for part in parts[1:]:
        result = combine(result, part.astype(wide))
    if op is ReduceOp.AVG:
        result = result // len(parts) if wide.kind in "iu" else result / len(parts)
    return result.astype(NUMPY_OF[dtype])


@pytest.mark.parametrize(("dtype", "op"), CASES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_expected_results_are_those_of_plain_arithmetic(dtype: DType, op: ReduceOp, ranks: int) -> None:
    pattern = Pattern(dtype, ranks, op, iteration=3)
    parts = [pattern.rank(r) for r in range(ranks)]
    for order in (parts, parts[::-1]):
        assert reduce_in_type(op, order, dtype).tobytes() == pattern.reduced().tobytes()


@pytest.mark.parametrize("dtype", list(DType))
def test_data_differ_between_ranks_and_iterations(dtype: DType) -> None:
    op = None if dtype is DType.BOOL else ReduceOp.SUM
    periods = [Pattern(dtype, 8, op, i).rank(r) for r in range(8) for i in range(3)]
    for i, one in enumerate(periods):
        for other in periods[i + 1 :]:
            assert count_wrong(one, other) > PERIOD // 4


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(list(DType)),
    count=st.integers(1, 3 * PERIOD),
    start=st.integers(0, 1 << 33),
    data=st.data(),
)
def test_one_wrong_element_is_found_wherever_it_is(dtype: DType, count: int, start: int, data: st.DataObject) -> None:
    period = Pattern(dtype, 3, None, 0).rank(1)
    buffer = np.zeros(count, NUMPY_OF[dtype])
    fill(buffer, period, start)
    assert count_wrong(buffer, period, start) == 0
    at = data.draw(st.integers(0, count - 1))
    raw = buffer.view(np.uint8).reshape(count, -1)
    raw[at, data.draw(st.integers(0, raw.shape[1] - 1))] ^= 1
    assert count_wrong(buffer, period, start) == 1


def test_a_block_that_is_elsewhere_is_found() -> None:
    period = Pattern(DType.FLOAT32, 2, ReduceOp.SUM, 0).reduced()
    buffer = np.zeros(1 << 20, np.float32)
    fill(buffer, period)
    block = 1 << 16
    buffer[block : 2 * block], buffer[3 * block : 4 * block] = (
        buffer[3 * block : 4 * block].copy(),
        buffer[block : 2 * block].copy(),
    )
    assert count_wrong(buffer, period) > 1.9 * block


def test_a_part_of_the_pattern_can_be_checked_alone() -> None:
    period = Pattern(DType.INT32, 2, None, 5).rank(0)
    buffer = np.zeros(200_000, np.int32)
    fill(buffer, period)
    assert count_wrong(buffer[70_001:], period, 70_001) == 0
    assert count_wrong(buffer[70_001:], period, 70_000) > 0
    assert count_wrong(buffer[:0], period) == 0
