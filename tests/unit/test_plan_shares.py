"""Shares: proportions, ready rows, and losses beyond the table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.errors import InvalidArgument
from r2ccl.plan.shares import shares

speeds = st.lists(st.floats(0.0, 1e300, allow_subnormal=False), min_size=1, max_size=9)


@given(speeds, st.data())
def test_rows_sum_to_one_or_to_nothing(link_gbs: list[float], data: st.DataObject) -> None:
    table = shares(link_gbs)
    lost = data.draw(st.sets(st.integers(0, len(link_gbs) - 1)))
    for row in (*table.table, table.row(lost)):
        assert row.dtype == np.float32
        assert (row >= 0).all()
        assert row.sum() == pytest.approx(1.0, abs=1e-5) or not row.any()
    assert not table.row(lost)[list(lost)].any()
    if any(g > 0 for i, g in enumerate(link_gbs) if i not in lost) and len(lost) < 2:
        assert table.row(lost).any()


def test_in_proportion() -> None:
    table = shares([400.0, 100.0, 100.0])
    np.testing.assert_allclose(table.row(), [4 / 6, 1 / 6, 1 / 6], rtol=1e-6)
    np.testing.assert_allclose(table.row([0]), [0, 0.5, 0.5])
    np.testing.assert_allclose(table.row([2]), [0.8, 0.2, 0], rtol=1e-6)
    np.testing.assert_allclose(table.row([0, 2]), [0, 1, 0])
    assert not table.row([0, 1, 2]).any()


def test_table_is_what_the_core_reads() -> None:
    table = shares([1.0, 2.0]).table
    assert (table.shape, table.dtype, table.flags.c_contiguous, table.flags.writeable) == (
        (3, 2),
        np.float32,
        True,
        False,
    )


@pytest.mark.parametrize("bad", [[], [-1.0], [float("nan")], [float("inf"), 1.0]])
def test_bandwidths_that_cannot_be(bad: list[float]) -> None:
    with pytest.raises(InvalidArgument, match="link bandwidths"):
        shares(bad)


def test_link_that_is_not_there() -> None:
    with pytest.raises(InvalidArgument, match=r"lost links \[5\] of 2"):
        shares([1.0, 1.0]).row([5])
