"""Events of a communicator: what the core noticed and did, in order. The numbers are those of exec/event_log.h."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class EventKind(IntEnum):
    """What happened."""

    LINK_SUSPECT = 1
    """A link is taken for dead: nothing more is sent over it. ``detail`` is a Cause."""
    LINK_DOWN = 2
    """The link is fenced at both ends, and what had arrived over it is known."""
    REPLAY = 3
    """``value`` chunks were on the link and had not arrived: they are sent again over the other links."""
    REPAIRED = 4
    """All of them have arrived, ``value`` nanoseconds after the suspicion."""
    RAIL_DOWN = 5
    """The interface of a rail lost its link, was switched off or removed."""
    RAIL_UP = 6
    PEER_LOST = 7
    """A rank's process ended without a goodbye."""
    PEER_CLOSED = 8
    """A rank closed its communicator (``detail`` 0) or gave it up after an error (the status code)."""
    OUTAGE_BEGIN = 9
    """No rail is left to a peer: calls stall."""
    OUTAGE_END = 10
    MISMATCH = 11
    FRAME_REFUSED = 12
    LINK_PROBATION = 13
    """A link that was down is connected again and has to prove itself before it carries chunks."""
    LINK_UP = 14
    """It is in use again, after ``value`` nanoseconds of probation."""
    VERDICT = 15
    """What failed: ``detail`` is a Verdict, ``value`` the evidence for it."""
    EPOCH = 16
    """All ranks have agreed on the health of the rails: ``value`` is the epoch, ``rails_down`` how many are not usable."""
    PLAN = 17
    """A plan was made for that state: ``evidence`` names it and the call, ``value`` is the predicted time in nanoseconds."""
    RELAY = 25
    """No link to the peer is left, but other ranks pass on what is for it (``begins``; ``value`` is the rank that was heard
    first), or that has ended."""
    REPLAY_SENT = 24
    """The first of the chunks of a REPLAY was handed to another link, ``value`` nanoseconds after the suspicion."""


_SINCE_SUSPICION = (EventKind.REPAIRED, EventKind.REPLAY_SENT)


class Verdict(IntEnum):
    """What failed, seen from this rank."""

    NONE = 0
    LOCAL_RAIL = 1
    """This rank's own rail: all its links are given up."""
    REMOTE_RAIL = 2
    """The peer's rail."""
    PATH = 3
    """The way between the two: both rails serve others, or nothing tells which of them failed."""
    PEER_LOST = 4
    FALSE_ALARM = 5
    """Nothing lasting: the link was in use again within a second."""


class Cause(IntEnum):
    """Why a link was suspected."""

    NONE = 0
    SOCKET = 1
    """Its socket reported an error, or the peer ended it."""
    INTERFACE = 2
    """Netlink: the interface is down or gone."""
    STALL = 3
    """Nothing moved on it while the peer answered over another path."""
    PEER = 4
    """The peer says so."""
    HEARTBEAT = 5
    """It was idle and gave no sign of life when asked, while the peer answered over another path."""
    RAIL = 6
    """Another link over the same rail failed, and this one gave no sign of life either."""
    DEVICE = 7
    """Its RDMA device reported an error, by a completion or an event: ``value`` is an errno that says of what kind."""


@dataclass(frozen=True)
class Event:
    """One event. ``time_ns``: of the wall clock; ``peer`` and ``rail``: -1 where they mean nothing."""

    time_ns: int
    kind: EventKind
    peer: int
    rail: int
    cause: Cause
    value: int
    verdict: Verdict = Verdict.NONE
    evidence: str = ""
    rails_down: int = 0
    begins: bool = False

    @classmethod
    def from_core(cls, record: tuple[int, int, int, int, int, int]) -> Event:
        """From (time_ns, kind, peer, rail, detail, value)."""
        time_ns, kind, peer, rail, detail, value = record
        if kind == EventKind.LINK_SUSPECT:
            return cls(time_ns, EventKind(kind), peer, rail, Cause(detail), value)
        if kind == EventKind.VERDICT:
            return cls(time_ns, EventKind(kind), peer, rail, Cause.NONE, value, Verdict(detail), _evidence(value))
        if kind == EventKind.RELAY:
            return cls(time_ns, EventKind(kind), peer, rail, Cause.NONE, value, begins=detail == 1)
        down = detail if kind == EventKind.EPOCH else 0
        return cls(time_ns, EventKind(kind), peer, rail, Cause.NONE, value, rails_down=down)

    @classmethod
    def of_plan(cls, time_ns: int, what: str, predicted_us: float) -> Event:
        """A plan was made anew."""
        return cls(time_ns, EventKind.PLAN, -1, -1, Cause.NONE, round(predicted_us * 1e3), evidence=what)

    def _error(self) -> str:
        return f": {os.strerror(self.value)}" if self.cause == Cause.DEVICE and self.value else ""

    def __str__(self) -> str:
        where = "".join(f" {name}={n}" for name, n in (("peer", self.peer), ("rail", self.rail)) if n >= 0)
        why = f" ({self.cause.name.lower()}{self._error()})" if self.cause else ""
        ms = f" after {self.value / 1e6:.1f} ms" if self.kind in _SINCE_SUSPICION else ""
        n = f" of {self.value} chunks" if self.kind == EventKind.REPLAY else ""
        verdict = f" {self.verdict.name.lower()}: {self.evidence}" if self.kind == EventKind.VERDICT else ""
        epoch = f" {self.value}: {self.rails_down} rails down" if self.kind == EventKind.EPOCH else ""
        plan = f" {self.evidence}, {self.value / 1e6:.3g} ms predicted" if self.kind == EventKind.PLAN else ""
        relay = (f" by {self.value}" if self.begins else " ends") if self.kind == EventKind.RELAY else ""
        return f"{self.kind.name.lower()}{where}{why}{n}{ms}{verdict}{epoch}{plan}{relay}"


def _evidence(value: int) -> str:
    """The words of ``Diagnosis::evidence`` (flow/diagnosis.h)."""
    answered, silent = value & 255, value >> 8 & 255
    mine, theirs = value >> 21 & 3, value >> 23 & 3
    words = []
    if value >> 16 & 1:
        words.append("interface down here")
    if value >> 17 & 1:
        words.append("interface down at the peer")
    if answered or silent:
        words.append(f"{answered} other links of the rail answered, {silent} did not")
    if value >> 20 & 1:
        words.append(
            "connections across rails found "
            + (f"own rail {_FINDINGS[mine]}, peer's rail {_FINDINGS[theirs]}" if mine or theirs else "no way")
        )
    elif theirs:
        words.append(f"the peer finds its rail {_FINDINGS[theirs]}")
    words.append(_DIRECTIONS[value >> 18 & 3])
    return ", ".join(word for word in words if word) or "no third point to ask"


_FINDINGS = ("unknown", "alive", "dead", "?")
_DIRECTIONS = ("", "silent both ways", "silent from the peer", "silent to the peer")


def verdicts(events: Iterable[Event]) -> dict[int, str]:
    """The last verdict about each rail, in words, by number of the rail."""
    return {
        e.rail: f"{e.verdict.name.lower()} (peer {e.peer}: {e.evidence})" for e in events if e.kind == EventKind.VERDICT
    }
