"""Rail-separated fabrics: which hosts share a healthy rail, and orders and trees that only use such pairs.

Where rail i of a host reaches only rail i of the others, two hosts that lost different rails may share none. They then
speak through others: a ring places a bridge between them, a tree hangs one of them below a relay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..errors import InvalidArgument

Rails = tuple[int, ...]  # of each host: the set of its healthy rails as a bit mask


def masks(rail_gbs: Sequence[Sequence[float]]) -> Rails:
    """Bit r of a host's mask: its rail r is healthy."""
    return tuple(sum(1 << r for r, gbs in enumerate(row) if gbs > 0) for row in rail_gbs)


def any_apart(rails: Rails) -> bool:
    """Whether some two hosts share no rail."""
    kinds = set(rails)
    return any(not a & b for a in kinds for b in kinds)


@lru_cache(maxsize=16)
def ring_order(rails: Rails) -> tuple[int, ...] | None:
    """Hosts in an order in which neighbours, the last and the first too, share a rail; None: none was found.

    Hosts with few rails are placed first, each beside one that it shares a rail with, so that hosts with many rails are
    left over as bridges. The given order is kept where it will do.
    """
    n = len(rails)
    if _closes(rails, range(n)):
        return tuple(range(n))
    poorest = sorted(range(n), key=lambda h: (rails[h].bit_count(), h))
    for start in poorest:
        order = [start]
        left = [h for h in poorest if h != start]
        while left:
            fits = [h for h in left if rails[order[-1]] & rails[h]]
            if not fits:
                break
            # Whoever has fewest partners among those left goes first: it would be the hardest to place later.
            order.append(min(fits, key=lambda h: sum(1 for o in left if o != h and rails[h] & rails[o])))
            left.remove(order[-1])
        if not left and _closes(rails, order):
            return tuple(order)
    return None


def tree(root: int, rails: Rails, gbs: Sequence[float]) -> list[list[int]]:
    """Hosts below each host in a tree from ``root`` whose edges share a rail, as shallow as can be.

    A host that the root does not reach hangs below the one that has most bandwidth for what it carries already.
    Raises InvalidArgument where some host cannot be reached at all.
    """
    n = len(rails)
    below: list[list[int]] = [[] for _ in range(n)]
    level, left = [root], [(root + k) % n for k in range(1, n)]
    while left:
        reached = []
        for h in left:
            above = [a for a in level if rails[a] & rails[h]]
            if above:
                below[max(above, key=lambda a: gbs[a] / (len(below[a]) + 2))].append(h)
                reached.append(h)
        if not reached:
            raise InvalidArgument(
                f"hosts {left}: no healthy rail leads to them, directly or through others; repair a rail"
            )
        level, left = reached, [h for h in left if h not in reached]
    return below


def _closes(rails: Rails, order: Sequence[int]) -> bool:
    return all(rails[a] & rails[order[i - 1]] for i, a in enumerate(order) if len(order) > 1)
