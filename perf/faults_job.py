"""The ranks of one job on a fabric, and all that they have told so far."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2ccl.lab import Fabric

AGENT = Path(__file__).resolve().parent / "faults_agent.py"


@dataclass(frozen=True)
class Told:
    """An event of one rank."""

    rank: int
    time_ns: int
    kind: str
    peer: int
    rail: int
    value: int


@dataclass(frozen=True)
class Call:
    """One all_reduce over all ranks: from when the last of them began it to when the last had it."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.begin_ns) * 1e-9


@dataclass
class RankLog:
    """What one rank has told. Times in nanoseconds of the wall clock."""

    calls: list[tuple[int, int]] = field(default_factory=list)
    sent: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    error: tuple[int, str, str] | None = None
    links: list[tuple[int, str, str, int]] = field(default_factory=list)
    wrong: int = 0
    ready: bool = False


class JobFailed(RuntimeError):
    """A rank ended or fell silent where that is not the fault's doing."""


class Job:
    """``ranks`` agents per host. Use ``with``; leaving kills what still runs."""

    def __init__(self, fabric: Fabric, ranks: int, size_bytes: int, env: dict[str, str] | None = None) -> None:
        self.fabric, self.ranks, self.size_bytes = fabric, ranks, size_bytes
        self.size = fabric.hosts * ranks
        self.logs = [RankLog() for _ in range(self.size)]
        self.events: list[Told] = []
        self.down: set[tuple[int, int, int]] = set()  # (rank, peer, rail) of the links that are not in use
        self.processes: list[subprocess.Popen[str]] = []
        self._env = env or {}
        self._news = threading.Condition()
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Job:
        shared = {
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": self.fabric.address(0),
            "MASTER_PORT": str(20000 + secrets.randbelow(10000)),
            "R2CCL_SECRET": secrets.token_hex(16),
            "R2CCL_RAILS": ",".join(f"rail{r}" for r in range(self.fabric.rails)),
            "OMP_NUM_THREADS": "1",
            **self._env,
        }
        try:
            for rank in range(self.size):
                host, local = divmod(rank, self.ranks)
                env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(local)}
                argv = [sys.executable, str(AGENT), "--bytes", str(self.size_bytes)]
                pipe = subprocess.PIPE
                process = self.fabric.popen(host, argv, env, stdin=pipe, stdout=pipe, text=True)
                self.processes.append(process)
                reader = threading.Thread(target=self._read, args=(rank, process), daemon=True)
                self._readers.append(reader)
                reader.start()
            if not self.wait_for(lambda: self.complete() >= 3, 30.0):
                raise JobFailed(f"the ranks did not begin: {[log.error for log in self.logs]}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self.processes:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def order(self, word: str, ranks: range | None = None) -> None:
        """Writes a line to ranks, to all if None."""
        for rank in range(self.size) if ranks is None else ranks:
            stream = self.processes[rank].stdin
            assert stream is not None
            stream.write(word + "\n")
            stream.flush()

    def finish(self) -> None:
        """Ends the job in good order. Raises ``JobFailed`` when a rank does not exit with 0."""
        self.order("stop", range(1))
        deadline = time.monotonic() + 20.0
        try:
            codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise JobFailed("a rank does not end") from None
        if any(codes) or any(log.error for log in self.logs):
            raise JobFailed(f"exit codes {codes}, errors {[log.error for log in self.logs]}")

    # -- what they told --------------------------------------------------------------------------

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                break  # cut off in the middle: the rank was killed
            with self._news:
                self._note(rank, json.loads(line))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _note(self, rank: int, told: list[Any]) -> None:
        log = self.logs[rank]
        match told:
            case ["ready"]:
                log.ready = True
            case ["call", _, begin, end, wrong]:
                log.calls.append((begin, end))
                log.wrong += wrong
            case ["tx", time_ns, sent]:
                log.sent.append((time_ns, sent))
            case ["links", links]:
                log.links = links
            case ["error", time_ns, name, text]:
                log.error = time_ns, name, text
            case ["event", time_ns, kind, peer, rail, value]:
                self.events.append(Told(rank, time_ns, kind, peer, rail, value))
                if kind == "LINK_SUSPECT":
                    self.down.add((rank, peer, rail))
                elif kind == "LINK_UP":
                    self.down.discard((rank, peer, rail))

    def wait_for(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """Until the predicate holds (it is asked whenever a rank told something), or False."""
        with self._news:
            return self._news.wait_for(predicate, timeout_s)

    def complete(self) -> int:
        """Calls that every rank has completed."""
        return min(len(log.calls) for log in self.logs)

    def calls(self, first: int = 0) -> list[Call]:
        """The complete calls from number ``first`` on."""
        with self._news:
            return [
                Call(*(max(log.calls[k][side] for log in self.logs) for side in (0, 1)))
                for k in range(first, self.complete())
            ]

    def events_since(self, time_ns: int, *kinds: str) -> list[Told]:
        """Events of these kinds from then on, by time."""
        with self._news:
            return sorted((e for e in self.events if e.time_ns >= time_ns and e.kind in kinds), key=lambda e: e.time_ns)

    def links_not_up(self) -> list[str]:
        """Asks all ranks which of their links are not in use."""
        for log in self.logs:
            log.links = []
        self.order("links")
        self.wait_for(lambda: all(log.links for log in self.logs), 2.0)
        return [
            f"rank {rank} to {peer} over {rail}: {state}, generation {generation}"
            for rank, log in enumerate(self.logs)
            for peer, rail, state, generation in log.links
            if state != "up"
        ]

    def wrong(self) -> int:
        """Wrong elements so far, of all ranks."""
        return sum(log.wrong for log in self.logs)
