"""Rings: every rank talks to two neighbours, in host order, so that each host is entered and left once.

``Volume`` is what each rank sends, and as much receives.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
Comput. 69 (2009): 2(n-1) steps of 1/n of the data. Chunks of one step overlap with those of the next.
"""

from __future__ import annotations

from collections.abc import Sequence

from .builder import At, Builder
from .ir import Buf, Plan
from .task import Task


def all_reduce(task: Task) -> Plan:
    """Reduce-scatter round the ring, then all-gather. Volume 2(n-1)/n of the data."""
    b = Builder(task, "ring")
    if task.nranks == 1:
        b.copy(At(Buf.RECV, 0), At(Buf.SEND, 0), final=True)
    reduce_phase(b, task.ring, task.ring, src=Buf.SEND, acc=b.acc, out=Buf.RECV, final=True)
    gather_phase(b, task.ring, task.ring)
    return b.finish()


def reduce_scatter(task: Task) -> Plan:
    """Partial sums travel once round the ring and end at the owner. Volume (n-1)/n of the data."""
    b = Builder(task, "ring")
    if task.nranks == 1:
        b.copy(At(Buf.RECV, 0), At(Buf.SEND, 0), final=True)
    reduce_phase(b, task.ring, task.ring, src=Buf.SEND, acc=Buf.SCRATCH, out=Buf.RECV, final=True)
    return b.finish()


def all_gather(task: Task) -> Plan:
    """Each block travels once round the ring. Volume (n-1)/n of the data."""
    b = Builder(task, "ring")
    b.copy(At(Buf.RECV, task.rank), At(Buf.SEND, task.rank))
    gather_phase(b, task.ring, task.ring)
    return b.finish()


def reduce(task: Task) -> Plan:
    """Reduce-scatter round a ring of all but the root; the root adds its own to what each of them sends it.

    The root receives the data once and sends nothing; the others send the data once.
    """
    others = task.ring_from_root[1:]
    b = Builder(task, "ring", (1,) * max(1, len(others)))
    if task.nranks == 1:
        b.copy(b.all(Buf.RECV), b.all(Buf.SEND), final=True)
    elif task.is_root:
        for i, rank in enumerate(others):
            b.recv_reduce(rank, At(Buf.RECV, i), At(Buf.SEND, i), wide=len(others) > 1, final=True)
    else:
        reduce_phase(b, others, range(len(others)), src=Buf.SEND, acc=Buf.SCRATCH, out=Buf.SCRATCH, final=False)
        b.send(task.root, At(Buf.SCRATCH if len(others) > 1 else Buf.SEND, others.index(task.rank)))
    return b.finish()


def broadcast(task: Task) -> Plan:
    """The root deals out one block to each of the others, which gather them round a ring (van de Geijn).

    The root sends the data once; the others receive it once.
    """
    others = task.ring_from_root[1:]
    b = Builder(task, "ring", (1,) * max(1, len(others)))
    if task.is_root:
        for i, rank in enumerate(others):
            b.send(rank, At(Buf.SEND, i))
        b.copy(b.all(Buf.RECV), b.all(Buf.SEND))
    else:
        b.recv(task.root, At(Buf.RECV, others.index(task.rank)))
        gather_phase(b, others, range(len(others)))
    return b.finish()


def reduce_phase(
    b: Builder, members: Sequence[int], parts: Sequence[int], *, src: Buf, acc: Buf, out: Buf, final: bool
) -> None:
    """Reduce-scatter among ``members``, of which this rank is one: part ``parts[i]`` ends at ``members[i]`` in ``out``.

    Every member contributes ``src``; partial sums are kept in ``acc``. One member: no op.
    """
    n, pos = len(members), members.index(b.task.rank)
    after, before = members[(pos + 1) % n], members[pos - 1]
    for step in range(n - 1):
        travels = src if step == 0 else acc
        into = parts[(pos - 2 - step) % n]
        last = step == n - 2
        b.send(after, At(travels, parts[(pos - 1 - step) % n]))
        dst = At(out if last else acc, into)
        b.recv_reduce(before, dst, At(src, into), wide=travels is Buf.SCRATCH, final=last and final)


def gather_phase(b: Builder, members: Sequence[int], parts: Sequence[int]) -> None:
    """All-gather among ``members``: part ``parts[i]`` lies in RECV of ``members[i]`` first, of all in the end."""
    n, pos = len(members), members.index(b.task.rank)
    after, before = members[(pos + 1) % n], members[pos - 1]
    for step in range(n - 1):
        b.send(after, At(Buf.RECV, parts[(pos - step) % n]))
        b.recv(before, At(Buf.RECV, parts[(pos - 1 - step) % n]))
