"""Events of a communicator: what the core noticed and did, in order. The numbers are those of exec/event_log.h."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Event:
    """One event. ``time_ns``: of the wall clock; ``peer`` and ``rail``: -1 where they mean nothing."""

    time_ns: int
    kind: EventKind
    peer: int
    rail: int
    cause: Cause
    value: int

    @classmethod
    def from_core(cls, record: tuple[int, int, int, int, int, int]) -> Event:
        """From (time_ns, kind, peer, rail, detail, value)."""
        time_ns, kind, peer, rail, detail, value = record
        cause = Cause(detail) if kind == EventKind.LINK_SUSPECT else Cause.NONE
        return cls(time_ns, EventKind(kind), peer, rail, cause, value)

    def __str__(self) -> str:
        where = "".join(f" {name}={n}" for name, n in (("peer", self.peer), ("rail", self.rail)) if n >= 0)
        why = f" ({self.cause.name.lower()})" if self.cause else ""
        ms = f" after {self.value / 1e6:.1f} ms" if self.kind == EventKind.REPAIRED else ""
        n = f" of {self.value} chunks" if self.kind == EventKind.REPLAY else ""
        return f"{self.kind.name.lower()}{where}{why}{n}{ms}"
