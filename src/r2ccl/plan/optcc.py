"""OptCC: a ring of the fast hosts that spares the slow ones (arXiv 2606.01680, there for one straggler).

Four stages, one after the other for each piece of the data, of which several are under way at once: a slow host deals its
contribution to the members of the ring; they reduce-scatter; they all-gather; the slow host gets the sum from those that
it dealt to. It sends and receives the data once, which no all-reduce can avoid; it is never used beyond that.
"""

from __future__ import annotations

from collections.abc import Sequence

from .across import Across
from .ir import Plan
from .ring_across import gather_ring, reduce_ring
from .shape import EVEN
from .task import Task

PIECES = 32  # of all blocks together


def all_reduce(task: Task) -> Plan:
    """Each member of the ring owns an equal block; the slow hosts own none."""
    fast, slow = split_hosts(task.speeds)
    x = Across(task, "optcc", (1,) * len(fast), lanes=2, split=max(1, PIECES // len(fast)))

    def schedule(piece: int) -> None:
        if x.here in slow:
            for block, owner in enumerate(fast):
                x.send_sum(owner, block, piece, 0)
            for block, owner in enumerate(fast):
                x.take_result(owner, block, piece, 1)
            return
        own = fast.index(x.here)
        reduce_ring(x, fast, 0, piece, 0, final=not slow)
        for host in slow:
            x.add(host, own, piece, raw=True, final=host == slow[-1], lane=0)
        for host in slow:
            x.send_result(host, own, piece, 1)
        gather_ring(x, fast, 0, piece, 1)

    return x.all_reduce(schedule)


def split_hosts(gbs: Sequence[float]) -> tuple[list[int], list[int]]:
    """(hosts about as fast as the fastest, all others)."""
    enough = (1 - EVEN) * max(gbs)
    fast = [h for h, b in enumerate(gbs) if b >= enough]
    return fast, [h for h in range(len(gbs)) if gbs[h] < enough]


def time(gbs: Sequence[float]) -> float:
    """When the last host is done, in units of data / bandwidth."""
    fast, slow = split_hosts(gbs)
    n, r = len(gbs), len(fast)
    degree = 1 + (n - 2) / r if n > 1 else 0.0
    return max(degree / min(gbs[h] for h in fast), 1 / min(gbs) if slow else 0.0)
