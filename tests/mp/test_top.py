"""r2ccl-top: sees running ranks through their sockets, disturbs nothing, and leaves nothing behind."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sight_checks import Comm, folder, running, sockets, top, until

import r2ccl
from r2ccl import Config
from r2ccl.observe import place, protocol
from r2ccl.testing import FaultScript, RankGroup, run_ranks
from r2ccl.top.attach import Ranks
from r2ccl.top.rates import key_of, rates

pytestmark = pytest.mark.timeout(90)


def test_one_snapshot_as_json() -> None:
    with folder() as where, running(4, where, hosts=2, rails=2, config=Config(job="nightly")) as group:
        done = top(where, "--once", "--json")
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        found: dict[str, Any] = json.loads(line)
        assert found["r2ccl"] == protocol.VERSION
        assert [c["rank"] for c in found["comms"]] == [0, 1, 2, 3]
        assert [c["pid"] for c in found["comms"]] == group.pids
        assert {(c["job"], c["comm"], c["size"]) for c in found["comms"]} == {("nightly", "world", 4)}
        assert found["silent"] == []
        for comm in found["comms"]:
            assert comm["counters"]["calls"] > 0
            rails = {r["name"]: r for r in comm["rails"]}
            assert set(rails) == {"127.0.0.1", "127.0.0.2", "shm"}
            assert sum(r["tx_bytes"] for r in rails.values()) > 0
            assert all(r["state"] == "up" for r in rails.values())
        (status,) = found["status"]
        assert [r["rank"] for r in status["status"]["ranks"]] == [0, 1, 2, 3]
        (where / "stop").touch()
        group.join(timeout_s=20)
        assert sockets(where) == []


def test_the_live_view_shows_rates_and_leaves_at_ctrl_c() -> None:
    with folder() as where, running(2, where) as group:
        with Ranks(where / "r2ccl") as ranks:
            before = ranks.look()
            time.sleep(0.3)
            now = ranks.look()
            between = rates(before, now)
            assert set(between) == {key_of(c) for c in now.comms}
            assert all(r["calls"] > 0 and r["rails"]["shm"][0] > 0 for r in between.values())
        done = top(where, "--once", "--interval", "0.2")
        assert done.returncode == 0, done.stderr
        assert "2 ranks, 2 here" in done.stdout
        assert "calls/s" in done.stdout
        (where / "stop").touch()
        group.join(timeout_s=20)
        assert "no running rank" in top(where, "--once").stdout


def test_it_takes_no_event_from_the_program() -> None:
    """Everybody looks at the repair, and the program still gets each event once."""
    fault = str(FaultScript().reset(rail=1, after_bytes=300_000))

    def config(rank: int) -> Config:
        return Config(fault_script=fault if rank == 0 else "")

    with (
        folder() as where,
        running(2, where, hosts=2, rails=2, config=config) as group,
        Ranks(where / "r2ccl") as ranks,
    ):
        seen: list[str] = []

        def repaired() -> bool:
            seen[:] = [text for c in ranks.look().comms if c["rank"] == 0 for _, text in c["events"]]
            return any("repaired" in text for text in seen)

        until(repaired, "the fault did not strike")
        (where / "stop").touch()
        outcomes = group.join(timeout_s=20)
    mine = outcomes[0]["events"]
    assert [e for e in mine if e.startswith("link_suspect")][:1] == [e for e in seen if e.startswith("link_suspect")][
        :1
    ]
    assert len([e for e in mine if e.startswith("repaired")]) >= 1


def test_who_is_waited_for_is_told() -> None:
    def work(comm: Comm, where: str) -> None:
        comm.barrier()
        if comm.rank == 1:
            Path(where, "asleep").touch()
            until(Path(where, "stop").exists, "the test did not end")
        comm.all_reduce(np.zeros(10))

    with folder() as where:
        with RankGroup(work, 3, env={"XDG_RUNTIME_DIR": str(where)}, args=(str(where),)) as group:
            until((where / "asleep").exists, "the ranks did not start")
            time.sleep(1.0)
            text = top(where, "--once", "--interval", "0.1").stdout
            flat = " ".join(text.split())
            assert "rank 1 has not called all_reduce(count=10, float64, sum) #1" in flat, text
            assert "ranks 0, 2 wait for it" in flat, text
            (where / "stop").touch()
            group.join(timeout_s=20)


def test_a_killed_rank_leaves_nothing_for_long_and_the_survivors_nothing_at_all() -> None:
    def work(comm: Comm, where: str) -> None:
        Path(where, f"ready{comm.rank}").touch()
        if comm.rank == 1:
            time.sleep(30)
        with pytest.raises(r2ccl.PeerLost):
            comm.recv(np.zeros(3), 1)
        comm.close()
        assert str(os.getpid()) not in {p.name.split("-")[0] for p in sockets(Path(where))}
        left = [
            os.readlink(f"/proc/self/fd/{n}")
            for n in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{n}")
        ]
        until(lambda: len(os.listdir("/proc/self/task")) == 1, "a thread is left")
        assert not [name for name in left if name.startswith("anon_inode:[event")], left

    with folder() as where:
        with RankGroup(work, 3, env={"XDG_RUNTIME_DIR": str(where)}, args=(str(where),)) as group:
            until(lambda: len(list(where.glob("ready*"))) == 3, "the ranks did not start")
            assert len(sockets(where)) == 3
            victim = str(group.pids[1])
            time.sleep(0.2)
            group.kill(1)
            outcomes = group.join(timeout_s=20, return_exceptions=True)
        assert outcomes[0] is None
        assert outcomes[2] is None
        assert [p.name.split("-")[0] for p in sockets(where)] == [victim], "it had no time to clean up"
        assert top(where, "--once", "--json").returncode == 1
        assert sockets(where) == [], "whoever looks, or starts next, cleans up"


def test_a_frozen_process_is_named() -> None:
    with folder() as where, running(2, where) as group:
        group.stop(1)
        done = top(where, "--once", "--json")
        group.cont(1)
        found = json.loads(done.stdout)
        assert found["silent"] == [group.pids[1]]
        assert [c["rank"] for c in found["comms"]] == [0]
        assert found["status"][0]["status"]["ranks"][1]["silent"] == "no answer"
        (where / "stop").touch()
        group.join(timeout_s=20)


def ask(path: Path, line: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5.0)
        sock.connect(str(path))
        sock.sendall(line)
        answer: dict[str, Any] = json.loads(sock.makefile().readline())
        return answer


def test_the_protocol_says_what_is_wrong_and_survives_bad_clients() -> None:
    with folder() as where, running(2, where) as group:
        (first, _) = sockets(where)
        assert stat.S_IMODE(first.stat().st_mode) == 0o600
        assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
        assert "version 1" in ask(first, b'{"r2ccl": 2, "ask": "snapshot"}\n')["error"]
        assert "ask = 'kill'" in ask(first, b'{"r2ccl": 1, "ask": "kill"}\n')["error"]
        for nonsense in (b"\n", b"[]\n", b"\xff\xfe\n", b'{"r2ccl": 1}\n'):
            assert "expected a line" in ask(first, nonsense)["error"]
        held = []
        for _ in range(20):  # more than it takes, and none says anything
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(first))
            held.append(sock)
        with socket.socket(socket.AF_UNIX) as endless:
            endless.connect(str(first))
            with pytest.raises(OSError):
                endless.sendall(b"x" * (1 << 22))
        for sock in held:
            sock.close()
        assert ask(first, protocol.question("snapshot"))["comms"][0]["comm"] == "world"
        (where / "stop").touch()
        group.join(timeout_s=20)


def test_communicators_of_a_process_share_one_socket_and_one_thread() -> None:
    with folder() as where:

        def work(comm: Comm) -> None:
            threads = len(os.listdir("/proc/self/task"))
            half = comm.split(comm.rank % 2)
            assert half is not None
            names = {t.name for t in threading.enumerate()}
            assert "r2ccl-sight" in names
            assert len(os.listdir("/proc/self/task")) == threads + 1, "the core's own thread"
            (mine,) = [p for p in sockets(where) if p.name.startswith(f"{os.getpid()}-")]
            comms = ask(mine, protocol.question("snapshot"))["comms"]
            assert [(c["comm"], c["rank"]) for c in comms] == [
                ("world", comm.rank),
                (f"world.1.{comm.rank % 2}", half.rank),
            ]
            assert len({c["job"] for c in comms}) == 1
            comm.barrier()
            comm.close()
            assert [c["comm"] for c in ask(mine, protocol.question("snapshot"))["comms"]] == [
                f"world.1.{comm.rank % 2}"
            ]
            half.close()
            assert not mine.exists()

        run_ranks(work, 4, env={"XDG_RUNTIME_DIR": str(where)}, timeout_s=30)


def test_a_communicator_that_is_dropped_takes_its_socket_along() -> None:
    with folder() as where:

        def work(comm: Comm) -> None:
            second = r2ccl.init(config=comm.config)
            assert second.rank == comm.rank
            assert len([p for p in sockets(where) if p.name.startswith(f"{os.getpid()}-")]) == 2
            second.barrier()
            del second
            until(lambda: len([p for p in sockets(where) if p.name.startswith(f"{os.getpid()}-")]) == 1, "it stays")
            comm.barrier()

        run_ranks(work, 2, env={"XDG_RUNTIME_DIR": str(where)}, timeout_s=30)


def test_it_can_be_switched_off() -> None:
    with folder() as where:

        def work(comm: Comm) -> None:
            assert sockets(where) == []
            assert "r2ccl-sight" not in {t.name for t in threading.enumerate()}
            comm.barrier()

        run_ranks(work, 2, env={"XDG_RUNTIME_DIR": str(where)}, config=Config(top=False), timeout_s=20)


def test_a_place_that_cannot_be_used_is_a_warning_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with folder() as where:
        (where / "r2ccl").mkdir(mode=0o755)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(where))
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setenv("RANK", "0")
        with caplog.at_level(logging.WARNING, "r2ccl"), r2ccl.init(config=Config()) as comm:
            assert comm.all_reduce(np.ones(3)).done()
        assert "has mode 0755, not 0700; remove" in caplog.text
        assert "Config.top" in caplog.text
        done = top(where, "--once", "--json")
        assert done.returncode == 2
        assert "cannot be trusted" in done.stderr


def test_a_forked_child_keeps_no_socket_alive() -> None:
    def work(comm: Comm, where: str) -> None:
        (mine,) = [p for p in sockets(Path(where)) if p.name.startswith(f"{os.getpid()}-")]
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
        try:
            assert ask(mine, protocol.question("snapshot"))["pid"] == os.getpid()
            comm.barrier()
            comm.close()
            assert not mine.exists()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    with folder() as where:
        run_ranks(work, 2, env={"XDG_RUNTIME_DIR": str(where)}, args=(str(where),), timeout_s=20)
    assert place.SUFFIX == ".sock"
