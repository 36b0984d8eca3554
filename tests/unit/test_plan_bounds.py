"""The lower bounds: known values, and the linear program beside the closed form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.errors import InvalidArgument
from r2ccl.plan.bounds import all_reduce_bound_s, connected_bound, separated_bound
from r2ccl.plan.shape import ClusterShape

THIRDS = (1 / 3, 1 / 3, 1 / 3)


@pytest.mark.parametrize(
    ("n", "lost", "slower"),
    [(3, 1 / 3, 1.125), (4, 1 / 8, 1.032), (4, 1 / 4, 1.067), (8, 1 / 8, 1.016), (64, 1 / 8, 1.002)],
)
def test_one_damaged_host(n: int, lost: float, slower: float) -> None:
    """The figures of the design: n / (n - X)."""
    healthy, damaged = connected_bound((1.0,) * n), connected_bound((1 - lost,) + (1.0,) * (n - 1))
    assert damaged / healthy == pytest.approx(slower, abs=6e-4)
    assert damaged / healthy == pytest.approx(n / (n - lost))


def test_the_weakest_host_alone_may_set_the_bound() -> None:
    assert connected_bound((0.1, 1.0, 1.0, 1.0)) == pytest.approx(10.0)
    assert connected_bound((0.5,)) == 0.0
    assert connected_bound((0.5, 2.0)) == 2.0


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_one_common_rail_is_a_connected_fabric(data: st.DataObject) -> None:
    """With one rail for all hosts both bounds are about the same thing."""
    gbs = data.draw(st.lists(st.floats(0.1, 1.0), min_size=2, max_size=6))
    assert separated_bound([(b,) for b in gbs]) == pytest.approx(connected_bound(gbs), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_separate_rails_are_no_better(data: st.DataObject) -> None:
    n, rails = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 4))
    row = st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=rails, max_size=rails)
    rail_gbs = data.draw(st.lists(row, min_size=n, max_size=n))
    assert separated_bound(rail_gbs) >= connected_bound([sum(r) for r in rail_gbs]) * (1 - 1e-9)


def test_neighbours_that_lost_different_rails() -> None:
    """Two hosts of two rails share none: the third carries everything between them."""
    rail_gbs = ((0.0, 0.5), (0.5, 0.0), (0.5, 0.5))
    assert separated_bound(rail_gbs) == pytest.approx(2.0)
    assert connected_bound([sum(r) for r in rail_gbs]) == pytest.approx(2.0)
    rail_gbs = ((0.0, 0.5), (0.5, 0.0), (0.5, 0.5), (0.5, 0.5))
    assert separated_bound(rail_gbs) == pytest.approx(connected_bound([sum(r) for r in rail_gbs]))


def test_rails_that_do_not_connect() -> None:
    with pytest.raises(InvalidArgument, match="do not connect all hosts"):
        separated_bound(((1.0, 0.0), (0.0, 1.0)))
    with pytest.raises(InvalidArgument, match="at most 12"):
        separated_bound(((1.0,),) * 13)


def test_of_a_shape() -> None:
    """A rail less, and a fabric that is not connected."""
    shape = ClusterShape(((0, 1), (2, 3), (4, 5)), rail_gbs=(THIRDS,) * 3)
    damaged = shape.with_rail(1, 2)
    assert all_reduce_bound_s(damaged, 1e9) / all_reduce_bound_s(shape, 1e9) == pytest.approx(1.125)
    assert damaged.undamaged.gbs == shape.gbs
    apart = ClusterShape(shape.hosts, rail_gbs=damaged.rail_gbs, connected=False)
    assert all_reduce_bound_s(apart, 1e9) == pytest.approx(all_reduce_bound_s(damaged, 1e9))
    assert all_reduce_bound_s(ClusterShape(((0, 1),)), 1e9) == 0.0
