"""Rail-separated fabrics: nobody speaks to a host that it shares no rail with, and the bound stays near."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.errors import InvalidArgument
from r2ccl.plan.bounds import separated_bound
from r2ccl.plan.ir import Plan
from r2ccl.plan.reach import masks, ring_order, tree
from r2ccl.plan.select import PlanRequest, choose, pick
from r2ccl.plan.shape import ClusterShape
from r2ccl.plan.traffic import traffic
from r2ccl.plan.verify import verify
from r2ccl.types import Collective as C

D = 1 << 20
HEALTHY = 0.5


def shape_of(lost: dict[int, int], hosts: int, rails: int = 2, ranks: int = 1) -> ClusterShape:
    """Host h lost rail lost[h]."""
    rows = tuple(tuple(0.0 if lost.get(h) == r else 1 / rails for r in range(rails)) for h in range(hosts))
    every = tuple(tuple(range(ranks * h, ranks * h + ranks)) for h in range(hosts))
    return ClusterShape(every, rail_gbs=rows, full_gbs=((1 / rails,) * rails,) * hosts, connected=False)


def spoken(plans: list[Plan], shape: ClusterShape) -> dict[tuple[int, int], float]:
    """Data that each pair of hosts exchanges, the larger direction, in units of all data."""
    host_of = {r: h for h, host in enumerate(shape.hosts) for r in host}
    both: dict[tuple[int, int], float] = {}
    for plan in plans:
        for peer, count in traffic(plan, D).sent.items():
            pair = (host_of[plan.rank], host_of[peer])
            if pair[0] != pair[1]:
                both[pair] = both.get(pair, 0) + count / D
    return {(a, b): max(both.get((a, b), 0), both.get((b, a), 0)) for a, b in combinations(range(len(shape.hosts)), 2)}


def time_on_rails(pairs: dict[tuple[int, int], float], shape: ClusterShape) -> float:
    """Least time in which the rails of all hosts carry this traffic, dealt to common rails as well as can be."""
    from scipy.optimize import linprog

    links = [(p, r) for p in pairs for r in range(len(shape.rail_gbs[0])) if all(shape.rail_gbs[h][r] > 0 for h in p)]
    limits = [
        [float(h in p and r == rail) for p, r in links] + [-gbs]
        for h, row in enumerate(shape.rail_gbs)
        for rail, gbs in enumerate(row)
    ]
    demands = [[float(p == pair) for p, _ in links] + [0.0] for pair in pairs]
    found = linprog(
        [0.0] * len(links) + [1.0], A_ub=limits, b_ub=[0.0] * len(limits), A_eq=demands, b_eq=list(pairs.values())
    )
    assert found.status == 0, "a pair speaks that shares no rail"
    return float(found.x[-1])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("lost", "hosts", "rails"),
    [
        ({0: 0, 1: 1}, 3, 2),
        ({0: 0, 1: 1}, 4, 2),
        ({0: 0, 2: 1}, 6, 2),
        ({0: 0, 1: 1, 3: 0}, 6, 2),
        ({0: 0, 1: 1}, 4, 4),
        ({0: 2, 1: 1}, 5, 3),
    ],
)
def test_neighbours_that_lost_different_rails(lost: dict[int, int], hosts: int, rails: int, ranks: int) -> None:
    """Within 10 % of the linear program's bound, if rails are used as well as can be."""
    shape = shape_of(lost, hosts, rails, ranks)
    request = PlanRequest(C.ALL_REDUCE, 64 << 20)
    plans = [choose(request, shape, r) for r in range(hosts * ranks)]
    assert plans[0].algorithm == "tree_packing"
    verify(plans)
    assert time_on_rails(spoken(plans, shape), shape) <= 1.10 * separated_bound(shape.rail_gbs)


COLLECTIVES = [C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.BROADCAST, C.REDUCE]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_only_hosts_that_share_a_rail_speak(data: st.DataObject) -> None:
    hosts = data.draw(st.integers(3, 6), "hosts")
    row = st.lists(st.sampled_from([0.0, HEALTHY]), min_size=3, max_size=3).filter(any)
    rails = tuple(tuple(data.draw(row)) for _ in range(hosts))
    shape = ClusterShape(tuple((h,) for h in range(hosts)), rail_gbs=rails, connected=False)
    collective = data.draw(st.sampled_from(COLLECTIVES))
    request = PlanRequest(
        collective, data.draw(st.sampled_from([64, 1 << 24])), root=data.draw(st.integers(0, hosts - 1))
    )
    found = masks(rails)
    if shape.in_ring_order is None:
        if collective is not C.ALL_REDUCE:
            return
        try:
            tree(0, found, shape.gbs)
        except InvalidArgument:
            return  # two parts: nothing can help
    plans = [choose(request, shape, r) for r in range(hosts)]
    verify(plans)
    assert all(found[a] & found[b] for (a, b), volume in spoken(plans, shape).items() if volume > 0)


def test_rings_are_ranked_anew() -> None:
    """Hosts 0 and 1 lost different rails: a bridge comes between them, and the healthy order stays where it will do."""
    assert ring_order((0b11,) * 4) == (0, 1, 2, 3)
    order = ring_order((0b10, 0b01, 0b11, 0b11))
    assert order is not None and sorted(order) == [0, 1, 2, 3]
    assert abs(order.index(0) - order.index(1)) == 2
    assert ring_order((0b10, 0b01, 0b11)) is None  # three hosts are all neighbours
    assert ring_order((0b01, 0b10)) is None
    for n in (8, 64):
        rails = tuple(0b01 if h % 4 == 0 else 0b10 if h % 4 == 1 else 0b11 for h in range(n))
        order = ring_order(rails)
        assert order is not None and sorted(order) == list(range(n))
        assert all(rails[a] & rails[order[i - 1]] for i, a in enumerate(order))


def test_relays() -> None:
    assert tree(0, (0b10, 0b01, 0b11, 0b11), (0.5, 0.5, 1.0, 1.0)) == [[2, 3], [], [1], []]
    with pytest.raises(InvalidArgument, match=r"hosts \[1\]: no healthy rail"):
        tree(0, (0b01, 0b10), (1.0, 1.0))


def test_what_cannot_be_said_is_still_planned() -> None:
    """No relay for all_to_all: the pair waits until a rail returns. A forced algorithm must do without such pairs."""
    shape = shape_of({0: 0, 1: 1}, 4)
    plans = [choose(PlanRequest(C.GATHER, 64), shape, r) for r in range(4)]
    assert spoken(plans, shape)[0, 1] > 0  # and the check above would have seen it
    assert pick(PlanRequest(C.ALL_TO_ALL, 64), shape).name == "direct"
    with pytest.raises(InvalidArgument, match="some of which share no rail: use one of hierarchical, ring"):
        pick(PlanRequest(C.ALL_GATHER, 64), shape, "all_gather=direct")
    assert shape.undamaged.rails_apart == ()
    assert shape_of({0: 0}, 4).rails_apart == ()
