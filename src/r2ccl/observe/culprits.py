"""Which rank everybody waits for. A function of the reports of all ranks: no clock, no socket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .reports import CallReport, RankReport, parse

_AT_MOST = 3  # culprits named in a message
_SILENCE = {"lost": "is lost", "closed": "has closed its communicator"}


@dataclass(frozen=True)
class Culprit:
    """``ranks`` hold up ``waiters``, directly or through others. Several ranks: they wait for each other."""

    ranks: tuple[int, ...]
    reason: str
    waiters: tuple[int, ...]

    def __str__(self) -> str:
        if len(self.ranks) > 1:
            return f"{names(self.ranks)} wait for each other: {self.reason}"
        wait = "waits" if len(self.waiters) == 1 else "wait"
        return f"{names(self.ranks)} {self.reason}; {names(self.waiters)} {wait} for it"


def explain(survey: str) -> str:
    """The culprits of a survey in words; empty when nobody waits."""
    found = find([*parse(survey)])
    more = f"; and {len(found) - _AT_MOST} more" if len(found) > _AT_MOST else ""
    return "; ".join(str(c) for c in found[:_AT_MOST]) + more


def find(reports: Sequence[RankReport]) -> list[Culprit]:
    """The ranks at the end of every chain of waiting, the one with most waiters first.

    From a rank that waits one goes to the ranks that hold it up, and on from those that wait themselves. The chain ends
    at a rank that has not made the call, does not answer, or failed. Where it ends nowhere, ranks wait in a circle.
    """
    by_rank = {r.rank: r for r in reports}
    ends: dict[tuple[int, str], set[int]] = {}
    circles: list[tuple[set[int], set[int]]] = []  # ranks on the circle, ranks that lead to it
    for report in reports:
        if report.silent or report.state != "OK" or not report.waits_for:
            continue
        reached, stops = _follow(report, by_rank)
        for stop in stops:
            ends.setdefault(stop, set()).add(report.rank)
        if not stops:
            _merge(circles, reached)
    culprits = [Culprit((rank,), reason, tuple(sorted(w))) for (rank, reason), w in ends.items()]
    for ranks, leading in circles:
        culprits.append(Culprit(tuple(sorted(ranks)), _circle(ranks, by_rank), tuple(sorted(leading))))
    return sorted(culprits, key=lambda c: (-len(c.waiters), c.ranks))


def _follow(start: RankReport, by_rank: dict[int, RankReport]) -> tuple[set[int], list[tuple[int, str]]]:
    """The waiting ranks that ``start`` leads to, itself included, and the ends of the chains, each with a reason."""
    reached, todo, stops = {start.rank}, [start], dict[tuple[int, str], None]()
    while todo:
        waiter = todo.pop()
        for call in waiter.calls:
            for wait in call.waits:
                if not wait.held:
                    continue
                other = by_rank.get(wait.rank) or RankReport(wait.rank, silent="no report")
                reason = _reason(other, call, waiter.rank)
                if reason:
                    stops[other.rank, reason] = None
                elif other.rank not in reached:
                    reached.add(other.rank)
                    todo.append(other)
    return reached, list(stops)


def _reason(other: RankReport, call: CallReport, waiter: int) -> str:
    """Why the chain ends at ``other``; empty: it waits, too."""
    if other.silent:
        return _SILENCE.get(other.silent, "does not answer") + f" ({other.doing})"
    if other.state != "OK":
        return f"has ended with {other.state}" + (f" ({other.error})" if other.error else "")
    if call.kind == "collective" and other.finished > call.number:
        return f"has finished {call.name}: what it sent is still under way"
    if other.waits_for:
        return ""
    if call.kind == "collective":
        has = "is working on" if other.submitted > call.number else "has not called"
        return f"{has} {call.name} ({other.doing})"
    if call.kind == "agreement":
        return f"is slow in the {call.name} ({other.doing})"
    if waiter in other.in_flight:
        return f"has sent what is still under way to rank {waiter}"
    match = "recv" if call.kind == "send" else "send"
    return f"has not called {match} #{call.number} {'to' if match == 'send' else 'from'} rank {waiter} ({other.doing})"


def _merge(circles: list[tuple[set[int], set[int]]], reached: set[int]) -> None:
    """One circle for all ranks that lead to each other: the smallest set that one cannot leave."""
    for ranks, leading in circles:
        if ranks & reached:
            ranks &= reached
            leading |= reached
            return
    circles.append((set(reached), set(reached)))


def _circle(ranks: Iterable[int], by_rank: dict[int, RankReport]) -> str:
    reports = [by_rank[r] for r in sorted(ranks)]
    calls = {report.calls[0].name for report in reports}
    moved = min(report.moved_s for report in reports)
    if len(calls) == 1:
        return f"all are in {calls.pop()}, data last moved {moved:.1f} s ago"
    return "; ".join(f"rank {r.rank} is in {r.doing}" for r in reports[:4]) + ("; ..." if len(reports) > 4 else "")


def names(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``."""
    pieces: list[list[int]] = []
    for rank in sorted(ranks):
        if pieces and rank == pieces[-1][1] + 1:
            pieces[-1][1] = rank
        else:
            pieces.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in pieces[:16]) + (", ..." if len(pieces) > 16 else "")
    return f"rank{'s' * (len(ranks) != 1)} {text}"
