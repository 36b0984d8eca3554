"""What NICs do when they fail: errors of completions, late writes, lost immediates, events. Every element is compared."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import r2ccl
from r2ccl import Cause, Config, Event, EventKind
from r2ccl.testing import run_ranks

pytestmark = pytest.mark.timeout(60)
COUNT = 300_007  # elements: five chunks of 256 KiB


@dataclass
class Seen:
    """What a rank saw. ``states``: of its links, at the end."""

    compared: int = 0
    replayed: int = 0
    repairs: int = 0
    events: list[Event] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    warnings: str = ""

    def of(self, kind: EventKind) -> list[Event]:
        return [e for e in self.events if e.kind == kind]


def calls_until(comm: r2ccl.Communicator, least_s: float, back: bool) -> Seen:
    """All-reduces for at least so long, and until all links are up again if they shall come back."""
    seen = Seen()
    end = time.monotonic() + least_s
    limit = end + 15.0
    done = False
    while not done:
        mine = np.arange(COUNT, dtype=np.int32) * (comm.rank + 1) + seen.compared
        want = np.arange(COUNT, dtype=np.int32) * sum(range(1, comm.size + 1)) + seen.compared * comm.size
        comm.all_reduce(mine)
        assert mine.tobytes() == want.tobytes(), f"call {seen.compared}: {np.flatnonzero(mine != want)[:5]}"
        seen.compared += 1
        up = all(link["state"] == "up" for link in comm.stats()["links"])
        mine_done = time.monotonic() > end and (up or not back or time.monotonic() > limit)
        waiting = np.array([not mine_done], np.int32)
        comm.all_reduce(waiting)
        done = not waiting[0]
    stats = comm.stats()
    seen.replayed, seen.repairs = stats["replayed_chunks"], stats["repairs"]
    seen.states = [link["state"] for link in stats["links"]]
    seen.events = comm.events()
    comm.barrier()
    return seen


def under(
    script: str, n: int = 2, least_s: float = 0.5, back: bool = False, rails: int = 2, **settings: Any
) -> list[Seen]:
    """Runs ranks, a host each, whose devices carry out the script. settings: of Config."""
    return run_ranks(
        calls_until,
        n,
        hosts=n,
        rails=rails,
        args=(least_s, back),
        config=Config.from_env(**settings),
        env={"FAKE_VERBS_SCRIPT": script},
        timeout_s=50,
    )


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def assert_struck(log: Path, kind: str, times: int = 1) -> None:
    """The fault fired: a test of a fault that did not would show nothing."""
    assert sum(f"struck kind={kind}" in line for line in lines(log)) >= times, lines(log)


def suspicions(seen: list[Seen], rail: int) -> list[Event]:
    found = [e for s in seen for e in s.of(EventKind.LINK_SUSPECT)]
    assert found
    assert {e.rail for e in found} == {rail}
    return found


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (12, errno.ETIMEDOUT),
        (13, errno.ENOBUFS),
        (5, errno.ECONNABORTED),
        (10, errno.EREMOTEIO),
        (4, errno.EIO),
        (19, errno.ENODEV),
    ],
)
def test_a_completion_with_an_error(status: int, error: int, over_fake_verbs: Path) -> None:
    """Whatever it says, the link is given up, what was under way goes over the other one, and the link is made anew."""
    seen = under(f"device=fake1 rank=0 kind=error status={status} min_bytes=10000 after_writes=7", back=True)
    assert_struck(over_fake_verbs, "error")
    first = next(e for e in seen[0].events if e.kind == EventKind.LINK_SUSPECT)
    assert (first.cause, first.value) == (Cause.DEVICE, error), str(first)
    suspicions(seen, rail=1)
    assert all(s.states == ["up", "up"] and s.repairs == 1 and s.of(EventKind.LINK_UP) for s in seen)
    assert sum(s.replayed for s in seen) > 0


@pytest.mark.parametrize(("write", "size"), [(11, 0), (12, 0), (1, 10000), (4, 10000), (9, 10000)])
def test_a_late_write_meets_the_fence(write: int, size: int, over_fake_verbs: Path) -> None:
    """The sender is told that the write failed; the peer's slots are fenced when it arrives after all."""
    script = f"device=fake1 rank=1 kind=late error_ms=5 delay_ms=100 min_bytes={size} after_writes={write}"
    seen = under(script, least_s=0.6, back=True)
    assert_struck(over_fake_verbs, "late")
    assert any("late write met no queue pair" in line for line in lines(over_fake_verbs)), lines(over_fake_verbs)
    suspicions(seen, rail=1)


def test_a_late_write_that_lands_before_the_fence(over_fake_verbs: Path) -> None:
    """It is counted as arrived, or thrown away as a copy: never both applied."""
    under("device=fake1 rank=1 kind=late error_ms=400 delay_ms=10 after_writes=25", back=True)
    assert_struck(over_fake_verbs, "late")
    assert any("late write sent" in line for line in lines(over_fake_verbs)), lines(over_fake_verbs)


@pytest.mark.parametrize("write", [11, 12, 13, 14, 40])
def test_a_lost_immediate(write: int, over_fake_verbs: Path) -> None:
    """The sender has its completion; the order of slots, or silence, tells the receiver. (Credits, of no bytes, are
    cumulative: losing one costs nothing.)"""
    seen = under(f"device=fake1 rank=0 kind=lost-imm min_bytes=1 after_writes={write}", least_s=1.5, back=True)
    assert_struck(over_fake_verbs, "lost-imm")
    suspicions(seen, rail=1)


def test_port_down_and_up(over_fake_verbs: Path) -> None:
    """The event tells at once, and long before the retries are used up."""
    seen = under("device=fake0 rank=0 kind=port-error for_ms=300 after_writes=30", least_s=0.8, back=True)
    assert_struck(over_fake_verbs, "port-error")
    first = next(e for e in seen[0].events if e.kind == EventKind.LINK_SUSPECT)
    assert (first.cause, first.value) == (Cause.DEVICE, errno.ENETDOWN), str(first)
    assert all(s.states == ["up", "up"] for s in seen)


@pytest.mark.parametrize("kind", ["fatal", "qp-fatal", "gid-change"])
def test_events(kind: str, over_fake_verbs: Path) -> None:
    """The link is made anew, over a device that was opened again where it had died."""
    seen = under(f"device=fake1 rank=0 kind={kind} after_writes=30", back=True)
    assert_struck(over_fake_verbs, kind)
    first = next(e for e in seen[0].events if e.kind == EventKind.LINK_SUSPECT)
    assert first.cause == Cause.DEVICE
    assert all(s.states == ["up", "up"] for s in seen)
    suspicions(seen, rail=1)


def test_silence(over_fake_verbs: Path) -> None:
    """Nothing gets through, and nobody says so: the stall rule, not the transport's own time-out of 1.9 s."""
    seen = under("device=fake1 rank=0 kind=silent for_ms=700 after_writes=30", least_s=0.5, back=True)
    assert_struck(over_fake_verbs, "silent")
    causes = {e.cause for e in suspicions(seen, rail=1)}
    assert Cause.STALL in causes
    assert causes <= {Cause.STALL, Cause.PEER, Cause.SOCKET}
    assert all(s.states == ["up", "up"] for s in seen)


def test_two_devices_in_a_row(over_fake_verbs: Path) -> None:
    seen = under(
        "device=fake1 rank=0 kind=error after_writes=30; device=fake2 rank=2 kind=qp-fatal after_writes=33",
        n=3,
        rails=3,
        back=True,
    )
    assert_struck(over_fake_verbs, "error")
    assert_struck(over_fake_verbs, "qp-fatal")
    assert all(set(s.states) == {"up"} for s in seen)


@pytest.fixture
def warnings(tmp_path: Path) -> Iterator[Path]:
    """A file with what the ranks log: they inherit the handler."""
    file = tmp_path / "warnings"
    handler = logging.FileHandler(file)
    logging.getLogger("r2ccl").addHandler(handler)
    yield file
    logging.getLogger("r2ccl").removeHandler(handler)
    handler.close()


@pytest.mark.parametrize("limit_kb", [4, 1000, 3000])
def test_too_little_memory(limit_kb: int, over_fake_verbs: Path, warnings: Path) -> None:
    """Fewer slots; with none at all the other rail carries everything. The log says what helps."""
    seen = under(f"device=fake1 rank=0 kind=no-memory limit_kb={limit_kb}", least_s=0.3)
    assert_struck(over_fake_verbs, "no-memory")
    text = warnings.read_text()
    assert "ulimit -l" in text
    if limit_kb > 4:  # a page is enough for the try that comes first
        assert "slots for a peer instead of" in text
        assert all(s.states == ["up", "up"] for s in seen)
        assert not any(s.of(EventKind.LINK_SUSPECT) for s in seen)
    else:
        assert "cannot be registered: Cannot allocate memory" in text
        assert all(s.states[0] == "up" != s.states[1] for s in seen)


def test_a_device_without_queue_pairs(over_fake_verbs: Path, warnings: Path) -> None:
    seen = under("device=fake0 rank=1 kind=no-qp after_writes=1", least_s=0.3)
    assert_struck(over_fake_verbs, "no-qp")
    assert "a queue pair on fake0 cannot be made" in warnings.read_text()
    assert all(s.states[1] == "up" != s.states[0] for s in seen)


@pytest.mark.parametrize("transport", ["auto", "verbs"])
def test_a_port_that_cannot_be_used(transport: str, over_fake_verbs: Path, warnings: Path) -> None:
    """It is found out at the start: the rail goes over TCP, or is left out, at both ends alike."""
    seen = under("device=fake0 rank=1 kind=no-qp", least_s=0.1, transport=transport)
    assert_struck(over_fake_verbs, "no-qp")
    text = warnings.read_text()
    assert "a queue pair on fake0 cannot be made" in text
    assert ("is left out" in text) == (transport == "verbs")
    assert all(s.states == ["up"] * (1 if transport == "verbs" else 2) for s in seen)


@pytest.mark.parametrize("library", ["/nowhere/libibverbs.so", "libc.so.6"])
def test_without_the_library(library: str, warnings: Path) -> None:
    """Rails whose devices cannot be reached go over TCP."""
    seen = under("", least_s=0.1, transport="auto", verbs_library=library)
    assert all(s.states == ["up", "up"] for s in seen)
    assert warnings.read_text().count("goes over TCP") == 4


def test_a_fault_that_never_strikes_is_noticed(over_fake_verbs: Path) -> None:
    """The negative control of ``assert_struck``."""
    under("device=fake1 rank=0 kind=error after_writes=100000000", least_s=0.1)
    with pytest.raises(AssertionError):
        assert_struck(over_fake_verbs, "error")
