"""Shared by the tests of what looks at running ranks: a short directory for sockets, and ranks that wait for the test."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import r2ccl
from r2ccl.testing import RankGroup

Comm = r2ccl.Communicator


@contextmanager
def folder() -> Iterator[Path]:
    """A Unix address holds some hundred characters; pytest's directories may be longer."""
    with tempfile.TemporaryDirectory(prefix="r2") as name:
        yield Path(name)


def until(condition: Callable[[], Any], what: str, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def busy(comm: Comm, where: str) -> Any:
    """Calls until the file ``stop`` appears, the same number on all ranks."""
    x, go_on, calls = np.ones(30_000), np.ones(1), 0
    (Path(where) / f"ready{comm.rank}").touch()
    while go_on[0]:
        comm.all_reduce(x, op=r2ccl.ReduceOp.MAX)
        go_on[0] = not (Path(where) / "stop").exists()
        comm.broadcast(go_on)
        calls += 2
        time.sleep(0.002)
    return {"calls": calls, "events": [str(e) for e in comm.events()], "stats": comm.stats()}


@contextmanager
def running(n: int, where: Path, **more: Any) -> Iterator[RankGroup]:
    """``n`` busy ranks with their sockets in ``where``; they have begun."""
    env = {"XDG_RUNTIME_DIR": str(where), **more.pop("env", {})}
    with RankGroup(busy, n, env=env, args=(str(where),), **more) as group:
        until(lambda: len(list(where.glob("ready*"))) == n, "the ranks did not start")
        yield group


def sockets(where: Path) -> list[Path]:
    """Those of the ranks."""
    return sorted((where / "r2ccl").glob("*.sock")) if (where / "r2ccl").is_dir() else []


def top(where: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """r2ccl-top as a user runs it."""
    command = [sys.executable, "-m", "r2ccl.top", "--dir", str(where / "r2ccl"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
