"""All that a communicator can tell about itself. Reads the core, changes nothing; any thread may ask."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from . import culprits
from .events import Event, verdicts
from .reports import RankReport, parse
from .timeline import Timeline

LINK_STATES = ("up", "suspect", "down", "probation")
SHARED_MEMORY = "shm"
_RECENT = 32


class Core(Protocol):
    """What is needed of ``_native.core.Engine``."""

    def counters(self) -> dict[str, Any]: ...
    def links(self) -> list[tuple[int, int, int, int, int, int, int, bool]]: ...
    def recent_events(self, count: int) -> list[tuple[int, int, int, int, int, int]]: ...
    def epoch(self) -> int: ...
    def survey(self, timeout_s: float) -> str: ...
    def trace(self) -> tuple[bytes, int]: ...
    def describe(self, ticket: int) -> str: ...
    def status(self) -> str: ...


class View:
    """One communicator, seen from one rank."""

    def __init__(
        self,
        core: Core,
        *,
        job: str,
        name: str,
        rank: int,
        size: int,
        hosts: int,
        rails: Sequence[tuple[str, str]],
    ) -> None:
        """name: tells the communicators of a process apart; rails: names and addresses, by number."""
        self.job = job
        self.name = name
        self.rank = rank
        self.size = size
        self._core = core
        self._hosts = hosts
        self._rails = tuple(rails)

    def stats(self) -> dict[str, Any]:
        """See ``Communicator.stats``."""
        counters = self._core.counters()
        rails: list[dict[str, Any]] = [
            {"name": name, "address": address, "state": "up", "tx_bytes": 0, "rx_bytes": 0, "replayed_bytes": 0}
            for name, address in self._rails
        ]
        links = []
        for peer, rail, state, generation, tx, rx, replayed, direct in self._core.links():
            links.append(
                {
                    "peer": peer,
                    "rail": self.rail_name(rail),
                    "state": LINK_STATES[state],
                    "generation": generation,
                    "tx_bytes": tx,
                    "rx_bytes": rx,
                    "replayed_bytes": replayed,
                    "gpu_direct": direct,
                }
            )
            if rail < len(rails):
                own = rails[rail]
                own["tx_bytes"] += tx
                own["rx_bytes"] += rx
                own["replayed_bytes"] += replayed
                if state and own["state"] == "up":
                    own["state"] = "degraded"
        for own in rails:
            states = [li["state"] for li in links if li["rail"] == own["name"]]
            if states and all(s != "up" for s in states):
                own["state"] = "down"
        return {**counters, "epoch": self._core.epoch(), "rails": rails, "links": links, "hosts": self._hosts}

    def health(self) -> list[dict[str, Any]]:
        """See ``Communicator.health``."""
        return [{k: rail[k] for k in ("name", "address", "state")} for rail in self.stats()["rails"]]

    def report(self) -> RankReport:
        """Where this rank stands."""
        return parse(self._core.survey(0.0))[0]

    def status(self, timeout_s: float) -> dict[str, Any]:
        """See ``Communicator.status``."""
        reports = parse(self._core.survey(timeout_s))
        found = culprits.find(reports)
        stats = self.stats()
        return {
            "rank": self.rank,
            "size": self.size,
            "state": self._core.status(),
            "current": self._core.describe(0),
            "calls": stats["calls"],
            "epoch": stats["epoch"],
            "rails": self._rails_with_verdicts(stats),
            "ranks": [rank_of(r) for r in reports],
            "culprits": [{"ranks": c.ranks, "reason": c.reason, "waiters": c.waiters, "text": str(c)} for c in found],
            "text": "; ".join(str(c) for c in found),
        }

    def snapshot(self) -> dict[str, Any]:
        """What r2ccl-top shows of this rank; plain values for JSON."""
        stats = self.stats()
        shared = [li for li in stats["links"] if li["rail"] == SHARED_MEMORY]
        rails = self._rails_with_verdicts(stats)
        if shared:
            total = {k: sum(li[k] for li in shared) for k in ("tx_bytes", "rx_bytes", "replayed_bytes")}
            rails.append({"name": SHARED_MEMORY, "address": "", "state": "up", **total, "verdict": ""})
        plain = {k: v for k, v in stats.items() if isinstance(v, int | float)}
        return {
            "job": self.job,
            "comm": self.name,
            "rank": self.rank,
            "size": self.size,
            "time_ns": time.monotonic_ns(),
            "epoch": stats["epoch"],
            "counters": plain,
            "rails": rails,
            "links": [li for li in stats["links"] if li["state"] != "up"],
            "report": rank_of(self.report()),
            "events": [[e.time_ns, str(e)] for e in self.recent_events()],
        }

    def recent_events(self, count: int = _RECENT) -> list[Event]:
        """The last events, whether or not the program took them; takes none."""
        return [Event.from_core(record) for record in self._core.recent_events(count)]

    def timeline(self) -> Timeline:
        """The trace so far."""
        records, dropped = self._core.trace()
        return Timeline(records, dropped, self.rank, self.name, self.rail_name)

    def rail_name(self, rail: int) -> str:
        """Name of a rail by its number; rails beyond the known ones are the shared memory."""
        return self._rails[rail][0] if rail < len(self._rails) else SHARED_MEMORY

    def _rails_with_verdicts(self, stats: dict[str, Any]) -> list[dict[str, Any]]:
        last = verdicts(self.recent_events(1024))
        return [{**rail, "verdict": last.get(number, "")} for number, rail in enumerate(stats["rails"])]


def rank_of(report: RankReport) -> dict[str, Any]:
    """A report as ``status`` shows it."""
    return {
        "rank": report.rank,
        "state": report.state if not report.silent else "",
        "silent": report.silent,
        "heard_s": report.heard_s,
        "doing": report.doing,
        "last": report.last,
        "submitted": report.submitted,
        "finished": report.finished,
        "since_s": report.calls[0].for_s if report.calls else report.idle_s,
        "waits_for": report.waits_for,
        "error": report.error,
    }
