"""Rings between some of the hosts, as parts of larger schedules. Block ``first + i`` belongs to the member at position i."""

from __future__ import annotations

from collections.abc import Sequence

from .across import Across


def reduce_ring(x: Across, members: Sequence[int], first: int, piece: int, lane: int, final: bool) -> None:
    """Reduce-scatter: each member ends with the sum of all members of its own block, finished if ``final``."""
    r, pos = len(members), members.index(x.here)
    after, before = members[(pos + 1) % r], members[pos - 1]
    for step in range(r - 1):
        x.send_sum(after, first + (pos - 1 - step) % r, piece, lane)
        into = first + (pos - 2 - step) % r
        x.add(before, into, piece, raw=step == 0, final=final and step == r - 2, lane=lane)


def gather_ring(x: Across, members: Sequence[int], first: int, piece: int, lane: int, finished: bool = True) -> None:
    """All-gather: each member ends with every block. ``finished``: results travel, else partial sums."""
    r, pos = len(members), members.index(x.here)
    after, before = members[(pos + 1) % r], members[pos - 1]
    send, take = (x.send_result, x.take_result) if finished else (x.send_sum, x.take_sum)
    for step in range(r - 1):
        send(after, first + (pos - step) % r, piece, lane)
        take(before, first + (pos - 1 - step) % r, piece, lane)
