"""Max-min fair sharing against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.sim.fair import max_min, used

INF = float("inf")


@pytest.mark.parametrize(
    ("flows", "demand", "capacity", "rates"),
    [
        ([(0, 1)], [INF], [5, 3], [3]),  # the tighter end
        ([(0, 1), (0, 2)], [INF, INF], [4, 9, 9], [2, 2]),  # equal parts of a full link
        ([(0, 1), (0, 2)], [INF, INF], [4, 1, 9], [1, 3]),  # what one cannot use, the other gets
        ([(0, 2), (0, 3), (1, 3)], [INF] * 3, [10, 10, 10, 4], [8, 2, 2]),  # two levels
        ([(0, 1), (0, 2), (0, 3)], [1, INF, INF], [7, 9, 9, 9], [1, 3, 3]),  # a flow that wants less
        ([(0, 1), (0, 2)], [0, INF], [4, 9, 9], [0, 4]),  # a flow that wants nothing
        ([(0, 1), (2, 1)], [INF, INF], [1, 10, 20], [1, 9]),
    ],
)
def test_cases_by_hand(
    flows: list[tuple[int, int]], demand: list[float], capacity: list[float], rates: list[float]
) -> None:
    out, into = np.array(flows).T
    got = max_min(out, into, np.array(demand, float), np.array(capacity, float))
    assert got == pytest.approx(rates)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_flow_is_held_back_by_its_demand_or_by_a_full_resource_on_which_it_is_largest(
    data: st.DataObject,
) -> None:
    n = data.draw(st.integers(1, 5))
    flows = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(n, 2 * n - 1)), min_size=1, max_size=12))
    demand = np.array(data.draw(st.lists(st.sampled_from([0.5, 2.0, INF]), min_size=len(flows), max_size=len(flows))))
    capacity = np.array(data.draw(st.lists(st.floats(0.5, 8), min_size=2 * n, max_size=2 * n)))
    out, into = np.array(flows).T
    rate = max_min(out, into, demand, capacity)
    load = used(out, into, rate, 2 * n)
    assert (load <= capacity * (1 + 1e-6)).all() and (rate <= demand).all()
    for flow, ends in enumerate(flows):
        full = [
            r
            for r in ends
            if load[r] >= capacity[r] * (1 - 1e-6)
            and rate[flow] >= max(rate[f] for f, e in enumerate(flows) if r in e) * (1 - 1e-6)
        ]
        assert full or rate[flow] >= demand[flow] * (1 - 1e-9)


def test_weights_divide_a_link_and_what_one_cannot_use_goes_to_the_others() -> None:
    out, into = np.array([0, 0, 0]), np.array([1, 2, 3])
    capacity, weight = np.array([12.0, 100, 100, 100]), np.array([1.0, 2, 3])
    assert max_min(out, into, np.full(3, INF), capacity, weight=weight) == pytest.approx([2, 4, 6])
    assert max_min(out, into, np.array([INF, INF, 3]), capacity, weight=weight) == pytest.approx([3, 6, 3])


def test_few_rounds_never_give_more_than_there_is() -> None:
    out, into = np.array([0, 0, 1]), np.array([2, 3, 3])
    capacity = np.array([10.0, 10, 10, 4])
    for rounds in (1, 2, 3):
        assert (used(out, into, max_min(out, into, np.full(3, INF), capacity, rounds), 4) <= capacity + 1e-9).all()
