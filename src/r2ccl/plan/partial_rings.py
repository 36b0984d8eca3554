"""R2CCL-AllReduce: a ring of all hosts beside rings of the faster ones (arXiv 2512.25059, section 5).

The ring of all hosts runs at the bandwidth of the slowest. What the others have left over drives a partial all-reduce of
another share of the data among them; then the slow hosts' contributions are added and the sum goes to everybody down a
chain, in pieces that follow each other. With more than two levels of bandwidth the faster hosts of a partial ring do the
same again, each level with the bandwidth that the levels below leave over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .across import Across
from .ir import Plan
from .ring_across import gather_ring, reduce_ring
from .shape import EVEN
from .task import Task

MOST_LEVELS = 4
PIECES = 32  # of all blocks together
_UNITS = 1 << 16  # of the data


@dataclass(frozen=True)
class Level:
    """A ring: its members, the others, the share of the data that it reduces, and the bandwidth it has."""

    members: tuple[int, ...]
    others: tuple[int, ...]
    share: float
    gbs: float

    @property
    def ring_time(self) -> float:
        """Of its all-reduce, in units of data / bandwidth."""
        r = len(self.members)
        return 2 * (r - 1) / r * self.share / self.gbs


def levels(gbs: Sequence[float]) -> list[Level]:
    """Rings over ever faster hosts, with shares such that all rings end together.

    For one host that lost the fraction X of n equal ones the partial ring gets
    Y* = X (n - 1)^2 / ((n - 1)^2 - 1 + X).
    """
    n = len(gbs)
    if n == 1:
        return [Level((0,), (), 1.0, gbs[0])]
    speeds = [min(gbs)]
    for b in sorted(gbs)[:-1]:  # the fastest alone is no ring
        if b * (1 - EVEN) > speeds[-1] and len(speeds) < MOST_LEVELS:
            speeds.append(b)
    every = range(n)
    rings = [
        (tuple(h for h in every if gbs[h] >= b), tuple(h for h in every if gbs[h] < b), b - below)
        for below, b in zip([0.0, *speeds], speeds, strict=False)
    ]
    rates = [spare * len(members) / (2 * (len(members) - 1)) for members, _, spare in rings]
    return [
        Level(members, others, rate / sum(rates), spare)
        for (members, others, spare), rate in zip(rings, rates, strict=True)
    ]


def time(gbs: Sequence[float], pieces: float = float("inf")) -> float:
    """When the last host is done, in units of data / bandwidth: the rings, then the tail in so many pieces."""
    found = levels(gbs)
    left_out = [0.0] * len(gbs)
    for level in found:
        for h in level.others:
            left_out[h] += level.share
    tail = max(share / b for share, b in zip(left_out, gbs, strict=True))
    return max(level.ring_time for level in found) + (1 + 1 / pieces) * tail


def all_reduce(task: Task) -> Plan:
    """All rings at once, in lanes of their own; each partial one with its tail."""
    found = levels(task.speeds)
    weights = [max(1, round(v.share / len(v.members) * _UNITS)) for v in found for _ in v.members]
    x = Across(task, "r2ccl_allreduce", weights, lanes=2 * len(found), split=max(1, PIECES // len(weights)))

    def schedule(piece: int) -> None:
        first = 0
        for number, level in enumerate(found):
            _ring(x, level, first, piece, 2 * number)
            first += len(level.members)
        first = 0
        for number, level in enumerate(found):
            if level.others:
                for block in range(first, first + len(level.members)):
                    _tail(x, level, block, piece, 2 * number + 1)
            first += len(level.members)

    return x.all_reduce(schedule)


def _ring(x: Across, level: Level, first: int, piece: int, lane: int) -> None:
    whole = not level.others
    if x.here in level.members:
        reduce_ring(x, level.members, first, piece, lane, final=whole)
        gather_ring(x, level.members, first, piece, lane, finished=whole)


def _tail(x: Across, level: Level, block: int, piece: int, lane: int) -> None:
    """The first member adds what the slow hosts contribute; then down the chain of members, each slow host below one."""
    members, others = level.members, level.others
    if x.here in others:
        x.send_sum(members[0], block, piece, lane)
        x.take_result(members[-1 - others.index(x.here) % len(members)], block, piece, lane)
        return
    at = members.index(x.here)
    if at == 0:
        for host in others:
            x.add(host, block, piece, raw=True, final=host == others[-1], lane=lane)
    else:
        x.take_result(members[at - 1], block, piece, lane)
    if at + 1 < len(members):
        x.send_result(members[at + 1], block, piece, lane)
    for number, host in enumerate(others):
        if number % len(members) == len(members) - 1 - at:
            x.send_result(host, block, piece, lane)
