"""Binomial gather and scatter: few steps for small blocks; a subtree's blocks travel together.

Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005). The rank v places behind the root answers for the blocks of
v .. v + lowest bit of v - 1 places behind it. Inner ranks keep what they pass on in SCRATCH.
"""

from __future__ import annotations

from .builder import At, Builder
from .ir import Buf, Plan
from .task import Task


def gather(task: Task) -> Plan:
    """ceil(log2 n) steps; the root receives every block but its own once."""
    b = Builder(task, "binomial")
    below = Below(task)
    held = Buf.RECV if task.is_root else Buf.SCRATCH if below.children else Buf.SEND
    b.copy(At(held, task.rank), At(Buf.SEND, task.rank))
    for child, runs in below.children:
        for run in runs:
            b.recv(child, At(held, *run))
    if below.parent is not None:
        for run in below.runs:
            b.send(below.parent, At(held, *run))
    return b.finish()


def scatter(task: Task) -> Plan:
    """ceil(log2 n) steps; the root sends every block but its own once."""
    b = Builder(task, "binomial")
    below = Below(task)
    held = Buf.SEND if task.is_root else Buf.SCRATCH if below.children else Buf.RECV
    if below.parent is not None:
        for run in below.runs:
            b.recv(below.parent, At(held, *run))
    for child, runs in reversed(below.children):
        for run in runs:
            b.send(child, At(held, *run))
    b.copy(At(Buf.RECV, task.rank), At(held, task.rank))
    return b.finish()


class Below:
    """Who is above and below a rank, and which runs of blocks (first, number) it and its children answer for."""

    def __init__(self, task: Task) -> None:
        n, root = task.nranks, task.root
        v = (task.rank - root) % n

        def runs_of(place: int) -> list[tuple[int, int]]:
            size = place & -place if place else n
            return runs((root + place) % n, min(size, n - place), n)

        bits = [1 << k for k in range(n.bit_length()) if 1 << k < (v & -v if v else n)]
        self.runs = runs_of(v)
        self.parent = None if v == 0 else (root + (v & (v - 1))) % n
        self.children = [((root + v + bit) % n, runs_of(v + bit)) for bit in bits if v + bit < n]


def runs(first: int, number: int, n: int) -> list[tuple[int, int]]:
    """``number`` of n blocks from ``first`` on, going round: runs (first, number), two where they pass the end."""
    first %= n
    until_end = min(number, n - first)
    return [run for run in ((first, until_end), (0, number - until_end)) if run[1] > 0]
