"""Ranks that reduce and exchange without end over the rails, every result compared, while the caller breaks things."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from r2ccl import Communicator, Config, Event, EventKind
from r2ccl.testing import RankGroup

from .rails import Rails

# An emulated machine moves a hundredth of what a real one does, and stands still when the machine below is busy: so
# smaller chunks, more patience, and no processor for mere waiting.
SLOW = {"chunk_bytes": 16 << 10, "stall_floor_ms": 800.0, "spin_us": 20}
PERIOD = 2  # iteration i has the data of i % PERIOD; the first ones are what later ones must equal, bit by bit
_OF_PLANS = (EventKind.PLAN, EventKind.EPOCH)
Array = np.ndarray[Any, Any]


@dataclass
class RankReport:
    """What a rank saw. ``links``: (peer, rail) -> (state, payload bytes sent, received)."""

    rank: int
    iterations: int = 0
    compared: int = 0
    wrong: int = 0
    slowest_s: float = 0.0
    replayed: int = 0
    events: list[Event] = field(default_factory=list)
    links: dict[tuple[int, str], tuple[str, int, int]] = field(default_factory=dict)

    def times_ns(self, kind: EventKind, rail: int) -> list[int]:
        """When (of the wall clock) such events happened on a rail."""
        return [event.time_ns for event in self.events if (event.kind, event.rail) == (kind, rail)]

    def told(self) -> str:
        """For messages."""
        said = "; ".join(str(event) for event in self.events if event.kind not in _OF_PLANS)
        return f"rank {self.rank}, {self.iterations} iterations: {said or 'no events'}"


class Counters:
    """What the ranks let the caller know while they run. Shared memory: counts by rank, and a flag that ends it all."""

    def __init__(self, ranks: int) -> None:
        self.iterations: Any = RawArray("q", ranks)
        self.repaired: Any = RawArray("q", ranks)
        self.up: Any = RawArray("q", ranks)
        self.over: Any = RawValue("b", 0)


class Traffic:
    """A context manager. ``hosts``: one rank on each of the first so many hosts. ``pause_s``: between iterations."""

    def __init__(self, rails: Rails, hosts: int, count: int = 1 << 16, pause_s: float = 0.02, **settings: Any) -> None:
        self.rails = rails
        self.counters = Counters(hosts)

        def config(rank: int) -> Config:
            return rank_config(rails, rank, **settings)

        self._group = RankGroup(_rank, hosts, config=config, args=(self.counters, count, pause_s))

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._group.close()

    def run_on(self, iterations: int = 3, timeout_s: float = 60.0) -> None:
        """Returns when every rank has done so many iterations more."""
        goal = [count + iterations for count in self.counters.iterations]
        self.wait(lambda: all(n >= g for n, g in zip(self.counters.iterations, goal, strict=True)), timeout_s)

    def wait(self, is_true: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """``TimeoutError`` with the counters; an exception of a rank comes first."""
        deadline = time.monotonic() + timeout_s
        while not is_true():
            if not self._group_lives():
                self.stop()  # raises what ended the rank
            if time.monotonic() > deadline:
                seen = {name: list(getattr(self.counters, name)) for name in ("iterations", "repaired", "up")}
                raise TimeoutError(f"no end after {timeout_s:g} s; counted so far: {seen}")
            time.sleep(0.01)

    def stop(self, timeout_s: float = 60.0) -> list[RankReport]:
        """Ends the traffic; the report of every rank."""
        self.counters.over.value = 1
        reports: list[RankReport] = self._group.join(timeout_s=timeout_s)
        return reports

    def _group_lives(self) -> bool:
        return all(Path(f"/proc/{pid}/task").exists() and not _is_zombie(pid) for pid in self._group.pids)


def rank_config(laid: Rails, host: int, /, **settings: Any) -> Config:
    """Settings of a rank on an emulated host: its NICs, and an identity that makes it one."""
    values = {"rails": laid.nics(host), "host_id": f"host{host}", "transport": "verbs", "deterministic": True}
    return Config(**{**values, **SLOW, **settings})


def packets_sent(device: str) -> int:
    """By an RDMA device, since it was made."""
    return int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts").read_text())


def noise(rank: int, count: int, salt: int) -> Array:
    """Random float32 of both signs and many sizes: added in another order they give other bits."""
    bits = np.random.default_rng([rank, salt]).integers(0, 1 << 32, count, np.uint32)
    bits &= np.uint32(0x87FFFFFF)
    bits |= np.uint32(0x38000000)
    return bits.view(np.float32)


def _rank(comm: Communicator, counters: Counters, count: int, pause_s: float) -> RankReport:
    report = RankReport(comm.rank)
    wanted: dict[int, list[bytes]] = {}
    over = np.zeros(1, np.int32)
    inputs = [noise(comm.rank, count, salt) for salt in range(PERIOD)]
    block = count // comm.size
    while not over[0]:
        time.sleep(pause_s)
        salt = report.iterations % PERIOD
        begin = time.monotonic()
        reduced, exchanged = inputs[salt].copy(), np.full(block * comm.size, np.nan, np.float32)
        comm.all_reduce(reduced)
        comm.all_to_all(inputs[salt][: block * comm.size], exchanged)
        report.slowest_s = max(report.slowest_s, time.monotonic() - begin)
        results = [reduced.tobytes(), exchanged.tobytes()]
        if report.iterations < PERIOD:
            wanted[salt] = results
            theirs = [noise(r, count, salt)[comm.rank * block : (comm.rank + 1) * block] for r in range(comm.size)]
            report.wrong += np.concatenate(theirs).tobytes() != results[1]
        report.compared += len(results)
        report.wrong += sum(a != b for a, b in zip(results, wanted[salt], strict=True))
        report.iterations += 1
        _tell(comm, counters, report)
        over[0] = comm.rank == 0 and counters.over.value
        comm.broadcast(over, root=0)
    _tell(comm, counters, report)
    stats = comm.stats()
    report.replayed = stats["replayed_chunks"]
    report.links = {(li["peer"], li["rail"]): (li["state"], li["tx_bytes"], li["rx_bytes"]) for li in stats["links"]}
    comm.barrier()
    return report


def _tell(comm: Communicator, counters: Counters, report: RankReport) -> None:
    report.events += comm.events()
    counters.iterations[comm.rank] = report.iterations
    counters.repaired[comm.rank] = sum(event.kind == EventKind.REPAIRED for event in report.events)
    counters.up[comm.rank] = sum(event.kind == EventKind.LINK_UP for event in report.events)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
