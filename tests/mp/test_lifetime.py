"""case_23, 24, 38: a communicator ends, whatever happens to its ranks, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import r2ccl
from r2ccl import Config
from r2ccl.testing import RankError, RankGroup, run_ranks
from r2ccl.testing.ranks import free_port

pytestmark = pytest.mark.timeout(60)

Comm = r2ccl.Communicator
LAYOUTS = pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (3, 2)], ids=["shm", "tcp"])
BOUND_S = 5.0


def wait_for(path: Path, count: int = 1, timeout_s: float = 10.0) -> None:
    """Until ``count`` ranks have left a file that begins with ``path``'s name."""
    deadline = time.monotonic() + timeout_s
    while len(list(path.parent.glob(path.name + "*"))) < count:
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.005)


# -- waiting that is cut short -----------------------------------------------------------------------------------------


@LAYOUTS
def test_case_24_timeout_names_whom_it_waits_for(hosts: int, rails: int) -> None:
    """case_24, case_38: one rank does not come. The others say so, and say what they were doing."""

    def work(comm: Comm) -> str:
        if comm.rank == 1:
            time.sleep(0.6)
            comm.all_reduce(np.zeros(1000))
            return ""
        x = np.zeros(1000)
        begin = time.monotonic()
        with pytest.raises(r2ccl.Timeout) as caught:
            comm.all_reduce(x, timeout_s=0.3)
        assert 0.25 < time.monotonic() - begin < BOUND_S
        time.sleep(0.6)  # the call goes on, and comes to its end once rank 1 is there
        assert comm.stats()["calls"] == 1
        comm.check()
        return str(caught.value)

    for rank, text in enumerate(run_ranks(work, 3, hosts=hosts, rails=rails, timeout_s=20)):
        if rank != 1:
            assert "after 0.3 s" in text
            assert "all_reduce(count=1000, float64, sum)" in text
            assert "rank 1 (" in text


def test_timeout_of_a_communicator_and_of_a_wait() -> None:
    def work(comm: Comm) -> None:
        if comm.rank == 0:
            with pytest.raises(r2ccl.Timeout, match=r"after 0.2 s.*rank 1"):
                comm.recv(np.zeros(3), 1)  # the communicator's own deadline
            handle = comm.recv(np.zeros(3), 1, async_op=True)
            assert not handle.done()
            with pytest.raises(r2ccl.Timeout, match=r"after 0.1 s.*send\(count=3"):
                handle.synchronize(0.1)
            with pytest.raises(r2ccl.Timeout, match="after 0 s"):
                handle.synchronize(0.0)
        comm.barrier(timeout_s=10)

    run_ranks(work, 2, config=Config(timeout_s=0.2), timeout_s=20)


@LAYOUTS
def test_abort_from_another_thread(hosts: int, rails: int) -> None:
    """Local and at once; the peers learn that the rank gave up."""

    def work(comm: Comm) -> str:
        if comm.rank == 0:
            threading.Timer(0.2, comm.abort, args=("enough",)).start()
        begin = time.monotonic()
        expected = r2ccl.Aborted if comm.rank == 0 else r2ccl.PeerLost
        with pytest.raises(expected) as caught:
            comm.recv(np.zeros(3), (comm.rank + 1) % comm.size) if comm.rank == 0 else comm.recv(np.zeros(3), 0)
        assert time.monotonic() - begin < BOUND_S
        with pytest.raises(expected):
            comm.all_reduce(np.zeros(3))
        with pytest.raises(expected):
            comm.barrier()
        comm.abort("again")
        begin = time.monotonic()
        comm.close()
        assert time.monotonic() - begin < BOUND_S
        return str(caught.value)

    texts = run_ranks(work, 3, hosts=hosts, rails=rails, timeout_s=20)
    assert texts[0] == "aborted: enough"
    for text in texts[1:]:
        assert "rank 0" in text
        assert "enough" in text


def test_close_while_a_thread_waits() -> None:
    def work(comm: Comm) -> None:
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                comm.recv(np.zeros(3), 1 - comm.rank)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        begin = time.monotonic()
        comm.close()
        assert time.monotonic() - begin < BOUND_S
        thread.join(BOUND_S)
        assert not thread.is_alive()
        assert isinstance(failures[0], r2ccl.R2cclError), failures

    run_ranks(work, 2, timeout_s=20)


def test_close_is_idempotent_and_final() -> None:
    def work(comm: Comm) -> None:
        work = comm.all_reduce(np.zeros(3), async_op=True)
        work.wait()
        comm.close()
        comm.close()
        comm.abort("too late, and harmless")
        work.wait()
        assert work.done()
        x = np.zeros(3)
        for call in (
            lambda: comm.all_reduce(x),
            lambda: comm.send(x, 1 - comm.rank),
            lambda: comm.barrier(),
            lambda: comm.stats(),
            lambda: comm.events(),
            lambda: comm.check(),
        ):
            with pytest.raises(r2ccl.Aborted, match="closed"):
                call()

    run_ranks(work, 2, timeout_s=20)


def test_the_context_manager_closes_and_tells_the_others() -> None:
    def work(comm: Comm) -> str:
        if comm.rank == 0:
            with pytest.raises(ZeroDivisionError), comm:
                1 / 0  # noqa: B018
            with pytest.raises(r2ccl.Aborted):
                comm.barrier()
            return ""
        with pytest.raises(r2ccl.PeerLost) as caught, comm:
            comm.barrier()
        return str(caught.value)

    texts = run_ranks(work, 2, timeout_s=20)
    assert "rank 0" in texts[1]
    assert "ZeroDivisionError" in texts[1]


def test_a_dropped_work_does_no_harm() -> None:
    """Its arrays stay until the call is done, and the call is done though nobody waits."""

    def work(comm: Comm) -> None:
        for i in range(50):
            comm.all_reduce(np.full(5000, comm.rank), async_op=True)
            comm.send(np.full(10, i), 1 - comm.rank, async_op=True)
            gc.collect() if i % 10 == 0 else None
        for i in range(50):
            got = np.zeros(10, np.int64)
            comm.recv(got, 1 - comm.rank)
            assert (got == i).all()
        handle = comm.all_reduce(np.zeros(5), async_op=True)
        comm.close()
        del handle, comm
        gc.collect()

    run_ranks(work, 2, timeout_s=20)
    run_ranks(work, 2, hosts=2, timeout_s=20)


# -- ranks that die or freeze ------------------------------------------------------------------------------------------


def endless(comm: Comm, folder: str) -> None:
    x = np.zeros(100_000, np.float32)
    for i in range(1_000_000):
        comm.all_reduce(x, timeout_s=1.0)
        if i == 5:
            (Path(folder) / f"ready{comm.rank}").touch()


def victims(comm: Comm, folder: str) -> tuple[str, float]:
    """Collectives until something happens; the message, and how long close() took."""
    with pytest.raises((r2ccl.PeerLost, r2ccl.Timeout)) as caught:
        endless(comm, folder)
    (Path(folder) / f"end{comm.rank}").touch()
    kind = type(caught.value).__name__
    begin = time.monotonic()
    comm.close()
    return f"{kind}: {caught.value}", time.monotonic() - begin


@LAYOUTS
@pytest.mark.parametrize("victim", [0, 2])
def test_case_23_a_killed_rank_is_named_by_all_survivors(tmp_path: Path, hosts: int, rails: int, victim: int) -> None:
    """case_23: SIGKILL in the middle of collectives."""
    with RankGroup(victims, 4 if hosts == 1 else 3, hosts=hosts, rails=rails, args=(str(tmp_path),)) as group:
        wait_for(tmp_path / "ready", len(group.pids))
        begin = time.monotonic()
        group.kill(victim)
        outcomes = group.join(timeout_s=20, return_exceptions=True)
        elapsed = time.monotonic() - begin
    assert elapsed < 2 * BOUND_S
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            assert isinstance(outcome, RankError)
            assert "SIGKILL" in outcome.text
        else:
            text, closing = outcome
            assert text.startswith("PeerLost: "), text
            assert f"rank {victim} " in text
            assert closing < BOUND_S


def idle_survivor(comm: Comm, folder: str) -> str:
    (Path(folder) / f"ready{comm.rank}").touch()
    if comm.rank == 1:
        time.sleep(30)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            comm.check()
        except r2ccl.PeerLost as error:
            assert any(e.kind is r2ccl.EventKind.PEER_LOST and e.peer == 1 for e in comm.events())
            return str(error)
        time.sleep(0.01)
    return ""


def test_a_rank_killed_between_calls_is_noticed(tmp_path: Path) -> None:
    with RankGroup(idle_survivor, 3, args=(str(tmp_path),)) as group:
        wait_for(tmp_path / "ready", 3)
        group.kill(1)
        outcomes = group.join(timeout_s=20, return_exceptions=True)
    assert "rank 1 " in outcomes[0]
    assert "rank 1 " in outcomes[2]


@LAYOUTS
def test_case_23_a_frozen_rank_is_a_timeout_and_close_does_not_wait_for_it(
    tmp_path: Path, hosts: int, rails: int
) -> None:
    """case_23: SIGSTOP. The kernel keeps its sockets open, so nobody can know that it will not come back."""
    with RankGroup(victims, 3, hosts=hosts, rails=rails, args=(str(tmp_path),)) as group:
        wait_for(tmp_path / "ready", 3)
        begin = time.monotonic()
        group.stop(1)
        outcomes = group.join(timeout_s=25, return_exceptions=True)
        elapsed = time.monotonic() - begin
    assert 0.5 < elapsed < 1.0 + 2 * BOUND_S
    texts = [outcomes[r][0] for r in (0, 2)]
    assert any(t.startswith("Timeout") for t in texts), texts
    for text in texts:
        # The other survivor may have given up first, naming rank 1 or the one that waited for it.
        assert "rank 1 " in text or re.search(r"rank [02] (closed|gave up)", text), text
    assert all(outcomes[r][1] < BOUND_S for r in (0, 2))


@pytest.mark.parametrize(
    ("hosts", "rails"),
    [
        (1, 0),
        (3, 2),
        pytest.param(
            3,
            1,
        ),
    ],
    ids=["shm", "tcp", "tcp, one rail"],
)
def test_a_rank_that_was_only_slow_is_no_failure(tmp_path: Path, hosts: int, rails: int) -> None:
    """Negative control: frozen for less than the timeout."""

    def work(comm: Comm, folder: str) -> int:
        total = 0
        x = np.ones(100_000, np.int64)
        for i in range(200):
            y = np.zeros_like(x)
            comm.all_reduce(x, y)
            total += int(y.sum())
            if i == 5:
                (Path(folder) / f"ready{comm.rank}").touch()
        return total

    with RankGroup(work, 3, hosts=hosts, rails=rails, args=(str(tmp_path),)) as group:
        wait_for(tmp_path / "ready", 3)
        group.stop(1)
        time.sleep(0.5)
        group.cont(1)
        assert group.join(timeout_s=10) == [200 * 3 * 100_000] * 3


# -- programs ----------------------------------------------------------------------------------------------------------


def start(program: str, rank: int = 0, size: int = 1, port: int = 0) -> subprocess.Popen[str]:
    """A Python program that has imported what it needs and made ``comm``."""
    variables = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    head = "import os, signal, sys, threading, time\nimport numpy as np\nimport r2ccl\ncomm = r2ccl.init()\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + program],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 15.0) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the program did not end:\n{out}\n{err}")
    return process.returncode, out, err


def test_ctrl_c_in_a_blocked_call() -> None:
    program = """
print("ready", flush=True)
begin = time.monotonic()
comm.recv(np.zeros(3), 1 - comm.rank)
"""
    port = free_port()
    ranks = [start(program, rank, 2, port) for rank in range(2)]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # into recv
        begin = time.monotonic()
        ranks[0].send_signal(signal.SIGINT)
        code, _, err = finish(ranks[0])
        assert time.monotonic() - begin < BOUND_S
        assert "KeyboardInterrupt" in err
        assert code != 0
        code, _, err = finish(ranks[1])
        assert code != 0
        assert "r2ccl.errors.PeerLost: rank 0" in err
    finally:
        for process in ranks:
            process.kill()


def test_ctrl_c_leaves_the_communicator_usable() -> None:
    def work(comm: Comm) -> None:
        if comm.rank == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Timer(0.2, os.kill, args=(os.getpid(), signal.SIGINT)).start()
            out = np.zeros(3)
            handle = comm.recv(out, 1, async_op=True)
            begin = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                handle.wait()
            assert time.monotonic() - begin < 2.0
            comm.send(np.ones(1), 1)
            handle.wait()
            assert (out == 7).all()
        else:
            comm.recv(np.zeros(1), 0)
            comm.send(np.full(3, 7.0), 0)
        comm.barrier()

    run_ranks(work, 2, timeout_s=20)


@pytest.mark.parametrize("end", ["sys.exit(0)", "del comm", "works = [comm.all_reduce(np.zeros(9), async_op=True)]"])
def test_exit_without_close(end: str) -> None:
    port = free_port()
    program = f"x = np.ones(1000)\ncomm.all_reduce(x)\nassert x[0] == 2\n{end}\n"
    ranks = [start(program, rank, 2, port) for rank in range(2)]
    begin = time.monotonic()
    for process in ranks:
        assert finish(process) == (0, "", "")
    assert time.monotonic() - begin < 2 * BOUND_S


def test_fork_after_init() -> None:
    """A child that was forked off ends as any process does, whatever it inherited, and the parent goes on."""
    program = """
x = np.ones(1000)
comm.all_reduce(x)
handle = comm.all_reduce(np.ones(5), async_op=True)
child = os.fork()
if child == 0:
    try:
        comm.all_reduce(x)
    except r2ccl.Aborted as error:
        assert "forked" in str(error)
    else:
        os._exit(3)
    assert handle.done()
    comm.close()
    del comm
    sys.exit(0)  # with its exit handlers
pid, status = os.waitpid(child, 0)
assert status == 0, status
handle.wait()
comm.all_reduce(x)
comm.all_reduce(x)
assert x[0] == 8, x[0]
comm.close()
print("good")
"""
    port = free_port()
    ranks = [start(program, rank, 2, port) for rank in range(2)]
    for process in ranks:
        code, out, err = finish(process)
        assert (code, out) == (0, "good\n"), err


@pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (2, 2)], ids=["shm", "tcp"])
def test_a_forked_child_does_not_hide_the_end_of_its_parent(tmp_path: Path, hosts: int, rails: int) -> None:
    """As when a data loader's workers outlive the rank that forked them."""

    def work(comm: Comm, folder: str) -> tuple[str, float]:
        if comm.rank == 0 and os.fork() == 0:
            (Path(folder) / "child").write_text(str(os.getpid()))
            time.sleep(20)
            os._exit(0)
        return victims(comm, folder)

    with RankGroup(work, 2, hosts=hosts, rails=rails, args=(str(tmp_path),)) as group:
        wait_for(tmp_path / "ready", 2)
        wait_for(tmp_path / "child")
        group.kill(0)
        try:
            wait_for(tmp_path / "end1")
        finally:
            os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
        outcomes = group.join(timeout_s=10, return_exceptions=True)
    assert outcomes[1][0].startswith("PeerLost: rank 0 "), outcomes[1]


def test_signals_do_not_reach_the_library_s_threads() -> None:
    def work(comm: Comm) -> None:
        before = set(os.listdir("/proc/self/task"))
        second = r2ccl.init(config=comm.config)
        wanted = sum(
            1 << (n - 1) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD)
        )
        deadline = time.monotonic() + 5.0
        while True:  # a thread of the start may take a moment to end
            threads = set(os.listdir("/proc/self/task")) - before
            masks = {}
            for thread in threads:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    status = Path(f"/proc/self/task/{thread}/status").read_text()
                    masks[thread] = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)  # type: ignore[index]
            # The core's, the one that r2ccl-top asks, and over rails the monitor.
            if 2 <= len(masks) <= 3 and all(mask & wanted == wanted for mask in masks.values()):
                break
            assert time.monotonic() < deadline, {thread: hex(mask) for thread, mask in masks.items()}
            time.sleep(0.01)
        mine = re.search(r"SigBlk:\s*(\w+)", Path("/proc/thread-self/status").read_text())
        assert mine
        assert not int(mine[1], 16) >> (signal.SIGINT - 1) & 1, "the caller's own mask changed"
        second.close()
        # A joined Python thread takes the kernel a moment to bury.
        while threads & set(os.listdir("/proc/self/task")):
            assert time.monotonic() < deadline, "a thread is left"
            time.sleep(0.001)

    run_ranks(work, 2, timeout_s=20)
    run_ranks(work, 2, hosts=2, timeout_s=20)


# -- leaks -------------------------------------------------------------------------------------------------------------


def belongings() -> dict[str, Any]:
    """What a process holds, as far as /proc tells."""
    gc.collect()
    folder = Path("/proc/self/fd")
    # The descriptor that lists the folder is gone when it is looked at.
    descriptors = [os.readlink(fd) for fd in folder.iterdir() if os.path.lexists(fd)]
    maps = Path("/proc/self/maps").read_text()
    return {
        "descriptors": len(descriptors),
        "kinds": sorted(re.sub(r"\d+", "n", target) for target in descriptors),
        "threads": len(os.listdir("/proc/self/task")),
        "shared": len(re.findall(r"memfd:|/dev/shm", maps)),
        "files": sorted(n for n in os.listdir("/dev/shm") if "r2ccl" in n),
    }


def cycle(config: Config | None, world_of_one: bool) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "1"} if world_of_one else {}
    saved = {k: os.environ.get(k) for k in variables}
    os.environ.update(variables)
    try:
        with r2ccl.init(config=config) as comm:
            x = np.zeros(50_000)
            comm.all_reduce(x)
            comm.all_reduce(x, async_op=True)
            if comm.size > 1:
                with comm.group():
                    comm.send(x, 1 - comm.rank)
                    comm.recv(x.copy(), 1 - comm.rank)
    finally:
        for k, v in saved.items():
            if v is None:
                os.environ.pop(k)
            else:
                os.environ[k] = v


def assert_no_growth(step: Callable[[], None], times: int) -> None:
    step()
    step()
    before = belongings()
    for _ in range(times):
        step()
    after = belongings()
    assert after == before


def test_nothing_leaks_in_a_world_of_one() -> None:
    assert_no_growth(lambda: cycle(Config(), True), 20)


@pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (2, 2)], ids=["shm", "tcp"])
def test_nothing_leaks_between_two(hosts: int, rails: int) -> None:
    def work(comm: Comm) -> None:
        config = comm.config
        comm.close()
        assert_no_growth(lambda: cycle(config, False), 20)

    run_ranks(work, 2, hosts=hosts, rails=rails, timeout_s=40)


def test_nothing_leaks_when_a_communicator_is_aborted() -> None:
    def work(comm: Comm) -> None:
        config = comm.config
        comm.close()

        def step() -> None:
            broken = r2ccl.init(config=config)
            if broken.rank == 0:
                broken.abort("test")
            with pytest.raises(r2ccl.R2cclError):
                broken.barrier()
            broken.close()

        assert_no_growth(step, 10)

    run_ranks(work, 2, timeout_s=40)


def test_the_search_for_leaks_finds_one() -> None:
    """Negative control."""
    held: list[Any] = []
    with pytest.raises(AssertionError):
        assert_no_growth(lambda: held.append(os.open("/dev/null", os.O_RDONLY)), 2)
    for fd in held:
        os.close(fd)
