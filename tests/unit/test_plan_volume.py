"""What the algorithms move, counted from their ops, against the formulas of the literature."""

from __future__ import annotations

from functools import partial
from math import ceil, log2

import pytest
from plan_cases import plans_of

from r2ccl.plan import direct, doubling, hierarchical, ring, tree
from r2ccl.plan.algorithms import ALGORITHMS
from r2ccl.plan.ir import Plan
from r2ccl.plan.task import Task
from r2ccl.plan.traffic import between_hosts, traffic
from r2ccl.types import Collective as C

D = 27720  # divisible by every number of ranks and parts below


def plans(build, collective: C, n: int, **more: object) -> list[Plan]:
    return [build(Task(collective, n, r, **more)) for r in range(n)]


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("build", [ring.all_reduce, direct.all_reduce, doubling.halving_doubling])
def test_all_reduce_moves_the_least(build, n: int) -> None:
    """2(n-1)/n of the data out of and into each rank (Patarasuk and Yuan 2009), reduced (n-1)/n."""
    for plan in plans(build, C.ALL_REDUCE, n):
        moved = traffic(plan, D)
        assert moved.total_sent == moved.total_received == 2 * (n - 1) * D // n
        assert moved.reduced == (n - 1) * D // n
        assert moved.copied == 0


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize(
    ("collective", "names"),
    [(C.ALL_GATHER, ("ring", "direct", "doubling")), (C.REDUCE_SCATTER, ("ring", "direct", "halving"))],
)
def test_half_an_all_reduce(collective: C, names: tuple[str, ...], n: int) -> None:
    for algorithm in ALGORITHMS[collective]:
        if algorithm.name in names:
            for plan in plans_of(algorithm, collective, n):
                moved = traffic(plan, D)
                assert moved.total_sent == moved.total_received == (n - 1) * D // n


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("name", ["ring", "direct", "chain", "double_tree"])
def test_broadcast_and_reduce_move_the_data_once(name: str, n: int) -> None:
    """The root sends (receives) D and nobody receives (sends) more than D."""
    for collective in (C.BROADCAST, C.REDUCE):
        algorithm = next(a for a in ALGORITHMS[collective] if a.name == name)
        for plan in plans_of(algorithm, collective, n, root=1):
            moved = traffic(plan, D)
            outward, inward = moved.total_sent, moved.total_received
            if collective is C.REDUCE:
                outward, inward = inward, outward
            assert outward <= D
            assert inward == (0 if plan.rank == 1 else D)
            assert plan.rank != 1 or outward == D


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8, 9])
def test_numbers_of_messages(n: int) -> None:
    """Logarithmic algorithms have logarithmic numbers of messages; a range that goes round counts twice."""
    assert all(traffic(p, D).messages == 2 * (n - 1) for p in plans(ring.all_reduce, C.ALL_REDUCE, n))
    rounds = ceil(log2(n))
    assert all(traffic(p, D).messages <= 2 * rounds for p in plans(doubling.all_gather, C.ALL_GATHER, n))
    assert all(traffic(p, D).messages <= rounds + 1 for p in plans(doubling.all_reduce, C.ALL_REDUCE, n))
    assert all(
        traffic(p, D).messages <= 4
        for p in plans(partial(tree.broadcast, name="double_tree"), C.BROADCAST, n)
        if p.rank
    )


@pytest.mark.parametrize("local", [(1, 1), (2, 2), (3, 3, 3), (2, 3), (1, 2, 4)])
def test_hierarchical_crosses_hosts_as_rarely_as_possible(local: tuple[int, ...]) -> None:
    """2(H-1)/H of the data out of each host, whatever its number of ranks: the bound for hosts of one bandwidth."""
    hosts, first = [], 0
    for size in local:
        hosts.append(tuple(range(first, first + size)))
        first += size
    n, number = first, len(local)
    made = plans(hierarchical.all_reduce, C.ALL_REDUCE, n, hosts=tuple(hosts))
    assert between_hosts(made, hosts, D) == [(2 * (number - 1) * D // number,) * 2] * number
    for collective, build in ((C.ALL_GATHER, hierarchical.all_gather), (C.REDUCE_SCATTER, hierarchical.reduce_scatter)):
        total = D // 11 // 7 * n
        made = plans(build, collective, n, hosts=tuple(hosts))
        crossing = between_hosts(made, hosts, total)
        block = total // n
        need = [(n - size) * block for size in local]
        taken = [c[1] if collective is C.ALL_GATHER else c[0] for c in crossing]
        assert sum(taken) == (number - 1) * total
        if collective is C.ALL_GATHER:
            assert taken == need


def test_ring_enters_each_host_once() -> None:
    hosts = ((0, 3, 5), (1, 2, 4))
    made = plans(ring.all_reduce, C.ALL_REDUCE, 6, hosts=hosts)
    assert between_hosts(made, hosts, D) == [(2 * 5 * D // 6,) * 2] * 2


def test_inner_nodes_of_one_tree_are_leaves_of_the_other() -> None:
    """The point of the double tree (Sanders, Speck and Traeff 2009); with an odd number one node is a leaf in both."""
    for n in range(1, 40):
        inner = [{p for p in shape(n) if p >= 0} for shape in (tree.binary, tree.mirrored)]
        if n > 2:
            assert not inner[0] & inner[1], n
        for shape in (tree.binary, tree.mirrored):
            parents = shape(n)
            assert sum(p < 0 for p in parents) == 1
            assert all(parents.count(v) <= 2 for v in range(n))
            for v in range(n):
                depth = 0
                while v >= 0:
                    v, depth = parents[v], depth + 1
                assert depth <= n.bit_length()


def test_raw_contributions_travel_narrow() -> None:
    """Direct reduce-scatter sends no partial sum; a ring sends all but its first step as such."""
    for n in (2, 3, 5):
        assert traffic(direct.all_reduce(Task(C.ALL_REDUCE, n, 0, wide=True)), D).wide == 0
        wide = traffic(ring.all_reduce(Task(C.ALL_REDUCE, n, 0, wide=True)), D // n * n).wide
        assert wide == pytest.approx((n - 2) * D / n, abs=n)
