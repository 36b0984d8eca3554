"""Logarithmic exchanges, for any number of ranks.

``doubling``: recursive doubling with extra ranks folded in before and served after (Thakur et al., IJHPCA 19, 2005).
``halving_doubling``: reduce-scatter and all-gather on a circulant graph, ceil(log2 n) steps each with the volume of a
ring (Bruck et al., IEEE TPDS 8 (1997); the reversed form for reduction: Traeff, arXiv 2410.14234). Every element is
summed at one rank only, so all ranks have the same bits. Blocks go straight to their place; a range that passes the
last rank travels as two messages.
"""

from __future__ import annotations

from .builder import At, Builder
from .ir import Buf, Plan
from .subtree import runs
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


def halving_doubling(task: Task) -> Plan:
    """All-reduce: reduce-scatter and all-gather on the circulant graph, 2 ceil(log2 n) steps, volume 2(n-1)/n."""
    b = Builder(task, "halving_doubling")
    if task.nranks == 1:
        b.copy(At(Buf.RECV, 0), At(Buf.SEND, 0), final=True)
    reduce_phase(b, b.acc)
    gather_phase(b)
    return b.finish()


def reduce_scatter(task: Task) -> Plan:
    """ceil(log2 n) steps, volume (n-1)/n."""
    b = Builder(task, "halving")
    if task.nranks == 1:
        b.copy(At(Buf.RECV, 0), At(Buf.SEND, 0), final=True)
    reduce_phase(b, Buf.SCRATCH)
    return b.finish()


def all_gather(task: Task) -> Plan:
    """ceil(log2 n) steps, volume (n-1)/n."""
    b = Builder(task, "doubling")
    b.copy(At(Buf.RECV, task.rank), At(Buf.SEND, task.rank))
    gather_phase(b)
    return b.finish()


def gather_phase(b: Builder) -> None:
    """Rank r, which has blocks r .. r+m-1, gets the next up to m of them from rank r+m, until it has all."""
    n, r = b.task.nranks, b.task.rank
    for held, more in steps(n):
        for run in runs(r, more, n):
            b.send((r - held) % n, At(Buf.RECV, *run))
        for run in runs(r + held, more, n):
            b.recv((r + held) % n, At(Buf.RECV, *run))


def reduce_phase(b: Builder, acc: Buf) -> None:
    """``gather_phase`` backwards, with partial sums: rank r ends with block r complete in RECV.

    Which of its blocks a rank has summed up already depends only on how far they lie behind it, so sender and receiver
    cut a range alike: where the sender's or the receiver's blocks change from input (SEND) to sums (``acc``).
    """
    n, r = b.task.nranks, b.task.rank
    summed = [False] * n
    for held, more in reversed(steps(n)):
        cuts = [i for i in range(1, more) if (summed[held + i], summed[i]) != (summed[held + i - 1], summed[i - 1])]
        pieces = list(zip([0, *cuts], [*cuts, more], strict=True))
        for i, j in pieces:
            for run in runs(r + held + i, j - i, n):
                b.send((r + held) % n, At(acc if summed[held + i] else Buf.SEND, *run))
        for i, j in pieces:
            for run in runs(r + i, j - i, n):
                src = At(acc if summed[i] else Buf.SEND, *run)
                dst = At(Buf.RECV if held == 1 else acc, *run)
                b.recv_reduce((r - held) % n, dst, src, wide=summed[held + i], final=held == 1)
        summed[:more] = [True] * more


def steps(n: int) -> list[tuple[int, int]]:
    """(blocks held, blocks gained) of each step of the all-gather."""
    out = []
    held = 1
    while held < n:
        more = min(held, n - held)
        out.append((held, more))
        held += more
    return out
