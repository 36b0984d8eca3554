"""case_25: what arrays hold after a call that failed: inputs as they were, in-place ones too with ``keep_input``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mp_checks import Checks, data
from test_shrink import check_survivors, die

import r2ccl
from r2ccl import Config
from r2ccl.testing import run_ranks

pytestmark = pytest.mark.timeout(60)

Comm = r2ccl.Communicator
COUNT = 120_000
LAYOUTS = pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (3, 2)], ids=["shm", "tcp"])


def in_place(comm: Comm, keep: bool | None) -> dict[str, tuple[np.ndarray[Any, Any], Callable[[], Any]]]:
    """By name: an array and a call that overwrites it, in place."""
    x = data(comm.rank, COUNT)
    first, block = comm.rank * (COUNT // comm.size), COUNT // comm.size
    counts = [block] * comm.size
    own = x[first : first + block]
    return {
        "all_reduce": (x, lambda: comm.all_reduce(x, keep_input=keep)),
        "reduce": (x, lambda: comm.reduce(x, root=0, keep_input=keep)),
        "reduce_scatter": (x, lambda: comm.reduce_scatter(x, own, keep_input=keep)),
        "reduce_scatter_v": (x, lambda: comm.reduce_scatter_v(x, own, counts, keep_input=keep)),
        "all_to_all": (x, lambda: comm.all_to_all(x, x, keep_input=keep)),
    }


NAMES = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v", "all_to_all")


@LAYOUTS
@pytest.mark.parametrize("name", NAMES)
def test_case_25_an_in_place_call_that_fails_leaves_its_input(hosts: int, rails: int, name: str) -> None:
    """Rank 2 takes part for a while and dies in the middle of a call that the others are in as well."""

    def work(comm: Comm) -> Any:
        array, call = in_place(comm, True)[name]
        before = array.copy()
        for _ in range(5):
            array[:] = before
            call()
        comm.barrier()
        array[:] = before
        if comm.rank == 2:
            time.sleep(0.3)
            die()
        if comm.rank == 1 and name == "reduce":
            time.sleep(0.5)  # it may be done at once where it only sends
            return 0, 1, 0.0
        with pytest.raises(r2ccl.PeerLost):
            call()
        assert array.tobytes() == before.tobytes()
        return 0, 1, 0.0

    outcomes = run_ranks(work, 3, hosts=hosts, rails=rails, timeout_s=30, return_exceptions=True)
    for r in (0, 1):
        assert outcomes[r] == (0, 1, 0.0), outcomes


def broken(comm: Comm, keep: bool | None) -> bool:
    """Whether an in-place all_reduce that failed late left its input as it was."""
    array, call = in_place(comm, keep)["all_reduce"]
    before = array.copy()
    comm.barrier()
    if comm.rank == 2:
        comm.all_reduce(array, async_op=True)  # its data are on the way
        time.sleep(0.3)
        die()
    if comm.rank == 1:
        time.sleep(1.0)  # rank 0 has rank 2's data by now, and waits for rank 1
    with pytest.raises(r2ccl.PeerLost):
        call()
    return bool((array == before).all())


def test_case_25_without_keep_input_it_may_be_overwritten() -> None:
    """Negative control: the call did write before it failed, so it is the copy that makes the difference."""
    for keep, default, want in ((False, True, False), (None, False, False), (True, False, True), (None, True, True)):
        settings = Config(keep_input=default)

        def work(comm: Comm, keep: bool | None = keep) -> bool:
            return broken(comm, keep)

        outcomes = run_ranks(work, 3, config=settings, timeout_s=30, return_exceptions=True)
        assert outcomes[0] is want, (keep, default, outcomes)


@LAYOUTS
@pytest.mark.parametrize(
    "name", ["all_reduce", "all_gather in place", "gather in place", "scatter in place", "broadcast"]
)
def test_case_25_inputs_of_other_calls_are_intact(hosts: int, rails: int, name: str) -> None:
    """Nothing is kept for these: they never write there. Outputs may hold anything."""

    def work(comm: Comm) -> bool:
        whole, block = data(comm.rank, COUNT), COUNT // comm.size
        own = whole[comm.rank * block : (comm.rank + 1) * block]
        calls: dict[str, tuple[np.ndarray[Any, Any], Callable[[], Any]]] = {
            "all_reduce": (whole, lambda: comm.all_reduce(whole, np.empty_like(whole))),
            "all_gather in place": (own, lambda: comm.all_gather(own, whole)),
            "gather in place": (own, lambda: comm.gather(own, whole if comm.rank == 0 else None)),
            "scatter in place": (
                whole,
                lambda: comm.scatter(whole, own) if comm.rank == 0 else comm.scatter(None, np.empty_like(own)),
            ),
            "broadcast": (whole, lambda: comm.broadcast(whole)),
        }
        kept, call = calls[name]
        before = kept.copy()
        comm.barrier()
        if comm.rank == 2:
            time.sleep(0.3)
            die()
        failed = False
        for _ in range(100):  # the first ones may be done without rank 2
            try:
                call()
            except r2ccl.PeerLost:
                failed = True
                break
        assert failed
        return (name in ("broadcast", "scatter in place") and comm.rank != 0) or kept.tobytes() == before.tobytes()

    outcomes = run_ranks(work, 3, hosts=hosts, rails=rails, timeout_s=30, return_exceptions=True)
    assert outcomes[:2] == [True, True], outcomes


@LAYOUTS
@pytest.mark.parametrize("victims", [(1,), (0, 3)], ids=str)
def test_case_25_training_goes_on(hosts: int, rails: int, victims: tuple[int, ...]) -> None:
    """The loop of README.md: the failed call may have ended well on some ranks, and all go on from there."""

    def work(comm: Comm) -> Any:
        old, step = comm.rank, 0
        weights = np.zeros(50_000)
        while step < 60:
            try:
                if (step == 20 and old == victims[0]) or (step == 40 and old == victims[-1]):
                    comm.all_reduce(np.full(50_000, step + 1.0), op=r2ccl.ReduceOp.AVG, async_op=True)
                    die()
                gradient = np.full(50_000, float(step + 1))
                comm.all_reduce(gradient, op=r2ccl.ReduceOp.AVG)
                weights += gradient
                step += 1
            except r2ccl.PeerLost:
                comm = comm.shrink(timeout_s=20)
                got = np.empty(comm.size, np.int64)
                comm.all_gather(np.array([step]), got)
                comm.broadcast(weights, root=int(got.argmax()))
                step = int(got.max())
        comm.close()
        # The average of equal numbers is that number, whoever takes part: every step counted exactly once.
        assert (weights == sum(range(1, 61))).all()
        return comm.rank, comm.size, 0.0

    outcomes = run_ranks(work, 4, hosts=hosts, rails=rails, timeout_s=40, return_exceptions=True)
    check_survivors(outcomes, victims)


def test_case_25_inputs_of_calls_that_nobody_waits_for_any_more() -> None:
    """A timeout leaves the call running; abort, shrink or close end it, and then its input is back."""

    def work(comm: Comm, how: str) -> None:
        x = data(comm.rank, COUNT)
        before = x.copy()
        if comm.rank == 2:
            time.sleep(3.5)  # close() gives the call two seconds
            with contextlib.suppress(r2ccl.PeerLost):  # what it needs may be there already
                comm.all_reduce(x)
            return
        if comm.rank == 0 and how == "handle":
            handle = comm.all_reduce(x, async_op=True)
            time.sleep(0.8)
            comm.abort("enough")
            with pytest.raises((r2ccl.Aborted, r2ccl.PeerLost)):
                handle.wait()
        else:
            with pytest.raises((r2ccl.Timeout, r2ccl.PeerLost)):
                comm.all_reduce(x, timeout_s=0.5)
        if how == "abort":
            comm.abort("enough")
        elif how == "close":
            comm.close()
        elif how == "shrink":
            comm = comm.shrink((2,), timeout_s=20)
            assert comm.size == 2
        elif comm.rank == 1:
            comm.abort()
        assert x.tobytes() == before.tobytes(), how
        if how == "shrink":
            Checks(comm).all_reduce(1000)

    for how in ("abort", "close", "shrink", "handle"):
        run_ranks(work, 3, config=Config(keep_input=True), timeout_s=30, args=(how,))


def test_results_are_no_different_with_keep_input() -> None:
    def work(comm: Comm) -> int:
        checks = Checks(comm)
        for count in (0, 1, 100, 5000, 300_000, 20):
            checks.all_reduce(count, in_place=True)
            checks.all_reduce(count)
            checks.reduce(count, root=1, in_place=True)
            checks.reduce_scatter(count, in_place=True)
            checks.reduce_scatter_v([count, 3], in_place=True)
            checks.all_to_all(count, in_place=True)
            checks.all_gather(count, in_place=True)
            checks.broadcast(count, root=0, in_place=True)
        arrays = [np.full(n, n, np.int64) for n in (100_000, 10, 5000)]
        for handle in [comm.all_reduce(x, async_op=True) for x in arrays]:
            handle.wait()
        assert all((x == 2 * x.size).all() for x in arrays)
        return checks.compared

    assert min(run_ranks(work, 2, config=Config(keep_input=True), timeout_s=30)) >= 40
