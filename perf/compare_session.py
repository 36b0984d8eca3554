"""The coordinator: all ranks of all libraries are alive, one library works at a time, the others sleep."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

Process = subprocess.Popen[Any]


class PeerFailed(RuntimeError):
    """A library did not start, answered with an error, gave a wrong result or did not answer in time."""


@dataclass
class Member:
    """One library of the session: its launched processes and, rank by rank, its connections."""

    name: str
    processes: list[Process]
    log: Path
    connections: dict[int, socket.socket] = field(default_factory=dict)
    readers: dict[int, TextIOWrapper] = field(default_factory=dict)

    def tail(self) -> str:
        """The last lines that its processes printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])


@dataclass(frozen=True)
class Pace:
    """How long one order lasts: ``batches`` batches of about ``batch_s`` seconds, at most ``most`` calls each.

    One batch only where a single call takes ``long_s``: those are steady, and there are the rounds as well.
    """

    batch_s: float
    batches: int
    most: int = 2000
    long_s: float = 0.2

    def iterations(self, call_s: float) -> int:
        """Calls per batch when one takes ``call_s``."""
        return max(1, min(self.most, int(self.batch_s / max(call_s, 1e-9))))

    def batches_of(self, call_s: float) -> int:
        """Batches when one call takes ``call_s``."""
        return self.batches if call_s < self.long_s else 1


def busy_cores(seconds: float) -> float:
    """Cores that the whole machine kept busy during the next ``seconds``.

    Asked for while every library sleeps, it tells how much of the machine the measurement had to share.
    """

    def ticks() -> int:
        user, nice, system, _idle, _wait, irq, softirq, *_ = Path("/proc/stat").read_text().split()[1:9]
        return sum(map(int, (user, nice, system, irq, softirq)))

    before, start = ticks(), time.monotonic()
    time.sleep(seconds)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - start)


class Session:
    """A listening socket and the libraries that have joined. Use ``with``; leaving ends every process."""

    def __init__(self, folder: Path, ranks: int, timeout_s: float = 60.0) -> None:
        self.path = folder / "coordinator"
        self.ranks = ranks
        self.timeout_s = timeout_s
        self.members: dict[str, Member] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.members):
            self.dismiss(name)
        self._listener.close()

    def join(self, name: str, processes: Sequence[Process], log: Path) -> None:
        """Waits until all ranks of a library that was just started say hello. Raises ``PeerFailed``."""
        member = self.members[name] = Member(name, list(processes), log)
        deadline = time.monotonic() + self.timeout_s
        waiting: dict[socket.socket, TextIOWrapper] = {}
        while len(member.connections) < self.ranks:
            if any(p.poll() not in (None, 0) for p in member.processes):
                raise PeerFailed(f"{name}: a process ended while starting:\n{member.tail()}")
            if time.monotonic() > deadline:
                raise PeerFailed(f"{name}: not ready after {self.timeout_s:.0f} s:\n{member.tail()}")
            for ready in select.select([self._listener, *waiting], [], [], 0.2)[0]:
                if ready is self._listener:
                    connection, _ = self._listener.accept()
                    waiting[connection] = connection.makefile("rw")
                    continue
                reader = waiting.pop(ready)
                if line := reader.readline():
                    rank = json.loads(line)["rank"]
                    member.connections[rank], member.readers[rank] = ready, reader

    def dismiss(self, name: str) -> None:
        """Ends a library's processes, politely for three seconds."""
        member = self.members.pop(name)
        for reader in member.readers.values():
            with contextlib.suppress(OSError):
                reader.write('{"quit": true}\n')
                reader.flush()
        deadline = time.monotonic() + 3
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in member.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                if process.poll() is None:
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + 2
        for connection in member.connections.values():
            connection.close()

    def order(self, name: str, size: int, iterations: int, batches: int, check: bool = False) -> list[float]:
        """Seconds per call of the slowest rank, batch by batch. Raises ``PeerFailed``."""
        member = self.members[name]
        order = {"size_bytes": size, "iterations": iterations, "batches": batches, "check": check}
        deadline = time.monotonic() + self.timeout_s
        answers: list[list[float]] = []
        try:
            for reader in member.readers.values():
                reader.write(json.dumps(order) + "\n")
                reader.flush()
            for rank, connection in member.connections.items():
                if not select.select([connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise PeerFailed(f"{name}: rank {rank} silent for {self.timeout_s:.0f} s at {size} bytes")
                line = member.readers[rank].readline()
                answer = json.loads(line) if line else {"error": "its process ended"}
                if "error" in answer:
                    raise PeerFailed(f"{name}: rank {rank} at {size} bytes: {answer['error']}\n{member.tail()}")
                answers.append(answer["seconds"])
        except OSError as error:
            raise PeerFailed(f"{name}: at {size} bytes: {error}\n{member.tail()}") from error
        return [max(batch) for batch in zip(*answers, strict=True)]

    def compare(self, size: int, rounds: int, pace: Pace) -> Iterator[tuple[str, float]]:
        """Yields (library, median seconds per call). Libraries take turns, in another order each round.

        A library that fails is dismissed, yields nothing, and is reported on standard output.
        """
        seconds: dict[str, list[float]] = {}
        estimate: dict[str, float] = {}

        def measure(name: str, iterations: int, batches: int, check: bool = False) -> list[float]:
            try:
                return self.order(name, size, iterations, batches, check)
            except PeerFailed as error:
                print(f"  left out from here on: {error}", flush=True)
                seconds.pop(name, None)
                self.dismiss(name)
                return []

        for name in list(self.members):
            if first := measure(name, 2, 2, check=True):
                estimate[name], seconds[name] = min(first), []
        for turn in range(rounds):
            names = list(seconds)
            for name in names[turn % len(names) :] + names[: turn % len(names)] if names else []:
                call_s = estimate[name]
                seconds_now = measure(name, pace.iterations(call_s), pace.batches_of(call_s))
                if name in seconds:
                    seconds[name] += seconds_now
        for name, values in seconds.items():
            yield name, statistics.median(values)
