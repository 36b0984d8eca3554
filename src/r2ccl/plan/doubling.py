"""Logarithmic exchanges, for any number of ranks.

``doubling``: recursive doubling with extra ranks folded in before and served after (Thakur et al., IJHPCA 19, 2005).
``halving_doubling``: reduce-scatter and all-gather on a circulant graph, ceil(log2 n) steps each with the volume of a
ring (Bruck et al., IEEE TPDS 8 (1997); the reversed form for reduction: Traeff, arXiv 2410.14234). Every element is
summed at one rank only, so all ranks have the same bits. Blocks go straight to their place; a range that passes the
last rank travels as two messages.
"""

from __future__ import annotations

from .builder import Builder
from .ir import Buf, Plan
from .task import Task


def all_reduce(task: Task) -> Plan:
    """Recursive doubling: floor(log2 n) exchanges of everything, two more steps when n is no power of two."""
    b = Builder(task, "doubling", (1,))
    n, ring = task.nranks, task.ring
    pos = ring.index(task.rank)
    core = 1 << (n.bit_length() - 1)
    extra = n - core
    out, src, acc = b.all(Buf.RECV), b.all(Buf.SEND), b.all(b.acc)
    if n == 1:
        b.copy(out, src, final=True)
        return b.finish()
    if pos >= core:  # an extra rank: gives its input to one of the core and gets the result
        b.send(ring[pos - core], src)
        b.recv(ring[pos - core], out)
        return b.finish()
    so_far = src
    if pos < extra:
        b.recv_reduce(ring[pos + core], acc if core > 1 else out, src, final=core == 1)
        so_far = acc
    bit = 1
    while bit < core:
        peer = pos ^ bit
        last = 2 * bit == core
        b.send(ring[peer], so_far)
        b.recv_reduce(ring[peer], out if last else acc, so_far, wide=bit > 1 or peer < extra, final=last)
        so_far = acc
        bit *= 2
    if pos < extra:
        b.send(ring[pos + core], out)
    return b.finish()
