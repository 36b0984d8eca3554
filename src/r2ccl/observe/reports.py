"""What a rank's core says of itself (``_native/exec/sight.cc``), as values. Everything that came over the wire is checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Waiting:
    """A call waits for ``rank``: chunks to come from it, chunks to go to it.

    ``held``: it is that rank, or the way to it, that holds the call up; chunks to go may also wait for others.
    """

    rank: int
    to_come: int
    to_go: int
    held: bool


@dataclass(frozen=True)
class CallReport:
    """A call under way. ``number``: of collectives in order; of messages per peer and direction."""

    kind: str  # "collective", "send", "recv", or "agreement": on the state of the rails; no call begins meanwhile
    number: int
    text: str
    for_s: float
    waits: tuple[Waiting, ...]

    @property
    def name(self) -> str:
        """The call with its number."""
        return self.text if self.kind == "agreement" else f"{self.text} #{self.number}"


@dataclass(frozen=True)
class RankReport:
    """Where a rank stands. ``silent`` says why it did not answer (else empty); then only ``heard_s`` means anything."""

    rank: int
    silent: str = ""
    heard_s: float | None = None  # since anything was heard of it; None: never, or it has just answered
    state: str = "OK"
    error: str = ""
    submitted: int = 0
    finished: int = 0
    idle_s: float = 0.0
    moved_s: float = 0.0
    last: str = ""
    current: CallReport | None = None
    agreement: CallReport | None = None
    messages: tuple[CallReport, ...] = ()
    in_flight: tuple[int, ...] = ()  # ranks to which something was sent that is not known to have arrived

    @property
    def calls(self) -> tuple[CallReport, ...]:
        """All that is under way, the collective first."""
        return tuple(c for c in (self.current, self.agreement, *self.messages) if c is not None)

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The ranks that hold up its calls, in order."""
        return tuple(sorted({w.rank for call in self.calls for w in call.waits if w.held}))

    @property
    def doing(self) -> str:
        """In words: the call it is in, or what it did last."""
        if self.silent:
            return f"{self.silent}, " + ("never heard" if self.heard_s is None else f"heard {self.heard_s:.1f} s ago")
        if self.calls:
            call = self.calls[0]
            more = f" and {len(self.calls) - 1} more" if len(self.calls) > 1 else ""
            return f"{call.name} for {call.for_s:.1f} s{more}"
        return f"idle for {self.idle_s:.1f} s" + (f" after {self.last}" if self.last else ", no collective yet")


def parse(text: str) -> list[RankReport]:
    """The reports of a survey, in order of rank. One that makes no sense counts as silence."""
    reports = []
    for place, item in enumerate(_objects(text)):
        try:
            reports.append(_report(item))
        except (KeyError, TypeError, ValueError, IndexError):
            rank = item.get("rank", place) if isinstance(item, dict) else place
            reports.append(RankReport(rank if isinstance(rank, int) else place, silent="unreadable answer"))
    return reports


def _objects(text: str) -> list[Any]:
    found = json.loads(text)
    return found if isinstance(found, list) else [found]


def _report(item: dict[str, Any]) -> RankReport:
    if "silent" in item:
        heard_ns = int(item["heard_ns"])
        return RankReport(
            int(item["rank"]), str(item["silent"]), heard_ns / 1e9 if heard_ns else None, error=str(item["error"])
        )
    last, current = item.get("last"), item.get("current")
    return RankReport(
        rank=int(item["rank"]),
        state=str(item["state"]),
        error=str(item["error"]),
        submitted=int(item["submitted"]),
        finished=int(item["finished"]),
        idle_s=int(item["idle_ns"]) / 1e9,
        moved_s=int(item["moved_ns"]) / 1e9,
        last=f"{last['call']} #{int(last['number'])}" if last else "",
        current=_collective(current) if current else None,
        agreement=_agreement(item["agreeing"]) if "agreeing" in item else None,
        messages=tuple(_message(m) for m in item["p2p"]),
        in_flight=tuple(int(r) for r in item["in_flight"]),
    )


def _collective(item: dict[str, Any]) -> CallReport:
    waits = tuple(Waiting(int(r), int(come), int(go), bool(held)) for r, come, go, held in item["waits"])
    return CallReport("collective", int(item["number"]), str(item["call"]), int(item["for_ns"]) / 1e9, waits)


def _agreement(missing: list[Any]) -> CallReport:
    waits = tuple(Waiting(int(r), 0, 0, True) for r in missing)
    return CallReport("agreement", 0, "agreement on the state of the rails", 0.0, waits)


def _message(item: dict[str, Any]) -> CallReport:
    kind, peer = str(item["kind"]), int(item["peer"])
    if kind not in ("send", "recv"):
        raise ValueError(kind)
    text = f"{item['call']} {'from' if kind == 'recv' else 'to'} rank {peer}"
    wait = Waiting(peer, int(kind == "recv"), int(kind == "send"), True)
    return CallReport(kind, int(item["number"]), text, int(item["for_ns"]) / 1e9, (wait,))
