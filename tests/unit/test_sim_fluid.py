"""Simulated plans against closed forms: rings, trees, a chain of hops, the lower bound; and that the messages are the plans'."""

from __future__ import annotations

import numpy as np
import pytest

from r2ccl.errors import InvalidArgument
from r2ccl.plan.algorithms import ALGORITHMS
from r2ccl.plan.bounds import connected_bound
from r2ccl.plan.task import Task
from r2ccl.plan.traffic import traffic
from r2ccl.sim.collective import TURNS, locals_of
from r2ccl.sim.fluid import Net, Outcome, simulate
from r2ccl.sim.messages import Local, gather, local_of
from r2ccl.types import Collective as C

MIB = 1 << 20
BY_NAME = {a.name: a for a in ALGORITHMS[C.ALL_REDUCE]}


def net(gbs: tuple[float, ...], alpha_us: float = 1.0, chunk: float = 64 << 10) -> Net:
    return Net(tuple(range(len(gbs))), gbs, 1000.0, alpha_us, chunk)


def all_reduce(name: str, gbs: tuple[float, ...], nbytes: int, alpha_us: float = 1.0) -> Outcome:
    return simulate(gather(locals_of(BY_NAME[name], gbs, nbytes)), net(gbs, alpha_us))


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16])
def test_a_ring_takes_its_closed_form(n: int) -> None:
    outcome = all_reduce("ring", (1.0,) * n, 64 * MIB)
    assert outcome.seconds == pytest.approx(2 * (n - 1) / n * 64 * MIB / 1e9, rel=0.02)


def test_a_ring_is_as_fast_as_its_slowest_host() -> None:
    assert all_reduce("ring", (0.5, 1.0, 1.0, 1.0), 64 * MIB).seconds == pytest.approx(1.5 * 64 * MIB / 0.5e9, rel=0.02)


def test_small_messages_cost_the_latency_of_every_step() -> None:
    n, alpha_us = 8, 100.0
    seconds = all_reduce("ring", (1.0,) * n, 1024, alpha_us).seconds
    assert seconds == pytest.approx(2 * (n - 1) * alpha_us * 1e-6, rel=0.15)


def test_a_chain_of_hops_passes_chunks_on() -> None:
    """Broadcast down a chain: the data once, and one chunk for each further hop (van de Geijn and others)."""
    n, nbytes, chunk, alpha_us = 9, 16 * MIB, 256 << 10, 20.0
    chain = next(a for a in ALGORITHMS[C.BROADCAST] if a.name == "chain")
    hosts = tuple((h,) for h in range(n))
    plans = [chain.build(Task(C.BROADCAST, n, r, hosts=hosts)) for r in range(n)]
    outcome = simulate(gather([local_of(p, nbytes) for p in plans]), net((1.0,) * n, alpha_us, chunk), 5000)
    hop = alpha_us * 1e-6 + chunk / 1e9
    assert outcome.seconds == pytest.approx(nbytes / 1e9 + (n - 2) * hop, rel=0.05)


@pytest.mark.parametrize("name", ["ring", "hierarchical", "tree_packing", "binary_packing", "optcc", "r2ccl_allreduce"])
@pytest.mark.parametrize("gbs", [(1.0, 1.0, 1.0), (0.75, 1.0, 1.0, 1.0), (0.5, 1.0, 1.0, 0.75, 1.0)])
def test_nothing_is_faster_than_the_bound(name: str, gbs: tuple[float, ...]) -> None:
    assert all_reduce(name, gbs, 32 * MIB).seconds >= connected_bound(gbs) * 32 * MIB / 1e9 * (1 - 1e-6)


@pytest.mark.parametrize(("n", "x", "within"), [(3, 1 / 3, 1.01), (8, 1 / 8, 1.03), (16, 1 / 8, 1.03)])
def test_tree_packing_comes_near_the_bound_with_one_damaged_host(n: int, x: float, within: float) -> None:
    gbs = (1 - x,) + (1.0,) * (n - 1)
    assert all_reduce("tree_packing", gbs, 256 * MIB).seconds <= within * connected_bound(gbs) * 256 * MIB / 1e9


@pytest.mark.parametrize("gbs", [(2 / 3, 2 / 3, 1.0), (0.75, 0.75, 1.0, 1.0), (0.5, 0.75, 1.0, 1.0, 1.0, 1.0)])
def test_paced_links_meet_the_bound_whatever_was_lost(gbs: tuple[float, ...]) -> None:
    messages = gather(locals_of(BY_NAME["tree_packing"], gbs, 64 * MIB))
    least = connected_bound(gbs) * 64 * MIB / 1e9
    paced = Net(tuple(range(len(gbs))), gbs, 1000.0, 1.0, 64 << 10, paced=True)
    assert simulate(messages, paced).seconds <= 1.01 * least
    assert simulate(messages, net(gbs)).seconds >= 1.03 * least  # equal shares do not


def test_the_length_of_a_step_matters_little() -> None:
    """Where paths are short: a star has two hops."""
    messages = gather(locals_of(BY_NAME["tree_packing"], (0.5,) + (1.0,) * 7, 256 * MIB))
    coarse, fine = (simulate(messages, net((0.5,) + (1.0,) * 7), steps).seconds for steps in (200, 3000))
    assert coarse == pytest.approx(fine, rel=0.02)


@pytest.mark.parametrize("name", [a.name for a in ALGORITHMS[C.ALL_REDUCE] if a.name != "exchange"])
def test_messages_are_those_of_the_plans(name: str) -> None:
    gbs, nbytes = (0.5, 1.0, 1.0, 1.0, 1.0), 10_007
    hosts = tuple((h,) for h in range(5))
    messages = gather(locals_of(BY_NAME[name], gbs, nbytes))
    for rank in range(5):
        moved = traffic(BY_NAME[name].build(Task(C.ALL_REDUCE, 5, rank, hosts=hosts, host_gbs=gbs)), nbytes)
        # A schedule that is turned has its odd elements elsewhere.
        assert messages.size[messages.src == rank].sum() == pytest.approx(moved.total_sent, abs=16)
        assert messages.size[messages.dst == rank].sum() == pytest.approx(moved.total_received, abs=16)


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("collective", [C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER])
def test_turned_plans_are_the_plans_of_the_other_ranks(name: str, collective: C) -> None:
    n = 6
    algorithm = next(a for a in ALGORITHMS[collective] if a.name == name)
    hosts = tuple((h,) for h in range(n))
    built = [local_of(algorithm.build(Task(collective, n, r, hosts=hosts)), 6000) for r in range(n)]
    for rank, local in enumerate(built):
        turned = built[0].turned(rank, n)
        for got, want in zip(vars(turned).values(), vars(local).values(), strict=True):
            assert got == want if isinstance(want, tuple) else (got == want).all()


def test_ranks_of_one_host_do_not_use_its_nics() -> None:
    hosts = ((0, 1), (2, 3))
    plans = [BY_NAME["hierarchical"].build(Task(C.ALL_REDUCE, 4, r, hosts=hosts)) for r in range(4)]
    outcome = simulate(
        gather([local_of(p, 8 * MIB) for p in plans]), Net((0, 0, 1, 1), (1.0, 1.0), 10.0, 1.0, 64 << 10)
    )
    assert outcome.moved[:4] == pytest.approx(
        [8 * MIB] * 4
    )  # sent and received by each host: 2 (H - 1) / H of the data
    assert outcome.moved[4:].min() > 0


def test_a_dead_host_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="without bandwidth"):
        simulate(gather(locals_of(BY_NAME["ring"], (1.0,) * 3, MIB)), net((0.0, 1.0, 1.0)))


def test_plans_that_do_not_match_are_refused() -> None:
    good = locals_of(BY_NAME["ring"], (1.0,) * 3, 3000)
    bad = Local(good[0].to, good[0].lane_out, good[0].size, (good[0].frm + 1) % 3, good[0].lane_in, good[0].needs)
    with pytest.raises(InvalidArgument, match="do not match"):
        gather([bad, *good[1:]])


def test_equal_messages_share_a_sender_equally() -> None:
    """One host sends to two others, of which one is slow: the fast one gets what the slow one cannot take."""
    none = np.array([], np.int64)
    size = np.array([2e6, 2e6])
    sender = Local(np.array([1, 2]), np.zeros(2, np.int64), size, none, none, ((), ()))
    taker = Local(none, none, np.array([]), np.array([0]), np.zeros(1, np.int64), ())
    outcome = simulate(gather([sender, taker, taker]), net((1.0, 0.2, 1.0), 1.0, 1e4))
    assert outcome.seconds == pytest.approx(2e6 / 0.2e9, rel=0.02)
