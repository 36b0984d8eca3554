"""case_23: ranks that are killed or frozen, and how soon and how surely the others get away from them."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_lifetime import BOUND_S, finish, start, wait_for
from test_shrink import die

import r2ccl
from r2ccl.testing import RankError, RankGroup, run_ranks
from r2ccl.testing.ranks import free_port

pytestmark = pytest.mark.timeout(60)

Comm = r2ccl.Communicator
LAYOUTS = pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (3, 2)], ids=["shm", "tcp"])
KNOWN_S = 1.0  # some milliseconds on an idle machine


@LAYOUTS
@pytest.mark.parametrize("mode", ["busy", "idle", "computing"])
def test_case_23_how_soon_a_killed_rank_is_known(tmp_path: Path, hosts: int, rails: int, mode: str) -> None:
    """In calls, by one that looks now and then, and by one that computes for a while and then calls."""

    def work(comm: Comm, folder: str) -> tuple[str, float]:
        died = Path(folder) / "died"
        x, y = np.ones(50_000), np.empty(50_000)
        for _ in range(5):
            comm.all_reduce(x, y)
        if comm.rank == 1:
            time.sleep(0.3)
            died.write_text(str(time.monotonic()))
            die()
        try:
            if mode == "computing":
                time.sleep(1.0)
            while True:
                if mode == "idle":
                    comm.check()
                    time.sleep(0.001)
                else:
                    comm.all_reduce(x, y, timeout_s=20)
        except r2ccl.PeerLost as error:
            return str(error), time.monotonic() - float(died.read_text())

    outcomes = run_ranks(work, 3, hosts=hosts, rails=rails, timeout_s=30, args=(str(tmp_path),), return_exceptions=True)
    assert isinstance(outcomes[1], RankError)
    for text, late_s in (outcomes[0], outcomes[2]):
        assert text.startswith("rank 1 is lost"), text
        assert late_s < KNOWN_S + 1.0 * (mode == "computing"), (text, late_s)


@pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (3, 2), (3, 1)], ids=["shm", "tcp", "tcp, one rail"])
def test_case_23_a_frozen_rank_is_a_timeout_and_all_goes_on_when_it_wakes(
    tmp_path: Path, hosts: int, rails: int
) -> None:
    """The call that timed out comes to its end as well, with the right result."""

    def work(comm: Comm, folder: str) -> list[str]:
        errors = []
        (Path(folder) / f"ready{comm.rank}").touch()
        if comm.rank != 1:
            wait_for(Path(folder) / "frozen")
            x, y = np.full(100_000, comm.rank + 1.0), np.empty(100_000)
            handle = comm.all_reduce(x, y, async_op=True)
            with pytest.raises(r2ccl.Timeout) as caught:
                handle.synchronize(0.8)
            errors.append(str(caught.value))
            (Path(folder) / f"timeout{comm.rank}").touch()
            handle.synchronize(20.0)
        else:
            wait_for(Path(folder) / "frozen")
            x, y = np.full(100_000, 2.0), np.empty(100_000)
            comm.all_reduce(x, y, timeout_s=20.0)
        assert (y == 6).all()
        for _ in range(20):
            comm.all_reduce(x, y, timeout_s=20.0)
            assert (y == 6).all()
        comm.check()
        return errors

    with RankGroup(work, 3, hosts=hosts, rails=rails, args=(str(tmp_path),)) as group:
        wait_for(tmp_path / "ready", 3)
        group.stop(1)
        (tmp_path / "frozen").touch()
        wait_for(tmp_path / "timeout", 2)
        group.cont(1)
        outcomes = group.join(timeout_s=30)
    assert outcomes[1] == []
    for r in (0, 2):
        assert "after 0.8 s" in outcomes[r][0]
        assert "rank 1 (" in outcomes[r][0]


@LAYOUTS
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_case_23_two_communicators_end_while_a_rank_is_gone(tmp_path: Path, hosts: int, rails: int, how: str) -> None:
    """Both in use from two threads. abort and close ask nobody."""

    def work(comm: Comm, folder: str) -> tuple[list[str], float, float]:
        other = r2ccl.init(config=comm.config)
        errors: list[str] = []

        def use(c: Comm) -> None:
            x, y = np.ones(40_000), np.empty(40_000)
            try:
                while True:
                    c.all_reduce(x, y, timeout_s=1.0)
            except r2ccl.R2cclError as error:
                errors.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=use, args=(c,)) for c in (comm, other)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        (Path(folder) / f"ready{comm.rank}").touch()
        for thread in threads:
            thread.join(20.0)
            assert not thread.is_alive()
        begin = time.monotonic()
        other.abort("enough")
        aborting = time.monotonic() - begin
        begin = time.monotonic()
        other.close()
        comm.close()
        return errors, aborting, time.monotonic() - begin

    with RankGroup(work, 3, hosts=hosts, rails=rails, args=(str(tmp_path),)) as group:
        wait_for(tmp_path / "ready", 3)
        group.kill(1) if how == "killed" else group.stop(1)
        outcomes = group.join(timeout_s=30, return_exceptions=True)
    for r in (0, 2):
        errors, aborting, closing = outcomes[r]
        assert len(errors) == 2
        if how == "killed":
            assert all(e.startswith("PeerLost: rank 1 ") for e in errors), errors
        assert aborting < 1.0
        assert closing < BOUND_S


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_case_23_the_interpreter_ends_though_a_rank_does_not_answer(number: int) -> None:
    """With a call under way that will never be done, and without close()."""
    program = """
print("ready", flush=True)
if comm.rank == 1:
    time.sleep(30)
work = comm.all_reduce(np.zeros(100_000), async_op=True)
time.sleep(0.5)
"""
    port = free_port()
    ranks = [start(program, rank, 2, port) for rank in range(2)]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        os.kill(ranks[1].pid, number)
        begin = time.monotonic()
        code, _, err = finish(ranks[0])
        assert code == 0, err
        assert time.monotonic() - begin < 2 * BOUND_S
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@LAYOUTS
def test_close_is_quick_when_all_is_well(hosts: int, rails: int) -> None:
    """Nothing in it waits for a thread that sleeps."""

    def work(comm: Comm) -> float:
        comm.all_reduce(np.ones(1000))
        comm.barrier()
        begin = time.monotonic()
        comm.close()
        return time.monotonic() - begin

    times: list[Any] = [max(run_ranks(work, 3, hosts=hosts, rails=rails, timeout_s=20)) for _ in range(3)]
    assert min(times) < 0.5, times
