"""case_38: a hang names its culprit. One rank does not come; whoever asks is told which, and what every rank is doing."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import r2ccl
from r2ccl import Config
from r2ccl.testing import FaultScript, RankGroup, run_ranks

pytestmark = pytest.mark.timeout(60)

Comm = r2ccl.Communicator
LAYOUTS = pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (2, 2)], ids=["shm", "tcp"])
CALL = "all_reduce(count=1000, float64, sum) #1"
ASLEEP_S = 1.5


def hold_the_interpreter(seconds: float) -> None:
    """A C call that does not give the lock of the interpreter back: no Python thread of this process runs."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def until(condition: Any, what: str, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


@LAYOUTS
@pytest.mark.parametrize("rest", [time.sleep, hold_the_interpreter], ids=["sleeps", "computes"])
def test_the_rank_that_does_not_come_is_named(hosts: int, rails: int, rest: Any) -> None:
    def work(comm: Comm) -> Any:
        x = np.zeros(1000)
        comm.all_reduce(x)
        if comm.rank == 3:
            rest(ASLEEP_S)
            comm.all_reduce(x)
            return None
        handle = comm.all_reduce(x, async_op=True)
        status: dict[str, Any] = {}
        if comm.rank == 1:
            time.sleep(0.3)
            begin = time.monotonic()
            status = comm.status()
            status["took_s"] = time.monotonic() - begin
        handle.wait()
        return status

    status = run_ranks(work, 4, hosts=hosts, rails=rails, timeout_s=30)[1]
    assert [r["silent"] for r in status["ranks"]] == [""] * 4, "the core of a rank answers whatever its Python does"
    assert len(status["culprits"]) == 1
    culprit = status["culprits"][0]
    assert (culprit["ranks"], culprit["waiters"]) == ((3,), (0, 1, 2))
    assert f"rank 3 has not called {CALL}" in status["text"]
    assert "ranks 0-2 wait for it" in status["text"]
    sleeper = status["ranks"][3]
    assert (sleeper["submitted"], sleeper["finished"], sleeper["waits_for"]) == (1, 1, ())
    assert 0.1 < sleeper["since_s"] < ASLEEP_S
    assert "idle for" in sleeper["doing"]
    for waiter in status["ranks"][:3]:
        assert (waiter["submitted"], waiter["finished"]) == (2, 1)
        assert waiter["waits_for"]
        assert waiter["doing"].startswith(f"{CALL} for ")
    assert status["current"].startswith("all_reduce(count=1000, float64, sum)")


@LAYOUTS
def test_a_timeout_names_it_too(hosts: int, rails: int) -> None:
    """Through a ring or a tree a rank may have no dealings with the culprit at all."""

    def work(comm: Comm) -> str:
        x = np.zeros(1000)
        comm.all_reduce(x)
        if comm.rank == 3:
            time.sleep(1.0)
            comm.all_reduce(x)
            return ""
        with pytest.raises(r2ccl.Timeout) as caught:
            comm.all_reduce(x, timeout_s=0.3)
        time.sleep(1.0)
        return str(caught.value)

    texts = run_ranks(work, 4, hosts=hosts, rails=rails, timeout_s=30)
    for text in texts[:3]:
        assert f"rank 3 has not called {CALL}" in text, text
        assert "ranks 0-2 wait for it" in text


@LAYOUTS
def test_a_frozen_process_is_silent(tmp_path: Path, hosts: int, rails: int) -> None:
    """Stopped, it cannot answer; the others say so within the deadline, and when it was heard last."""

    def work(comm: Comm, folder: str) -> Any:
        comm.barrier()
        (Path(folder) / f"ready{comm.rank}").touch()
        until((Path(folder) / "frozen").exists, "the test did not go on")
        if comm.rank != 0:
            until((Path(folder) / "seen").exists, "rank 0 did not see it")
            return None
        handle = comm.all_reduce(np.zeros(1000), async_op=True)
        time.sleep(0.3)
        begin = time.monotonic()
        status = comm.status(timeout_s=0.3)
        took_s = time.monotonic() - begin
        assert not handle.done()
        (Path(folder) / "seen").touch()
        comm.abort("seen enough")
        return status, took_s

    with RankGroup(work, 3, hosts=hosts, rails=rails, args=(str(tmp_path),)) as group:
        until(lambda: len(list(tmp_path.glob("ready*"))) == 3, "the ranks did not start")
        group.stop(2)
        (tmp_path / "frozen").touch()
        outcomes = group.join(timeout_s=20, return_exceptions=True)
    assert isinstance(outcomes[0], tuple), outcomes[0]
    status, took_s = outcomes[0]
    assert 0.25 < took_s < 2.0
    frozen = status["ranks"][2]
    assert frozen["silent"] == "no answer"
    assert frozen["heard_s"] > 0.25
    assert "rank 2 does not answer (no answer, heard " in status["text"]
    assert status["ranks"][1]["silent"] == ""


def test_a_killed_rank_is_lost_and_the_others_say_so() -> None:
    def work(comm: Comm) -> Any:
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(r2ccl.PeerLost):
            comm.recv(np.zeros(3), 1)
        return comm.status()

    with RankGroup(work, 3) as group:
        outcomes = group.join(timeout_s=20, return_exceptions=True)
    for rank in (0, 2):
        status = outcomes[rank]
        assert status["state"] == "PEER_LOST"
        assert status["ranks"][1]["silent"] == "lost"
        assert status["ranks"][rank]["error"].startswith("rank 1 is lost")


def test_a_world_of_one_and_a_job_at_rest() -> None:
    def work(comm: Comm) -> dict[str, Any]:
        comm.barrier()
        time.sleep(0.2)
        status = comm.status()
        comm.barrier()
        return status

    (alone,) = run_ranks(work, 1, timeout_s=20)
    assert [r["rank"] for r in alone["ranks"]] == [0]
    assert alone["text"] == ""
    for status in run_ranks(work, 2, hosts=2, rails=2, timeout_s=20):
        assert set(status["rails"][0]) == {
            "name", "address", "state", "tx_bytes", "rx_bytes", "replayed_bytes", "verdict",
        }  # fmt: skip


def test_rails_show_their_state_what_they_carried_and_the_verdict() -> None:
    fault = str(FaultScript().blackhole(rail=1, after_bytes=200_000))

    def config(rank: int) -> Config:
        return Config(recovery=False, fault_script=fault if rank == 0 else "")

    def work(comm: Comm) -> Any:
        x, flag = np.ones(50_000), np.ones(1)
        deadline = time.monotonic() + 20
        while flag[0]:
            comm.all_reduce(x, op=r2ccl.ReduceOp.MAX)
            flag[0] = not comm.status()["rails"][1]["verdict"] and time.monotonic() < deadline
            comm.broadcast(flag)
        rails = comm.status()["rails"]
        assert comm.events(), "nobody took the program's events"
        comm.barrier()
        return rails

    whole, dead = run_ranks(work, 2, hosts=2, rails=2, config=config, timeout_s=40)[0]
    assert (whole["state"], whole["verdict"]) == ("up", "")
    assert whole["tx_bytes"] > 200_000
    assert dead["state"] == "down"
    assert "(peer 1: " in dead["verdict"]


def test_threads_may_ask_while_calls_run() -> None:
    """Nothing is held up for long, and no answer is taken for that to another question."""

    def work(comm: Comm) -> int:
        x, asked, stop = np.ones(20_000), [0, 0], threading.Event()

        def ask(mine: int) -> None:
            while not stop.is_set():
                status = comm.status()
                assert [r["rank"] for r in status["ranks"]] == list(range(comm.size))
                asked[mine] += 1

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(300):
            comm.all_reduce(x, op=r2ccl.ReduceOp.MAX)
        stop.set()
        for thread in threads:
            thread.join()
        assert (x == 1).all()
        comm.barrier()
        return min(asked)

    assert min(run_ranks(work, 3, hosts=3, rails=2, config=Config(), timeout_s=40)) > 0
