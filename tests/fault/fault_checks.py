"""A scenario run twice in the same ranks, without and with faults, and everything that must hold afterwards.

The communicator that ``run_ranks`` makes has no fault: what the scenario gives there is what it must give under fault,
bit for bit (random float32, so that another order of reduction would show). A second one, of the same ranks and with
the fault script, is made and closed inside; around it descriptors, threads and shared mappings are counted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

import r2ccl
from r2ccl import Communicator, Config, Event, EventKind
from r2ccl.testing import FaultScript, run_ranks

Array = np.ndarray[Any, Any]
Scenario = Callable[[Communicator], list[Array]]
LinkKey = tuple[int, int, int]  # lower rank, higher rank, rail

REPAIR = (EventKind.LINK_SUSPECT, EventKind.LINK_DOWN, EventKind.REPLAY, EventKind.REPAIRED)
DEADLINE_S = 60.0  # of a whole case; a hang ends here, with the stacks of the ranks
CALL_TIMEOUT_S = 20.0  # of a call under fault
BOUND_S = 15.0  # of a scenario under fault: some 0.1 s on an idle machine


@dataclass(frozen=True)
class LinkView:
    """What a rank's counters say about one link. Bytes are those of the TCP stream, headers included."""

    state: str
    tx_bytes: int
    rx_bytes: int


@dataclass
class Outcome:
    """What one rank saw. ``events`` and ``links`` when the scenario was over and repaired, ``later`` after more calls."""

    rank: int
    compared: int = 0
    clean_s: float = 0.0
    elapsed_s: float = 0.0
    events: list[Event] = field(default_factory=list)
    links: dict[tuple[int, int], LinkView] = field(default_factory=dict)
    later: dict[tuple[int, int], LinkView] = field(default_factory=dict)
    replayed: int = 0
    repairs: int = 0

    def of_link(self, peer: int, rail: int) -> list[EventKind]:
        """Kinds of the events about one link, in order, but for the verdict, whose time is not fixed, and REPLAY_SENT:
        see ``replays_sent``."""
        return [e.kind for e in self._events_of(peer, rail) if e.kind != EventKind.REPLAY_SENT]

    def replays_sent(self, peer: int, rail: int) -> bool:
        """Whether every REPLAY of some chunks is followed by REPLAY_SENT, and no other is."""
        told = [(e.kind, e.value) for e in self._events_of(peer, rail)]
        return all(
            (kind == EventKind.REPLAY and value > 0) == (after == EventKind.REPLAY_SENT)
            for (kind, value), (after, _) in pairwise(told)
        )

    def _events_of(self, peer: int, rail: int) -> list[Event]:
        return [e for e in self.events if (e.peer, e.rail) == (peer, rail) and e.kind != EventKind.VERDICT]

    def first(self, kind: EventKind, rail: int) -> int:
        """Place of the first such event in ``events``."""
        return next(i for i, e in enumerate(self.events) if (e.kind, e.rail) == (kind, rail))


# -- in the ranks ------------------------------------------------------------------------------------------------------


def noise(rank: int, count: int, salt: int = 0) -> Array:
    """Random float32 of both signs and very different sizes: adding them in another order gives other bits."""
    bits = np.random.default_rng([rank, salt]).integers(0, 1 << 32, count, np.uint32)
    bits &= np.uint32(0x87FFFFFF)  # 16 exponents, from 2**-16 up
    bits |= np.uint32(0x38000000)
    return bits.view(np.float32)


def assert_same(got: Array, want: Array, what: str) -> None:
    """The same bits in every element."""
    assert got.shape == want.shape, f"{what}: shape {got.shape}, without failure {want.shape}"
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, without failure {want.dtype}"
    if got.tobytes() == want.tobytes():
        return
    differ = got.view(np.uint8).reshape(got.size, -1) != want.view(np.uint8).reshape(want.size, -1)
    wrong = np.flatnonzero(differ.any(axis=1))
    raise AssertionError(
        f"{what}: {wrong.size} of {got.size} elements differ from the run without failure, first [{wrong[0]}]: "
        f"{got[wrong[0]]!r}, expected {want[wrong[0]]!r}"
    )


def links_of(comm: Communicator) -> dict[tuple[int, int], LinkView]:
    """Counters by (peer, rail); links through shared memory are left out."""
    stats = comm.stats()
    number = {rail["name"]: i for i, rail in enumerate(stats["rails"])}
    return {
        (li["peer"], number[li["rail"]]): LinkView(li["state"], li["tx_bytes"], li["rx_bytes"])
        for li in stats["links"]
        if li["rail"] in number
    }


def holdings() -> tuple[set[tuple[str, str]], int, int]:
    """What this process holds: its descriptors and what they are, its number of threads, its mappings of memfds."""
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            descriptors.add((name, os.readlink(f"/proc/self/fd/{name}")))
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:" in line for line in maps)
    return descriptors, len(os.listdir("/proc/self/task")), shared


def assert_nothing_leaked(before: tuple[set[tuple[str, str]], int, int]) -> None:
    """No more is held than ``before``. A thread that was joined may take a moment to vanish from /proc."""
    deadline = time.monotonic() + 2.0
    while True:
        descriptors, threads, mappings = holdings()
        if descriptors == before[0] and threads <= before[1] and mappings == before[2]:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    gone = before[0] - descriptors
    raise AssertionError(
        f"descriptors: leaked {descriptors - before[0]}, gone {gone}; threads: {threads}, before {before[1]}; "
        f"shared mappings: {mappings}, before {before[2]}"
    )


def is_under_fault(comm: Communicator) -> bool:
    """Whether this is the communicator with the faults; a scenario must not need to know, tests of the checker do."""
    return comm.config.log_level == "error"


def reopen(comm: Communicator, **settings: Any) -> Communicator:
    """Another communicator of the same ranks, with other settings."""
    return r2ccl.init(config=comm.config.with_(**settings))


def settle(
    comm: Communicator, outcome: Outcome, expected: Iterable[tuple[int, int]] = (), timeout_s: float = 10.0
) -> None:
    """Waits until every repair that has begun here, and that of every expected (peer, rail), is complete.

    A sender of small messages may be done with its calls long before a silent loss is noticed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        outcome.events += [e for e in comm.events() if e.kind != EventKind.PEER_CLOSED]
        begun, ended = (
            {(e.peer, e.rail) for e in outcome.events if e.kind == kind}
            for kind in (EventKind.LINK_SUSPECT, EventKind.REPAIRED)
        )
        if begun | set(expected) == ended or time.monotonic() > deadline:
            return
        time.sleep(0.005)


def links_at(rank: int, links: Iterable[LinkKey]) -> set[tuple[int, int]]:
    """The (peer, rail) of a rank's own ends among the links."""
    return {(b if a == rank else a, rail) for a, b, rail in links if rank in (a, b)}


def told(events: Iterable[Event]) -> str:
    """Events for a message."""
    return "; ".join(map(str, events)) or "no events"


def more_traffic(comm: Communicator) -> None:
    """Calls after the repair, large enough to use every rail that lives."""
    for salt in (100, 101):
        array = noise(comm.rank, 1 << 18, salt)
        comm.all_reduce(array)
    comm.barrier()


def rank_under_fault(
    comm: Communicator,
    scenario: Scenario,
    scripts: Mapping[int, FaultScript],
    settings: Mapping[str, Any],
    dead: Iterable[LinkKey] = (),
) -> Outcome:
    """Runs in every rank. Raises AssertionError where this rank alone can tell that something is wrong."""
    outcome = Outcome(comm.rank)
    begin = time.monotonic()
    want = [np.array(a, copy=True) for a in scenario(comm)]
    outcome.clean_s = time.monotonic() - begin
    comm.barrier()
    assert comm.stats()["repairs"] == 0, f"a link was lost without a fault: {told(comm.events())}"

    before = holdings()
    script = str(scripts.get(comm.rank, ""))
    settings = {"timeout_s": CALL_TIMEOUT_S, "log_level": "error", **settings}
    with reopen(comm, fault_script=script, **settings) as faulty:
        begin = time.monotonic()
        got = scenario(faulty)
        outcome.elapsed_s = time.monotonic() - begin
        assert len(got) == len(want) > 0
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"rank {comm.rank}, array {i}")
            outcome.compared += a.size
        faulty.barrier()
        # A fault that waits for bytes on its link may need more of them: which link carries what is a matter of timing.
        for _ in range(10):
            settle(faulty, outcome, links_at(comm.rank, dead), 0.5)
            struck = {(e.peer, e.rail) for e in outcome.events if e.kind == EventKind.LINK_SUSPECT}
            waiting = np.array([len(links_at(comm.rank, dead) - struck)])
            comm.all_reduce(waiting)
            if not waiting[0]:
                break
            more_traffic(faulty)
        faulty.barrier()
        outcome.links = links_of(faulty)
        more_traffic(faulty)
        settle(faulty, outcome)
        outcome.later = links_of(faulty)
        stats = faulty.stats()
        outcome.replayed, outcome.repairs = stats["replayed_chunks"], stats["repairs"]
        comm.barrier()  # nobody closes while others still count events
    assert_nothing_leaked(before)
    comm.barrier()
    return outcome


# -- in the test -------------------------------------------------------------------------------------------------------


def run_case(
    scenario: Scenario,
    scripts: Mapping[int, FaultScript],
    dead: Iterable[LinkKey],
    *,
    n: int = 2,
    hosts: int | None = None,
    rails: int = 2,
    config: Config | None = None,
    settings: Mapping[str, Any] | None = None,
    bound_s: float = BOUND_S,
) -> list[Outcome]:
    """Runs a scenario on n ranks (a host each unless said otherwise) and checks the outcome of every rank.

    scripts: faults by the rank that carries them out. dead: the links that must be lost, and no others.
    """
    outcomes: list[Outcome] = run_ranks(
        rank_under_fault,
        n,
        hosts=n if hosts is None else hosts,
        rails=rails,
        config=config,
        args=(scenario, scripts, dict(settings or {}), set(dead)),
        timeout_s=DEADLINE_S,
    )
    check_outcomes(outcomes, set(dead), scripts, bound_s)
    return outcomes


def check_outcomes(
    outcomes: list[Outcome], dead: set[LinkKey], scripts: Mapping[int, FaultScript], bound_s: float = BOUND_S
) -> None:
    """The fault struck these links and no others; events in order at both ends; in time; silence afterwards."""
    assert dead, "a fault test without a fault"
    for o in outcomes:
        mine = links_at(o.rank, dead)
        assert o.compared > 0, f"rank {o.rank} compared nothing"
        lost = {key for key, link in o.links.items() if link.state != "up"}
        assert lost == mine, f"rank {o.rank} lost (peer, rail) {lost}, expected {mine}: {told(o.events)}"
        assert all(o.links[key].state == "down" for key in mine)
        assert {(e.peer, e.rail) for e in o.events if e.rail >= 0} == mine, told(o.events)
        for peer, rail in mine:
            assert tuple(o.of_link(peer, rail)) == REPAIR, f"rank {o.rank}: {told(o.events)}"
            assert o.replays_sent(peer, rail), f"rank {o.rank}: {told(o.events)}"
            carried = o.links[peer, rail]
            assert o.later[peer, rail] == carried, f"rank {o.rank}: rail {rail} to rank {peer} was used after its loss"
            for fault in scripts.get(o.rank, ()):
                # A reset may strike before what was handed to the link is written.
                if fault.rail in (None, rail) and fault.peer in (None, peer) and fault.kind != "reset":
                    assert carried.tx_bytes + carried.rx_bytes >= (fault.after_bytes or 0), f"{fault}: {carried}"
        assert o.repairs == len(mine)
        moved = sum(o.later[k].tx_bytes + o.later[k].rx_bytes - v.tx_bytes - v.rx_bytes for k, v in o.links.items())
        assert moved > 1 << 18 or not o.links, f"rank {o.rank}: later calls used no rail"
        assert o.elapsed_s < bound_s, f"rank {o.rank}: {o.elapsed_s:.2f} s under fault, {o.clean_s:.3f} s without"


def replayed_chunks(outcomes: Iterable[Outcome]) -> int:
    """Chunks that were sent again, of all ranks."""
    return sum(o.replayed for o in outcomes)
