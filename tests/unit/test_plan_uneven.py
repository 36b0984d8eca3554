"""All-reduce on hosts of different bandwidths: predicted times against the design, proofs, and the choice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.plan import hierarchical, optcc, partial_rings, tree_packing
from r2ccl.plan.bounds import connected_bound
from r2ccl.plan.packing import Kind, packing
from r2ccl.plan.select import PlanRequest, choose, costs_us, pick
from r2ccl.plan.shape import ClusterShape
from r2ccl.plan.task import Task
from r2ccl.plan.traffic import between_hosts
from r2ccl.plan.verify import verify
from r2ccl.types import Collective as C

D = 1 << 20
NEAR = 1.03
# One host of n lost X: time relative to healthy of Balance, R2CCL-AllReduce with Y = X, and the lower bound.
DESIGN = [
    (3, 1 / 3, 1.500, 1.375, 1.125),
    (4, 1 / 8, 1.143, 1.095, 1.032),
    (4, 1 / 4, 1.333, 1.222, 1.067),
    (8, 1 / 8, 1.143, 1.082, 1.016),
    (64, 1 / 8, 1.143, 1.073, 1.002),
]


def damaged(n: int, lost: float) -> tuple[float, ...]:
    return (1 - lost,) + (1.0,) * (n - 1)


def healthy_time(n: int) -> float:
    return 2 * (n - 1) / n


@pytest.mark.parametrize(("n", "lost", "balance", "r2ccl", "bound"), DESIGN)
def test_table_of_the_design(n: int, lost: float, balance: float, r2ccl: float, bound: float) -> None:
    gbs, t0 = damaged(n, lost), healthy_time(n)
    assert healthy_time(n) / min(gbs) / t0 == pytest.approx(balance, abs=1e-3)
    with_equal_shares = 1 + n * lost / (2 * (n - 1) * (1 - lost))
    assert with_equal_shares == pytest.approx(r2ccl, abs=1e-3)
    exact = partial_rings.time(gbs) / t0  # Y*, a little better than Y = X
    assert 0.97 * r2ccl < exact <= r2ccl + 1e-9
    assert connected_bound(gbs) / t0 == pytest.approx(bound, abs=6e-4)
    assert packing(gbs, Kind.STAR).time(gbs) / t0 == pytest.approx(bound, rel=2e-3)
    assert packing(gbs, Kind.CHAIN).time(gbs) / t0 <= NEAR * bound
    straggler = max(n / (2 * (n - 1) * (1 - lost)), n * (2 * n - 3) / (2 * (n - 1) ** 2))
    assert optcc.time(gbs) / t0 == pytest.approx(straggler)


@pytest.mark.parametrize(("n", "lost", "balance", "r2ccl", "bound"), DESIGN[:4])
def test_counted_bytes_follow_the_formulas(n: int, lost: float, balance: float, r2ccl: float, bound: float) -> None:
    """What the ops of the plans move, with two ranks a host; the tail of R2CCL-AllReduce follows its rings."""
    gbs = damaged(n, lost)
    hosts = tuple((2 * h, 2 * h + 1) for h in range(n))
    tasks = [Task(C.ALL_REDUCE, 2 * n, r, hosts=hosts, host_gbs=gbs) for r in range(2 * n)]

    def took(build) -> float:
        moved = between_hosts([build(task) for task in tasks], hosts, D)
        return max(max(both) / b for both, b in zip(moved, gbs, strict=True)) / D

    assert took(hierarchical.all_reduce) == pytest.approx(healthy_time(n) / min(gbs), rel=1e-3)
    assert took(tree_packing.all_reduce) == pytest.approx(connected_bound(gbs), rel=3e-3)
    assert took(optcc.all_reduce) == pytest.approx(optcc.time(gbs), rel=1e-3)
    assert took(partial_rings.all_reduce) == pytest.approx(partial_rings.time(gbs), rel=1e-2)


@pytest.mark.parametrize("n", [3, 4])
def test_other_collectives_wait_for_the_damaged_host_only(n: int) -> None:
    """It must receive or send its part in any case, and has nothing more to do: no plan could be faster."""
    gbs = damaged(n, 0.25)
    hosts = tuple((2 * h, 2 * h + 1) for h in range(n))
    shape = ClusterShape(hosts, host_gbs=gbs)
    for collective, name, least in (
        (C.ALL_GATHER, "hierarchical", (n - 1) / n),
        (C.REDUCE_SCATTER, "hierarchical", (n - 1) / n),
        (C.BROADCAST, "chain", 1.0),
        (C.REDUCE, "chain", 1.0),
    ):
        for root in (0, 2 * n - 1):
            request = PlanRequest(collective, 64 << 20, root=root)
            plans = [choose(request, shape, r, name) for r in range(2 * n)]
            moved = between_hosts(plans, hosts, D)
            took = max(max(both) / b for both, b in zip(moved, gbs, strict=True)) / D
            assert took == pytest.approx(least / min(gbs), rel=1e-4)


def test_share_of_the_partial_ring() -> None:
    """Y* = X (n - 1)^2 / ((n - 1)^2 - 1 + X) for one damaged host, and all rings end together for any bandwidths."""
    for n in (3, 4, 8):
        for lost in (0.125, 0.25, 0.5):
            levels = partial_rings.levels(damaged(n, lost))
            square = (n - 1) ** 2
            assert levels[1].share == pytest.approx(lost * square / (square - 1 + lost))
    for gbs in ((0.25, 0.5, 0.75, 1.0, 1.0), (0.5, 0.5, 1.0), (1.0, 1.0, 1.0), (0.1, 1.0, 3.0)):
        levels = partial_rings.levels(gbs)
        assert sum(level.share for level in levels) == pytest.approx(1.0)
        assert levels[0].members == tuple(range(len(gbs)))
        assert all(level.ring_time == pytest.approx(levels[0].ring_time) for level in levels)
        assert all(len(level.members) > 1 for level in levels)


rates = st.sampled_from([1.0, 0.875, 0.75, 0.5, 0.25, 0.125])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_right_for_any_bandwidths(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6), "hosts")
    sizes = data.draw(st.lists(st.integers(1, 2), min_size=n, max_size=n), "ranks")
    ends = [sum(sizes[:h]) for h in range(n + 1)]
    hosts = tuple(tuple(range(ends[h], ends[h + 1])) for h in range(n))
    gbs = tuple(data.draw(st.lists(rates, min_size=n, max_size=n), "bandwidths"))
    wide, in_place = data.draw(st.booleans()), data.draw(st.booleans())
    module = data.draw(st.sampled_from([optcc, partial_rings]))
    tasks = [
        Task(C.ALL_REDUCE, ends[-1], r, wide=wide, in_place=in_place, hosts=hosts, host_gbs=gbs)
        for r in range(ends[-1])
    ]
    verify([module.all_reduce(task) for task in tasks], in_place, seed=data.draw(st.integers(0, 99)))


def lab(gbs: tuple[float, ...], ranks: int = 2) -> ClusterShape:
    hosts = tuple(tuple(range(ranks * h, ranks * h + ranks)) for h in range(len(gbs)))
    return ClusterShape(hosts, host_gbs=gbs, cores=2)


def test_large_messages_on_damaged_clusters_take_the_packing() -> None:
    for gbs in ((0.075, 0.1125, 0.1125), (0.1125, 0.15, 0.15, 0.15), (0.075, 0.075, 0.1125)):
        for nbytes in (64 << 20, 1 << 30):
            assert pick(PlanRequest(C.ALL_REDUCE, nbytes), lab(gbs)).name == "tree_packing"


def test_the_wire_decides_where_costs_are_alike() -> None:
    """Drivers tell 10 Gbit/s of rails that are limited to less: copying seems to take as long as the wire."""
    for ranks in (1, 2):
        chosen = pick(PlanRequest(C.ALL_REDUCE, 256 << 20), lab((2.5, 3.75, 3.75), ranks))
        assert chosen.name == "tree_packing"


def test_healthy_clusters_choose_as_ever() -> None:
    for nbytes in (8, 64 << 10, 1 << 20, 1 << 30):
        shape = lab((0.1125,) * 3)
        chosen = pick(PlanRequest(C.ALL_REDUCE, nbytes), shape)
        assert not chosen.uneven
        costs = costs_us(PlanRequest(C.ALL_REDUCE, nbytes), shape)
        assert {"tree_packing", "binary_packing", "optcc", "r2ccl_allreduce"} < set(costs)
        nearly = lab((0.1115, 0.1125, 0.1125))
        assert pick(PlanRequest(C.ALL_REDUCE, nbytes), nearly).name == chosen.name


def test_small_messages_take_few_steps_on_many_damaged_hosts() -> None:
    shape = ClusterShape(tuple((r,) for r in range(64)), host_gbs=(2.0,) + (3.0,) * 63)
    assert pick(PlanRequest(C.ALL_REDUCE, 64), shape).name == "doubling"


@pytest.mark.parametrize("name", ["tree_packing", "binary_packing", "optcc", "r2ccl_allreduce"])
def test_forced(name: str) -> None:
    for shape in (lab((0.1,) * 3), lab((0.05, 0.1, 0.1))):
        plans = [choose(PlanRequest(C.ALL_REDUCE, 1 << 20), shape, r, name) for r in range(6)]
        assert {plan.algorithm for plan in plans} == {name}
        verify(plans)


def test_deterministic_keeps_the_healthy_plan() -> None:
    """The same ops, so the same order of reduction; the chunks of lost rails go over the others."""
    whole = ClusterShape(((0,), (1,), (2,)), rail_gbs=((0.05, 0.05),) * 3)
    broken = whole.with_rail(2, 0)
    request = PlanRequest(C.ALL_REDUCE, 64 << 20)
    before, after = choose(request, whole, 0), choose(request, broken, 0, deterministic=True)
    assert before.algorithm == after.algorithm
    assert (before.ops == after.ops).all() and before.space0 == after.space0
    assert choose(request, broken, 0).algorithm == "tree_packing"
