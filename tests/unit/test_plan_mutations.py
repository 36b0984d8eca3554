"""The proof itself: plans broken in one place must be refused."""

from __future__ import annotations

import numpy as np
import pytest
from plan_cases import EVERY, NAMES, applies, changed, places, plans_of, wides

from r2ccl.errors import R2cclError
from r2ccl.plan import across, direct, doubling, optcc, partial_rings, ring
from r2ccl.plan.algorithms import Algorithm
from r2ccl.plan.builder import At, Builder
from r2ccl.plan.ir import Buf, Flag, OpKind, Plan
from r2ccl.plan.task import REDUCING, Task
from r2ccl.plan.verify import PlanError, verify
from r2ccl.plan.verify_local import deps_of
from r2ccl.types import Collective as C

each = pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)


@pytest.fixture(autouse=True)
def _few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation in one piece is as good as in another."""
    for module in (across, optcc, partial_rings):
        monkeypatch.setattr(module, "PIECES", 1)


def proves(plans: list[Plan], in_place: bool) -> bool:
    """Whether the plans pass with parts that hold several chunks each."""
    try:
        verify(plans, in_place, sizes=None if plans[0].space1 else [3] * plans[0].space0.parts, seed=1)
    except R2cclError:
        return False
    return True


def variants(collective: C, algorithm: Algorithm) -> list[tuple[list[Plan], bool]]:
    hosts = ((0, 1), (2, 3)) if algorithm.min_hosts < 3 else ((0, 1), (2,), (3,))
    n = 4 if applies(algorithm, 4) else 2
    more = {"host_gbs": (0.6, 0.8, 1.0)} if algorithm.uneven else {}
    return [
        (plans_of(algorithm, collective, n, wide=w, in_place=p, hosts=hosts if n == 4 else (), **more), p)
        for w in wides(collective)
        for p in places(collective)
    ]


def dependencies(plan: Plan) -> list[list[tuple[int, int]]]:
    return [deps_of(plan, op) for op in range(len(plan.ops))]


@each
def test_every_op_is_needed(collective: C, algorithm: Algorithm) -> None:
    for plans, in_place in variants(collective, algorithm):
        assert proves(plans, in_place)
        for r, plan in enumerate(plans):
            for op in range(len(plan.ops)):
                left = [i for i in range(len(plan.ops)) if i != op]
                deps = [[(d - (d > op), whole) for d, whole in deps_of(plan, i) if d != op] for i in left]
                broken = changed(plan, plan.ops[left], deps)
                assert not proves([*plans[:r], broken, *plans[r + 1 :]], in_place), (r, op)


@each
def test_every_dependency_is_needed(collective: C, algorithm: Algorithm) -> None:
    """So the derived dependencies are minimal, too: one that can go without notice would be a wait for nothing."""
    for plans, in_place in variants(collective, algorithm):
        for r, plan in enumerate(plans):
            deps = dependencies(plan)
            for op in range(len(plan.ops)):
                for k in range(len(deps[op])):
                    fewer = [d if i != op else d[:k] + d[k + 1 :] for i, d in enumerate(deps)]
                    broken = changed(plan, plan.ops, fewer)
                    assert not proves([*plans[:r], broken, *plans[r + 1 :]], in_place), (r, op, deps[op][k])


@each
def test_peers_swapped_or_shifted(collective: C, algorithm: Algorithm) -> None:
    for plans, in_place in variants(collective, algorithm):
        n = len(plans)
        for r, plan in enumerate(plans):
            talking = np.flatnonzero(plan.ops["peer"] >= 0)
            for op in talking:
                ops = plan.ops.copy()
                ops["peer"][op] = (ops["peer"][op] + 1) % n
                broken = changed(plan, ops, dependencies(plan))
                assert not proves([*plans[:r], broken, *plans[r + 1 :]], in_place), (r, op)


@each
def test_flags_flipped(collective: C, algorithm: Algorithm) -> None:
    """FINAL once too often or too rarely, and a payload of the other width."""
    for plans, in_place in variants(collective, algorithm):
        for r, plan in enumerate(plans):
            for op, row in enumerate(plan.ops):
                bits = [Flag.FINAL] if collective in REDUCING else []
                bits += [Flag.WIDE] if plan.wide or row["kind"] in (OpKind.SEND, OpKind.RECV) else []
                for bit in bits:
                    ops = plan.ops.copy()
                    ops["flags"][op] ^= bit
                    broken = changed(plan, ops, dependencies(plan))
                    assert not proves([*plans[:r], broken, *plans[r + 1 :]], in_place), (r, op, bit)


@each
def test_other_parts(collective: C, algorithm: Algorithm) -> None:
    for plans, in_place in variants(collective, algorithm):
        if plans[0].space0.parts == 1:
            continue
        for r, plan in enumerate(plans):
            for op, row in enumerate(plan.ops):
                ops = plan.ops.copy()
                side = "src" if row["kind"] == OpKind.SEND else "dst"
                ops[side][op] = (ops[side][op] + 1) % plan.space0.parts
                broken = changed(plan, ops, dependencies(plan))
                assert not proves([*plans[:r], broken, *plans[r + 1 :]], in_place), (r, op)


def test_plan_for_two_buffers_used_in_place() -> None:
    plans = [ring.all_reduce(Task(C.ALL_REDUCE, 3, r)) for r in range(3)]
    verify(plans, False)
    with pytest.raises(PlanError, match="without waiting for op"):
        verify(plans, True, sizes=[3, 3, 3])


def test_ranks_that_sum_in_different_orders() -> None:
    """Two ways to sum four contributions: recursive doubling over neighbours, and over a shuffled ring."""
    hosts = ((0, 2), (1, 3))
    plans = [doubling.all_reduce(Task(C.ALL_REDUCE, 4, r, hosts=hosts if r in (0, 3) else ())) for r in range(4)]
    with pytest.raises(PlanError):
        verify(plans)


def test_an_order_that_differs_between_ranks() -> None:
    """Every rank adds up everything, each starting with itself: complete, but not the same bits."""

    def plan(rank: int) -> Plan:
        b = Builder(Task(C.ALL_REDUCE, 3, rank), "each from itself", (1,))
        others = [(rank + k) % 3 for k in (1, 2)]
        for other in others:
            b.send(other, At(Buf.SEND, 0))
        b.recv_reduce(others[0], At(Buf.RECV, 0), At(Buf.SEND, 0))
        b.recv_reduce(others[1], At(Buf.RECV, 0), At(Buf.RECV, 0), final=True)
        return b.finish()

    with pytest.raises(PlanError, match="another order"):
        verify([plan(r) for r in range(3)], sizes=[2])


def test_needs_more_than_one_chunk_of_buffer() -> None:
    """Rank 1 takes x only after z, which follows w, which rank 0 sends after x: x must fit into the buffer."""
    root, middle, last = (Builder(Task(C.BROADCAST, 3, r), "crossed", (1, 1)) for r in range(3))
    root.send(1, At(Buf.SEND, 0))  # x
    root.send(2, At(Buf.SEND, 1))  # w
    root.copy(root.all(Buf.RECV), root.all(Buf.SEND))
    middle.recv(2, At(Buf.RECV, 1))  # z
    middle.recv(0, At(Buf.RECV, 0))  # x
    middle.send(2, At(Buf.RECV, 0))
    last.recv(0, At(Buf.RECV, 1))  # w
    last.send(1, At(Buf.RECV, 1))  # z
    last.recv(1, At(Buf.RECV, 0))
    plans = [b.finish() for b in (root, middle, last)]
    verify(plans, sizes=[3, 1])
    plans[0] = changed(plans[0], plans[0].ops, [[], [(0, 1)], []])
    plans[1] = changed(plans[1], plans[1].ops, [[], [(0, 1)], [(1, 0)]])
    verify(plans, sizes=[2, 1])
    with pytest.raises(PlanError, match="deadlock"):
        verify(plans, sizes=[3, 1])


def test_each_waits_for_the_other() -> None:
    plans = [direct.exchange(Task(C.ALL_REDUCE, 2, r)) for r in range(2)]
    crossed = []
    for plan in plans:
        ops = plan.ops[[1, 0]]
        crossed.append(changed(plan, ops, [[], [(0, 0)]]))
    with pytest.raises(PlanError, match="deadlock"):
        verify(crossed, sizes=[2])


def test_error_says_where() -> None:
    plans = [ring.all_gather(Task(C.ALL_GATHER, 3, r)) for r in range(3)]
    ops = plans[2].ops.copy()
    ops["peer"][-1] = 7
    with pytest.raises(PlanError, match=r"all_gather/ring: rank 2, op 4 \(RECV peer 7, lane 0\): peer 7 of 3") as info:
        verify([*plans[:2], changed(plans[2], ops, dependencies(plans[2]))])
    assert (info.value.rank, info.value.op) == (2, 4)
