"""case_25: after a rank is lost the survivors make a communicator of their own, and need nobody else for it."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mp_checks import Checks

import r2ccl
from r2ccl import Config
from r2ccl.testing import RankError, RankGroup, run_ranks

pytestmark = pytest.mark.timeout(90)

Comm = r2ccl.Communicator
Survived = tuple[int, int, float]  # new rank, new size, seconds that shrink took
LAYOUTS = pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (4, 2), (2, 2)], ids=["shm", "tcp", "both"])
SOON_S = 8.0  # nobody waited for a deadline: far less than the 30 s that shrink may take in these tests


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def reduce_until_lost(comm: Comm, victims: tuple[int, ...] = (), timeout_s: float = 30.0, at: int = 20) -> str:
    """all_reduce for ever; ``victims`` end in the middle of it. The error of a survivor."""
    x, y = np.ones(60_000, np.float32), np.empty(60_000, np.float32)
    try:
        for i in range(1_000_000):
            if i == at and comm.rank in victims:
                comm.all_reduce(x, y, async_op=True)
                die()
            comm.all_reduce(x, y, timeout_s=timeout_s)
            assert y[0] == comm.size
            assert y[-1] == comm.size
    except (r2ccl.PeerLost, r2ccl.Timeout) as error:
        if comm.rank in victims:
            die()  # another one was quicker
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing happened")


def shrunk(comm: Comm, exclude: tuple[int, ...] = (), timeout_s: float = 30.0) -> tuple[Comm, float]:
    begin = time.monotonic()
    new = comm.shrink(exclude, timeout_s=timeout_s)
    return new, time.monotonic() - begin


def all_collectives(comm: Comm) -> None:
    checks = Checks(comm)
    for count in (7, 30_000, 300_000):
        checks.all_reduce(count)
        checks.all_reduce(count, in_place=True)
        checks.all_gather(count)
        checks.reduce_scatter(count)
        checks.broadcast(count, root=comm.size - 1)
        checks.all_to_all(count // 7)
    checks.ring(5000)
    comm.barrier()
    assert checks.compared >= 18


def survive(comm: Comm, victims: tuple[int, ...]) -> Survived:
    reduce_until_lost(comm, victims)
    new, took_s = shrunk(comm)
    assert new is not comm
    with pytest.raises(r2ccl.Aborted):
        comm.barrier()  # the old one is of no use any more
    all_collectives(new)
    new.close()
    return new.rank, new.size, took_s


def check_survivors(outcomes: list[Any], victims: tuple[int, ...]) -> None:
    left = [o for r, o in enumerate(outcomes) if r not in victims]
    for r in victims:
        assert isinstance(outcomes[r], RankError), outcomes[r]
        assert "SIGKILL" in outcomes[r].text
    # In the order of their old ranks, and without waiting for anybody.
    assert [o[:2] for o in left] == [(i, len(left)) for i in range(len(left))], outcomes
    assert max(o[2] for o in left) < SOON_S, outcomes


@LAYOUTS
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_case_25_survivors_of_a_killed_rank_go_on(hosts: int, rails: int, victim: int) -> None:
    """Also when it was rank 0, which ran the store of the start."""
    with RankGroup(survive, 4, hosts=hosts, rails=rails, args=((victim,),)) as group:
        check_survivors(group.join(timeout_s=40, return_exceptions=True), (victim,))


@pytest.mark.parametrize("victims", [(0, 1), (0, 4), (1, 2, 3)])
@pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (5, 1)], ids=["shm", "tcp"])
def test_case_25_several_ranks_are_killed_at_once(hosts: int, rails: int, victims: tuple[int, ...]) -> None:
    """Each survivor knows of one at first, and not all of the same one."""
    with RankGroup(survive, 5, hosts=hosts, rails=rails, args=(victims,)) as group:
        check_survivors(group.join(timeout_s=40, return_exceptions=True), victims)


def test_case_25_without_recovery_and_with_rails_on_one_host() -> None:
    for hosts, shm in ((3, True), (1, False)):
        config = Config(recovery=False, shm=shm)
        with RankGroup(survive, 3, hosts=hosts, rails=2, config=config, args=((0,),)) as group:
            check_survivors(group.join(timeout_s=40, return_exceptions=True), (0,))


def shrink_to_nothing(comm: Comm) -> list[tuple[int, int]]:
    """Rank 0 of each communicator dies in turn."""
    story = []
    while comm.size > 1:
        reduce_until_lost(comm, (0,))
        comm, _ = shrunk(comm)
        story.append((comm.rank, comm.size))
    comm.all_reduce(np.ones(3))
    comm.shrink().close()  # a world of one
    comm.close()
    return story


@pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (2, 1)], ids=["shm", "tcp"])
def test_case_25_again_and_again(hosts: int, rails: int) -> None:
    with RankGroup(shrink_to_nothing, 4, hosts=hosts, rails=rails) as group:
        outcomes = group.join(timeout_s=60, return_exceptions=True)
    assert outcomes[3] == [(2, 3), (1, 2), (0, 1)], outcomes
    assert all(isinstance(outcomes[r], RankError) for r in range(3))


def test_case_25_a_rank_that_computes_is_waited_for() -> None:
    """It has noticed nothing, comes late, and belongs to them."""

    def work(comm: Comm) -> Survived:
        if comm.rank == 1:
            reduce_until_lost(comm, (1,))
        if comm.rank == 2:
            time.sleep(2.0)
        else:
            reduce_until_lost(comm)
        new, took_s = shrunk(comm)
        all_collectives(new)
        return new.rank, new.size, took_s

    def first(comm: Comm) -> Survived:
        if comm.rank == 1:
            time.sleep(0.2)
            die()
        return work(comm)

    for hosts, rails in ((1, 0), (4, 1)):
        outcomes = run_ranks(first, 4, hosts=hosts, rails=rails, timeout_s=40, return_exceptions=True)
        check_survivors(outcomes, (1,))
        assert min(outcomes[0][2], outcomes[3][2]) > 1.0  # they did wait
        assert outcomes[2][2] < 1.5


# -- ranks that are left out though they live --------------------------------------------------------------------------


def excluded_rank(comm: Comm, pause_s: float) -> str:
    """What it reads when it calls shrink itself, while the others do or after that."""
    time.sleep(pause_s)
    with pytest.raises(r2ccl.Aborted, match=f"rank {comm.rank} is not among the survivors") as caught:
        comm.shrink(timeout_s=20)
    return str(caught.value)


@LAYOUTS
@pytest.mark.parametrize("excluded", [0, 2, 3])
@pytest.mark.parametrize("pause_s", [0.0, 0.8], ids=["at once", "later"])
def test_case_25_an_excluded_rank_that_lives(hosts: int, rails: int, excluded: int, pause_s: float) -> None:
    """Only one survivor excludes it: the others learn it. It is told why, and not waited for."""

    def work(comm: Comm) -> Any:
        if comm.rank == excluded:
            return excluded_rank(comm, pause_s)
        new, took_s = shrunk(comm, (excluded,) if comm.rank == 1 else ())
        all_collectives(new)
        if new.rank == 0:
            time.sleep(1.2)
        new.barrier()
        return new.rank, new.size, took_s

    outcomes = run_ranks(work, 4, hosts=hosts, rails=rails, timeout_s=40)
    assert "rank 1 excludes it" in outcomes.pop(excluded)
    assert [o[:2] for o in outcomes] == [(i, 3) for i in range(3)]
    assert max(o[2] for o in outcomes) < SOON_S


def test_case_25_a_rank_that_does_not_come_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    def work(comm: Comm) -> Any:
        if comm.rank == 1:
            return excluded_rank(comm, 3.0)
        logging.getLogger("r2ccl").addHandler(caplog.handler)
        new, took_s = shrunk(comm, timeout_s=1.0)
        new.all_reduce(np.ones(10))
        time.sleep(4.0)  # the keepers of the old door live as long as their communicator
        return new.rank, new.size, took_s, caplog.text

    for hosts, rails in ((1, 0), (3, 1)):
        outcomes = run_ranks(work, 3, hosts=hosts, rails=rails, timeout_s=40)
        assert "did not come within 1 s" in outcomes[1]
        assert [o[:2] for o in (outcomes[0], outcomes[2])] == [(0, 2), (1, 2)]
        assert all(0.9 < o[2] < SOON_S for o in (outcomes[0], outcomes[2]))
        assert "shrink leaves out rank 1 of 3 (rank 1: it did not come within 1 s)" in outcomes[0][3]


def wait_for(path: Path, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)


@pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (3, 2)], ids=["shm", "tcp"])
@pytest.mark.parametrize("frozen", [0, 1])
def test_case_25_a_frozen_rank_is_excluded_and_learns_it_when_it_wakes(
    tmp_path: Path, hosts: int, rails: int, frozen: int
) -> None:
    def work(comm: Comm, folder: str) -> Any:
        (Path(folder) / f"ready{comm.rank}").touch()
        if comm.rank == frozen:
            reduce_until_lost(comm)
            return excluded_rank(comm, 0.0)
        reduce_until_lost(comm, timeout_s=1.0)
        new, took_s = shrunk(comm, (frozen,))
        all_collectives(new)
        (Path(folder) / f"new{new.rank}").touch()
        wait_for(Path(folder) / "awake")
        time.sleep(3.0)
        return new.rank, new.size, took_s

    with RankGroup(work, 3, hosts=hosts, rails=rails, args=(str(tmp_path),)) as group:
        for r in range(3):
            wait_for(tmp_path / f"ready{r}")
        time.sleep(0.1)
        group.stop(frozen)
        for r in range(2):
            wait_for(tmp_path / f"new{r}")
        group.cont(frozen)
        (tmp_path / "awake").touch()
        outcomes = group.join(timeout_s=30)
    assert "excludes it" in outcomes.pop(frozen)
    assert [o[:2] for o in outcomes] == [(0, 2), (1, 2)]
    assert max(o[2] for o in outcomes) < SOON_S


def test_nobody_is_lost_and_all_call_it() -> None:
    """A new communicator of the same ranks; the calls of the old one end."""

    def work(comm: Comm) -> Survived:
        handle = comm.recv(np.zeros(3), 1 - comm.rank, async_op=True)
        new, took_s = shrunk(comm)
        with pytest.raises(r2ccl.Aborted):
            handle.wait()
        all_collectives(new)
        return new.rank, new.size, took_s

    for hosts in (1, 2):
        check_survivors(run_ranks(work, 2, hosts=hosts, timeout_s=30), ())


def test_exclude_is_checked_before_anything_happens() -> None:
    def work(comm: Comm) -> None:
        for bad in ([comm.rank], [2], [-1], ["x"], [0.5]):
            with pytest.raises(r2ccl.InvalidArgument, match="exclude holds"):
                comm.shrink(bad)
        comm.barrier()

    run_ranks(work, 2, timeout_s=20)


def test_a_parent_and_its_part_shrink_apart(tmp_path: Path) -> None:
    """The communicator of a split has a door of its own."""

    def work(comm: Comm) -> Survived:
        part = comm.split(comm.rank % 2)
        assert part is not None
        (tmp_path / f"split{comm.rank}").touch()
        if comm.rank == 2:
            for r in range(comm.size):  # a split runs over its parent, which dies with this rank
                wait_for(tmp_path / f"split{r}")
            die()
        if comm.rank % 2 == 0:
            reduce_until_lost(part)
            part, took_s = shrunk(part)
        else:
            took_s = 0.0
        part.all_reduce(x := np.ones(1000))
        assert x[0] == part.size
        whole, _ = shrunk(comm)
        all_collectives(whole)
        return whole.rank, whole.size, took_s

    check_survivors(run_ranks(work, 6, timeout_s=40, return_exceptions=True), (2,))
