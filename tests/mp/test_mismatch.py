"""case_26: ranks that disagree about a call all get Mismatch, soon, and it names who differs."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import r2ccl
from r2ccl import Config, ReduceOp
from r2ccl.testing import run_ranks

pytestmark = pytest.mark.timeout(60)

Comm = r2ccl.Communicator
Body = Callable[[Comm, bool], None]
Barrier = get_context("fork").Barrier
BOUND_S = 5.0  # typically a fraction of a second; a machine under load gets more


def f4(count: int = 1000) -> np.ndarray[Any, Any]:
    return np.zeros(count, np.float32)


def size(comm: Comm, odd: bool) -> None:
    comm.all_reduce(f4(200 if odd else 100))


def large_size(comm: Comm, odd: bool) -> None:
    """The same chunks but for the last one."""
    comm.all_reduce(f4(409_598 if odd else 409_600))


def dtype(comm: Comm, odd: bool) -> None:
    comm.all_reduce(np.zeros(1000, np.int32 if odd else np.float32))


def operator(comm: Comm, odd: bool) -> None:
    comm.all_reduce(f4(), op=ReduceOp.MAX if odd else ReduceOp.SUM)


def root(comm: Comm, odd: bool) -> None:
    comm.broadcast(f4(), root=1 if odd else 0)


def root_of_reduce(comm: Comm, odd: bool) -> None:
    comm.reduce(f4(), root=1 if odd else 0)


def root_of_gather(comm: Comm, odd: bool) -> None:
    comm.gather(f4(), f4(1000 * comm.size), root=1 if odd else 0)


def root_of_scatter(comm: Comm, odd: bool) -> None:
    comm.scatter(f4(1000 * comm.size), f4(), root=1 if odd else 0)


def collective(comm: Comm, odd: bool) -> None:
    if odd:
        comm.broadcast(f4(), root=0)
    else:
        comm.all_reduce(f4())


def barrier_instead(comm: Comm, odd: bool) -> None:
    if odd:
        comm.barrier()
    else:
        comm.all_reduce(f4())


def order(comm: Comm, odd: bool) -> None:
    """The same two calls, swapped."""
    calls = [lambda: comm.all_reduce(f4(3000)), lambda: comm.all_gather(f4(10), f4(10 * comm.size))]
    for call in reversed(calls) if odd else calls:
        call()


def gather_size(comm: Comm, odd: bool) -> None:
    block = 11 if odd else 10
    comm.gather(f4(block), f4(block * comm.size), root=0)


def counts_given(comm: Comm, odd: bool) -> None:
    """_v or not, with equal counts."""
    send, recv = f4(10), f4(10 * comm.size)
    if odd:
        comm.all_gather_v(send, recv, [10] * comm.size)
    else:
        comm.all_gather(send, recv)


def empty(comm: Comm, odd: bool) -> None:
    comm.all_reduce(f4(0 if odd else 100))


CASES: list[Body] = [
    size,
    large_size,
    dtype,
    operator,
    collective,
    barrier_instead,
    order,
    gather_size,
    counts_given,
    empty,
]


def go_on(comm: Comm, body: Body, odd: bool) -> None:
    """A rank whose part is done before the others' disagreement reaches it learns of it at a later call."""
    body(comm, odd)
    for _ in range(50):
        comm.barrier()
        time.sleep(0.01)


def provoke(comm: Comm, body: Body, odd_rank: int, together: Any = None) -> tuple[str, float, float]:
    """The message, the seconds until it came, and how long close() took. ``together``: all wait there before that."""
    comm.barrier()
    begin = time.monotonic()
    with pytest.raises(r2ccl.Mismatch) as caught:
        go_on(comm, body, comm.rank == odd_rank)
    elapsed = time.monotonic() - begin
    with pytest.raises(r2ccl.Mismatch):
        comm.all_reduce(f4())
    with pytest.raises(r2ccl.Mismatch):
        comm.check()
    if together is not None:
        together.wait(BOUND_S)
    begin = time.monotonic()
    comm.close()
    return str(caught.value), elapsed, time.monotonic() - begin


def check(outcomes: list[tuple[str, float, float]]) -> list[str]:
    for rank, (_, elapsed, closing) in enumerate(outcomes):
        assert elapsed < BOUND_S, f"rank {rank} learnt of it after {elapsed:.1f} s"
        assert closing < BOUND_S, f"rank {rank} closed in {closing:.1f} s"
    return [text for text, *_ in outcomes]


@pytest.mark.parametrize(("n", "hosts", "rails", "odd"), [(3, 1, 0, 1), (4, 2, 2, 3), (3, 3, 1, 0)])
@pytest.mark.parametrize("body", CASES, ids=lambda b: b.__name__)
def test_case_26_the_odd_one_out_is_named(body: Body, n: int, hosts: int, rails: int, odd: int) -> None:
    outcomes = run_ranks(provoke, n, hosts=hosts, rails=rails, args=(body, odd, Barrier(n)), timeout_s=20)
    for text in check(outcomes):
        assert text.startswith("ranks disagree about collective call"), text
        assert f": rank {odd} calls " in text, text


@pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (2, 2)])
@pytest.mark.parametrize("body", [size, dtype, operator, order, collective], ids=lambda b: b.__name__)
def test_case_26_of_two_both_are_named(body: Body, hosts: int, rails: int) -> None:
    for text in check(run_ranks(provoke, 2, hosts=hosts, rails=rails, args=(body, 1, Barrier(2)), timeout_s=20)):
        assert "rank 0 calls " in text
        assert "rank 1 calls " in text


@pytest.mark.parametrize(
    ("body", "n", "hosts", "odd"),
    [
        (root, 3, 1, 1),
        (root, 4, 2, 3),
        (root, 2, 1, 0),
        (root, 3, 3, 0),
        (root_of_reduce, 3, 3, 0),
        (root_of_reduce, 4, 2, 3),
        (root_of_reduce, 2, 2, 1),
        (root_of_reduce, 3, 1, 1),
        (root_of_gather, 2, 1, 1),
        (root_of_scatter, 3, 1, 0),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_roots_that_differ(body: Body, n: int, hosts: int, odd: int) -> None:
    config = Config(timeout_s=1.5)
    outcomes = run_ranks(provoke, n, hosts=hosts, config=config, args=(body, odd, Barrier(n)), timeout_s=20)
    for text in check(outcomes):
        assert f"rank {odd} calls " in text, text


def test_two_roots_that_both_send() -> None:
    """Each is done at once, with wrong data at both; the frames come later and must not be dropped in silence."""
    for _ in range(15):
        check(run_ranks(provoke, 2, hosts=2, args=(root_of_scatter, 1, Barrier(2)), timeout_s=20))


def test_closing_at_once_does_not_hide_the_reason() -> None:
    """Ranks that learn of it first close their communicators while others are still about to learn of it."""
    for _ in range(40):
        check(run_ranks(provoke, 4, hosts=2, rails=2, args=(collective, 3), timeout_s=20))


def test_the_message_shows_both_calls() -> None:
    for text in check(run_ranks(provoke, 3, args=(dtype, 2, Barrier(3)), timeout_s=20)):
        assert "rank 2 calls all_reduce(count=1000, int32, sum)" in text
        assert "ranks 0, 1 call all_reduce(count=1000, float32, sum)" in text


def counts_differ(comm: Comm, odd: bool) -> None:
    counts = [10 + r for r in range(comm.size)]
    if odd:
        counts[0] += 1
    comm.all_gather_v(f4(counts[comm.rank]), f4(sum(counts)), counts)


def counts_differ_reduce_scatter(comm: Comm, odd: bool) -> None:
    counts = [10 + r for r in range(comm.size)]
    if odd:
        counts[0] += 1
    comm.reduce_scatter_v(f4(sum(counts)), f4(counts[comm.rank]), counts)


def counts_differ_all_to_all(comm: Comm, odd: bool) -> None:
    """Rank 0 sends one element more than the odd rank expects."""
    counts = [[5] * comm.size for _ in range(2)]
    if odd:
        counts[1][0] = 4
    comm.all_to_all_v(f4(sum(counts[0])), counts[0], f4(sum(counts[1])), counts[1])


@pytest.mark.parametrize(("n", "hosts"), [(2, 1), (3, 1), (3, 3)])
@pytest.mark.parametrize(
    "body", [counts_differ, counts_differ_reduce_scatter, counts_differ_all_to_all], ids=lambda b: b.__name__
)
def test_given_counts_that_disagree(body: Body, n: int, hosts: int) -> None:
    """Counts differ from rank to rank by right, so the message says where one met another that does not fit."""
    texts = check(run_ranks(provoke, n, hosts=hosts, args=(body, n - 1, Barrier(n)), timeout_s=20))
    assert all("rank" in text for text in texts)
    assert any("the counts or the settings of the two ranks differ" in text for text in texts), texts


def message_size(comm: Comm, odd: bool) -> None:
    if odd:
        comm.recv(f4(11), 0)
    elif comm.rank == 0:
        comm.send(f4(10), comm.size - 1)


def message_dtype(comm: Comm, odd: bool) -> None:
    if odd:
        comm.recv(np.zeros(100_000, np.int32), 0)
    elif comm.rank == 0:
        comm.send(f4(100_000), comm.size - 1)


@pytest.mark.parametrize(("n", "hosts"), [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("body", [message_size, message_dtype], ids=lambda b: b.__name__)
def test_messages_that_do_not_fit(body: Body, n: int, hosts: int) -> None:
    texts = check(run_ranks(provoke, n, hosts=hosts, args=(body, n - 1, Barrier(n)), timeout_s=20))
    assert all("rank 0" in text and f"rank {n - 1}" in text for text in texts), texts


def outstanding(comm: Comm, odd: bool) -> None:
    works = [comm.all_reduce(f4(100 + (i == 5 and odd)), async_op=True) for i in range(10)]
    for work in works[:5]:
        work.wait()  # what came before the disagreement is good
    for work in works[6:]:
        with pytest.raises(r2ccl.Mismatch):
            work.wait()
    works[5].wait()


def test_calls_under_way_end() -> None:
    for text in check(run_ranks(provoke, 3, args=(outstanding, 1, Barrier(3)), timeout_s=20)):
        assert "rank 1 calls all_reduce(count=101" in text


def test_agreement_raises_nothing() -> None:
    """Negative control: the same bodies without an odd one."""

    def work(comm: Comm) -> None:
        for body in (*CASES, counts_differ, counts_differ_reduce_scatter, counts_differ_all_to_all):
            body(comm, False)
        comm.barrier()

    run_ranks(work, 3, timeout_s=20)
