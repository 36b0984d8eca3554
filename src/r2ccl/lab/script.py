"""Carrying out the scheduled faults of a run, and sampling the counters around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .fabric import Fabric, RailCounters
from .kinds import kind_named
from .schedule import ScheduledFault, parse_fault
from .wiring import Place

SETTLE_S = 0.5
"""A cut is sampled this long after it acts: what NIC and switch had queued (below 30 ms) has drained by then."""


@dataclass
class FiredFault:
    """What became of a scheduled fault; times are seconds since the ranks started, None: it never came to it.

    It began to act between ``called_s`` and ``fired_s`` (2 ms for links, 20 ms for packet filters).
    """

    spec: ScheduledFault
    places: list[Place]
    due: bool = False  # its line was printed
    called_s: float | None = None
    fired_s: float | None = None
    healed_s: float | None = None
    evidence: dict[Place, dict[str, Any]] = field(default_factory=dict)
    evidence_at_end: dict[Place, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """Counters of every (host, rail) at one time, ``at_s`` after the ranks started."""

    at_s: float
    label: str
    rails: dict[Place, RailCounters]


class Script:
    """The faults of one run. Not thread-safe: the run calls it from its own loop.

    ``now_s`` gives the seconds since the ranks started; ``at(seconds, action)`` has an action called at such a time.
    """

    def __init__(
        self,
        fabric: Fabric,
        faults: Sequence[str | ScheduledFault],
        now_s: Callable[[], float],
        at: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._fabric, self._now_s, self._at = fabric, now_s, at
        specs = [parse_fault(f, fabric.hosts, fabric.rails) if isinstance(f, str) else f for f in faults]
        self.faults = [FiredFault(spec, self._places(spec)) for spec in specs]
        self.samples: list[Sample] = []

    def begin(self) -> None:
        """The ranks have started."""
        self._sample("start")
        for fault in self.faults:
            if fault.spec.at_s is not None:
                self._at(fault.spec.at_s, lambda fault=fault: self._fire(fault))  # type: ignore[misc]

    def on_line(self, line: str) -> None:
        """A rank has printed a line."""
        for fault in self.faults:
            if fault.spec.on is None or fault.due or fault.spec.on not in line:
                continue
            fault.due = True
            if fault.spec.after_s:
                self._at(self._now_s() + fault.spec.after_s, lambda fault=fault: self._fire(fault))  # type: ignore[misc]
            else:
                self._fire(fault)

    def end(self) -> None:
        """The ranks have ended."""
        self._sample("end")
        for fault in self.faults:
            if fault.fired_s is not None and fault.healed_s is None:
                fault.evidence_at_end = self._evidence(fault)

    def _places(self, spec: ScheduledFault) -> list[Place]:
        hosts = range(self._fabric.hosts) if spec.host is None or spec.kind == "switch" else [spec.host]
        rails = range(self._fabric.rails) if spec.rail is None else [spec.rail]
        return [(host, rail) for host in hosts for rail in rails]

    def _fire(self, fault: FiredFault) -> None:
        spec = fault.spec
        fault.called_s = self._now_s()
        if spec.kind == "heal":
            self._heal(fault.places, f"before {spec.text!r}")
            fault.fired_s = self._now_s()
            return
        self._fabric.fault(spec.kind, *fault.places[0], *spec.arguments)
        fault.fired_s = self._now_s()
        self._sample(f"after {spec.text!r}")
        fault.evidence = self._evidence(fault)
        if kind_named(spec.kind).cuts:
            self._at(fault.fired_s + SETTLE_S, lambda: self._sample(f"{SETTLE_S:g} s after {spec.text!r}"))
        if spec.for_s is not None:
            self._at(fault.fired_s + spec.for_s, lambda: self._heal(fault.places, f"before the end of {spec.text!r}"))

    def _heal(self, places: list[Place], label: str) -> None:
        self._sample(label)
        ended = [f for f in self.faults if f.fired_s is not None and f.healed_s is None and f.spec.kind != "heal"]
        ended = [f for f in ended if set(f.places) & set(places)]
        for fault in ended:
            fault.evidence_at_end = self._evidence(fault)
            fault.healed_s = self._now_s()
        for place in places:
            self._fabric.heal(*place)

    def _evidence(self, fault: FiredFault) -> dict[Place, dict[str, Any]]:
        return {} if fault.spec.kind == "heal" else {place: self._fabric.evidence(*place) for place in fault.places}

    def _sample(self, label: str) -> None:
        self.samples.append(Sample(self._now_s(), label, self._fabric.counters()))
