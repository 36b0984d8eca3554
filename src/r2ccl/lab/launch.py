"""Running one program as many ranks on a fabric, with faults on a schedule.

Everything happens in the caller's thread, around one ``select``: output, ends of processes, and whatever is due.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import secrets
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .fabric import Fabric
from .schedule import ScheduledFault
from .script import FiredFault, Sample, Script

Echo = Callable[[int, str, bytes], None]
"""Called with (rank, "stdout" or "stderr", bytes) as output arrives; bytes need not end at a line's end."""

_DRAIN_S = 0.5  # for the last output of ranks that left a child holding their pipes
_FIRST_PORT, _PORTS = 29500, 2000  # below the ephemeral ports; chosen anew so that runs on one fabric do not meet


@dataclass(frozen=True)
class RankResult:
    """How one rank ended; ``returncode`` is negative for a signal, as in ``subprocess``. Output is empty if echoed."""

    rank: int
    host: int
    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class RunResult:
    """A finished run. ``exit_code``: of the rank that failed first (128 + signal), 124 after a time-out, else 0."""

    ranks: list[RankResult]
    exit_code: int
    elapsed_s: float
    timed_out: bool
    faults: list[FiredFault]
    samples: list[Sample]


class Run:
    """One run of a program as ``fabric.hosts x ranks_per_host`` ranks; see ``run_ranks_on``."""

    def __init__(
        self,
        fabric: Fabric,
        argv: Sequence[str],
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
        faults: Sequence[str | ScheduledFault] = (),
        grace_s: float = 10.0,
        kill_after_s: float = 3.0,
        echo: Echo | None = None,
    ) -> None:
        self._fabric, self._argv, self._per_host = fabric, list(argv), ranks_per_host
        self._env, self._timeout_s, self._grace_s, self._echo = dict(env or {}), timeout_s, grace_s, echo
        self._kill_after_s = kill_after_s
        self._size = fabric.hosts * ranks_per_host
        self._script = Script(fabric, faults, self._now_s, self._at)
        self._children: list[subprocess.Popen[bytes]] = []
        self._output: dict[tuple[int, str], bytearray] = {}
        self._line: dict[tuple[int, str], bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_up, self._woken = socket.socketpair()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._exit_code = 0
        self._stopped = False
        self._timed_out = False

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> RunResult:
        """Starts the ranks, sees them through and returns. No rank lives on, even if this raises."""
        try:
            self._start_ranks()
            self._start = time.monotonic()
            self._script.begin()
            if self._timeout_s is not None:
                self._at(self._timeout_s, self._time_out)
            self._loop()
            elapsed_s = time.monotonic() - self._start
            self._script.end()
        finally:
            self._clean_up()
        ranks = [
            RankResult(
                rank, rank // self._per_host, child.returncode, self._text(rank, "stdout"), self._text(rank, "stderr")
            )
            for rank, child in enumerate(self._children)
        ]
        return RunResult(ranks, self._exit_code, elapsed_s, self._timed_out, self._script.faults, self._script.samples)

    def stop(self, signal_number: int) -> None:
        """Ends the run early, from a signal handler or another thread; the second call ends it at once."""
        self._wake_up.send(bytes([signal_number]))

    def _loop(self) -> None:
        end_of_drain: float | None = None
        while self._selector.get_map().keys() - {self._woken.fileno()}:
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            if end_of_drain is None and all(child.returncode is not None for child in self._children):
                end_of_drain = time.monotonic() + _DRAIN_S
            times = [self._due[0][0]] if self._due and end_of_drain is None else []
            times += [] if end_of_drain is None else [end_of_drain]
            wait_s = max(0.0, min(times) - time.monotonic()) if times else None
            events = self._selector.select(wait_s)
            for key, _ in events:
                key.data(key.fileobj)
            if not events and end_of_drain is not None and time.monotonic() >= end_of_drain:
                break

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        """Plans an action, ``seconds`` after the start."""
        self._order += 1
        heapq.heappush(self._due, (self._start + seconds, self._order, action))

    def _now_s(self) -> float:
        return time.monotonic() - self._start

    # -- ranks ---------------------------------------------------------------------------------

    def _start_ranks(self) -> None:
        self._selector.register(self._woken, selectors.EVENT_READ, lambda _: self._on_stop())
        shared = {
            "WORLD_SIZE": str(self._size),
            "LOCAL_WORLD_SIZE": str(self._per_host),
            "GROUP_WORLD_SIZE": str(self._fabric.hosts),
            "MASTER_ADDR": self._fabric.address(0),
            "MASTER_PORT": str(_FIRST_PORT + secrets.randbelow(_PORTS)),
            "R2CCL_SECRET": secrets.token_hex(16),
            "R2CCL_RAILS": "rail*",
            "R2CCL_LAB": "1",
            "PYTHONUNBUFFERED": "1",  # on=TEXT must see a line when it is printed
        }
        for rank in range(self._size):
            host, local = divmod(rank, self._per_host)
            own = {"RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(host)}
            pipe = subprocess.PIPE
            env = {**shared, **own, **self._env}
            child = self._fabric.popen(host, self._argv, env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
            self._children.append(child)
            self._watch_rank(rank, child)

    def _watch_rank(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        for name, stream in (("stdout", child.stdout), ("stderr", child.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._output[rank, name], self._line[rank, name] = bytearray(), b""
            self._selector.register(
                stream, selectors.EVENT_READ, lambda stream, rank=rank, name=name: self._on_output(stream, rank, name)
            )
        self._selector.register(
            os.pidfd_open(child.pid), selectors.EVENT_READ, lambda fd, rank=rank: self._on_end(fd, rank)
        )

    def _on_output(self, stream: Any, rank: int, name: str) -> None:
        data = os.read(stream.fileno(), 1 << 16)
        if not data:
            self._selector.unregister(stream)
            return
        if self._echo is not None:
            self._echo(rank, name, data)
        else:
            self._output[rank, name] += data
        *lines, self._line[rank, name] = (self._line[rank, name] + data).split(b"\n")
        for line in lines:
            self._script.on_line(line.decode(errors="replace"))

    def _on_end(self, pidfd: int, rank: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        code = self._children[rank].wait()
        if code != 0 and self._exit_code == 0:
            self._exit_code = code if code > 0 else 128 - code
            self._at(self._now_s() + self._grace_s, self._end_ranks)

    def _on_stop(self) -> None:
        number = self._woken.recv(1)[0]
        self._exit_code = self._exit_code or 128 + number
        if self._stopped:
            self._kill_after_s = 0.0
        self._end_ranks()
        self._stopped = True

    def _time_out(self) -> None:
        self._timed_out = True
        self._exit_code = self._exit_code or 124
        self._end_ranks()

    def _end_ranks(self) -> None:
        """SIGTERM to all that still run, with what they started; SIGKILL later."""
        self._signal(signal.SIGTERM)
        self._at(self._now_s() + self._kill_after_s, lambda: self._signal(signal.SIGKILL))

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)  # each rank leads a process group

    def _clean_up(self) -> None:
        self._signal(signal.SIGKILL)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
        self._selector.close()
        for child in self._children:
            child.wait()
            for stream in (child.stdout, child.stderr):
                if stream is not None:
                    stream.close()
        self._wake_up.close()
        self._woken.close()

    def _text(self, rank: int, name: str) -> str:
        return self._output[rank, name].decode(errors="replace")


def run_ranks_on(
    fabric: Fabric,
    argv: Sequence[str],
    ranks_per_host: int = 1,
    env: Mapping[str, str] | None = None,
    *,
    timeout_s: float | None = 60.0,
    faults: Sequence[str | ScheduledFault] = (),
    grace_s: float = 10.0,
    kill_after_s: float = 3.0,
) -> RunResult:
    """Runs ``argv`` once per rank on its host with torchrun's variables and ``R2CCL_SECRET``, ``R2CCL_RAILS``.

    ``env`` is added to both and wins. ``faults``: as for ``--fault`` (see ``schedule``). When a rank fails, the others
    have ``grace_s`` to end before they are ended; after ``timeout_s`` all are: by SIGTERM, ``kill_after_s`` later by
    SIGKILL. Returns outputs and return codes.
    """
    run = Run(
        fabric,
        argv,
        ranks_per_host,
        env,
        timeout_s=timeout_s,
        faults=faults,
        grace_s=grace_s,
        kill_after_s=kill_after_s,
    )
    return run.run()
