"""Every algorithm, proved: few ranks exhaustively, more at random, and on real numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import EVERY, NAMES, applies, hostings, places, plans_of, roots, wides
from plan_numbers import run

from r2ccl.plan.algorithms import Algorithm
from r2ccl.plan.exchange import p2p
from r2ccl.plan.ir import Plan
from r2ccl.plan.task import Task
from r2ccl.plan.verify import verify
from r2ccl.types import Collective as C

each = pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)


@each
def test_up_to_four_ranks_in_every_way(collective: C, algorithm: Algorithm) -> None:
    seed = 0
    for n in filter(lambda n: applies(algorithm, n), (1, 2, 3, 4)):
        for hosts in hostings(n):
            for wide in wides(collective):
                for in_place in places(collective):
                    for root in roots(collective, n):
                        seed += 1
                        plans = plans_of(algorithm, collective, n, root=root, wide=wide, in_place=in_place, hosts=hosts)
                        verify(plans, in_place, seed=seed)


@each
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_up_to_nine_ranks_at_random(collective: C, algorithm: Algorithm, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, algorithm.max_ranks or 9), "ranks")
    hosts = data.draw(st.sampled_from(hostings(n)), "hosts")
    root = data.draw(st.sampled_from(roots(collective, n)), "root")
    wide = data.draw(st.sampled_from(wides(collective)), "wide")
    in_place = data.draw(st.sampled_from(places(collective)), "in place")
    plans = plans_of(algorithm, collective, n, root=root, wide=wide, in_place=in_place, hosts=hosts)
    verify(plans, in_place, chunk=data.draw(st.integers(1, 4), "chunk"), seed=data.draw(st.integers(0, 99), "seed"))


def test_send_and_recv() -> None:
    verify([p2p(Task(C.SEND, 3, 2, peer=0)), p2p(Task(C.RECV, 3, 0, peer=2))])


COUNTS = [3, 0, 5, 1, 2, 7, 4, 1, 6]


@each
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_on_numbers(collective: C, algorithm: Algorithm, n: int) -> None:
    """Uneven blocks, one of them empty; sums of float16 with and without float32 in between."""
    if not applies(algorithm, n) or collective is C.BARRIER:
        return
    hosts = hostings(n)[-1]
    root = n - 1
    rng = np.random.default_rng(n)
    for wide in wides(collective):
        for in_place in places(collective):
            plans = plans_of(algorithm, collective, n, root=root, wide=wide, in_place=in_place, hosts=hosts)
            dtype = np.float16 if wide else np.int64
            sends, recvs, whole = _buffers(plans, dtype, in_place, rng)
            contributions = [s.copy() for s in sends]
            run(plans, sends, recvs, _starts)
            for plan, recv in zip(plans, recvs, strict=True):
                if plan.recv_window is not None:
                    np.testing.assert_array_equal(recv, _expected(plan, contributions, whole))


def _starts(plan: Plan, space: int) -> list[int]:
    if plan.space1 is not None:
        n = plan.nranks
        row = [COUNTS[(plan.rank * n + j) % 9] for j in range(n)]
        column = [COUNTS[(i * n + plan.rank) % 9] for i in range(n)]
        return plan.space0.starts_v(column if space else row)
    if plan.space0.split == 1 and len(plan.space0.weights) == plan.nranks:
        return plan.space0.starts_v(COUNTS[: plan.nranks])
    return plan.space0.starts(sum(COUNTS[: plan.nranks]))


def _range(plan: Plan, window: tuple[int, int] | None, space: int) -> slice:
    starts = _starts(plan, space)
    return slice(starts[window[0]], starts[window[1]]) if window else slice(0, 0)


def _buffers(
    plans: list[Plan], dtype: type, in_place: bool, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray], list[int]]:
    sends, recvs = [], []
    whole = _starts(plans[0], 0)
    for plan in plans:
        size = max(_starts(plan, 0)[-1], _starts(plan, 1)[-1])
        shared = rng.integers(0, 32, size).astype(dtype)
        other = shared if in_place else np.full(size, 77, dtype)
        sends.append(shared[_range(plan, plan.send_window, 0)])
        recvs.append(other[_range(plan, plan.recv_window, 1)])
    return sends, recvs, whole


def _expected(plan: Plan, inputs: list[np.ndarray], whole: list[int]) -> np.ndarray:
    kind = plan.collective
    if kind in (C.ALL_REDUCE, C.REDUCE):
        return sum(inputs[1:], inputs[0])
    if kind is C.REDUCE_SCATTER:
        return sum(inputs[1:], inputs[0])[_range(plan, plan.recv_window, 0)]
    if kind is C.BROADCAST:
        return inputs[plan.root]
    if kind in (C.ALL_GATHER, C.GATHER):
        return np.concatenate(inputs)
    if kind is C.SCATTER:
        return inputs[plan.root][_range(plan, plan.recv_window, 0)]
    n, r = plan.nranks, plan.rank
    pieces = []
    for i in range(n):
        row = plan.space0.starts_v([COUNTS[(i * n + j) % 9] for j in range(n)])
        pieces.append(inputs[i][row[r] : row[r + 1]])
    return np.concatenate(pieces)
