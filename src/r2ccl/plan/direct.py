"""Direct exchange: every rank talks to every other without detour; two steps of latency whatever n is.

Each rank owns one block. For the family and its costs see Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 19 (2005). The member at position i sends to i+1, i+2, ... and takes from
i-1, i-2, ..., so that nobody is everybody's first target.
"""

from __future__ import annotations

from collections.abc import Sequence

from .builder import At, Builder
from .ir import Buf, Plan
from .task import Task


def all_reduce(task: Task) -> Plan:
    """Direct reduce-scatter, then direct all-gather. Volume 2(n-1)/n of the data."""
    b = Builder(task, "direct")
    if task.nranks == 1:
        b.copy(At(Buf.RECV, 0), At(Buf.SEND, 0), final=True)
    reduce_phase(b, task.ring, task.ring, src=Buf.SEND, acc=b.acc, out=Buf.RECV, final=True)
    gather_phase(b, task.ring, task.ring)
    return b.finish()


def exchange(task: Task) -> Plan:
    """All-reduce of at most two ranks in one step: each sends everything and adds what it receives."""
    b = Builder(task, "exchange", (1,))
    if task.nranks == 1:
        b.copy(b.all(Buf.RECV), b.all(Buf.SEND), final=True)
    else:
        b.send(1 - task.rank, b.all(Buf.SEND))
        b.recv_reduce(1 - task.rank, b.all(Buf.RECV), b.all(Buf.SEND), final=True)
    return b.finish()


def reduce_scatter(task: Task) -> Plan:
    """Every rank sends each owner its contribution; the owner adds them in a fixed order."""
    b = Builder(task, "direct")
    if task.nranks == 1:
        b.copy(At(Buf.RECV, 0), At(Buf.SEND, 0), final=True)
    reduce_phase(b, task.ring, task.ring, src=Buf.SEND, acc=b.acc, out=Buf.RECV, final=True)
    return b.finish()


def all_gather(task: Task) -> Plan:
    """Every rank sends its block to all others."""
    b = Builder(task, "direct")
    b.copy(At(Buf.RECV, task.rank), At(Buf.SEND, task.rank))
    gather_phase(b, task.ring, task.ring)
    return b.finish()


def reduce(task: Task) -> Plan:
    """Each rank but the root owns a block and adds it up; the root adds its own to what each of them sends it.

    The root receives the data once and sends nothing; the others send the data once.
    """
    others = task.ring_from_root[1:]
    b = Builder(task, "direct", (1,) * max(1, len(others)))
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
    """The root deals out one block to each of the others, which send it on to each other."""
    others = task.ring_from_root[1:]
    b = Builder(task, "direct", (1,) * max(1, len(others)))
    if task.is_root:
        for i, rank in enumerate(others):
            b.send(rank, At(Buf.SEND, i))
        b.copy(b.all(Buf.RECV), b.all(Buf.SEND))
    else:
        b.recv(task.root, At(Buf.RECV, others.index(task.rank)))
        gather_phase(b, others, range(len(others)))
    return b.finish()


def all_to_all(task: Task) -> Plan:
    """Every block straight to its rank."""
    b = Builder(task, "direct")
    b.copy(At(Buf.RECV, task.rank), At(Buf.SEND, task.rank))
    for to, frm in turns(task.ring, task.rank):
        b.send(to, At(Buf.SEND, to))
        b.recv(frm, At(Buf.RECV, frm))
    return b.finish()


def gather(task: Task) -> Plan:
    """Every rank sends its block to the root."""
    b = Builder(task, "direct")
    if not task.is_root:
        b.send(task.root, At(Buf.SEND, task.rank))
        return b.finish()
    b.copy(At(Buf.RECV, task.rank), At(Buf.SEND, task.rank))
    for rank in task.ring_from_root[1:]:
        b.recv(rank, At(Buf.RECV, rank))
    return b.finish()


def scatter(task: Task) -> Plan:
    """The root sends every rank its block."""
    b = Builder(task, "direct")
    if not task.is_root:
        b.recv(task.root, At(Buf.RECV, task.rank))
        return b.finish()
    for rank in task.ring_from_root[1:]:
        b.send(rank, At(Buf.SEND, rank))
    b.copy(At(Buf.RECV, task.rank), At(Buf.SEND, task.rank))
    return b.finish()


def turns(members: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """(whom to send to, whom to receive from) in each turn of a direct exchange among ``members``."""
    n, pos = len(members), members.index(rank)
    return [(members[(pos + k) % n], members[pos - k]) for k in range(1, n)]


def reduce_phase(
    b: Builder, members: Sequence[int], parts: Sequence[int], *, src: Buf, acc: Buf, out: Buf, final: bool
) -> None:
    """Reduce-scatter among ``members``, of which this rank is one: part ``parts[i]`` ends at ``members[i]`` in ``out``.

    Every member contributes ``src``; the owner adds in ``acc``, itself first, then its predecessors. One member: no op.
    """
    order = turns(members, b.task.rank)
    part_of = dict(zip(members, parts, strict=True))
    own = part_of[b.task.rank]
    for to, _ in order:
        b.send(to, At(src, part_of[to]))
    for k, (_, frm) in enumerate(order):
        last = k == len(order) - 1
        so_far = At(src if k == 0 else acc, own)
        dst = At(out if last else acc, own)
        b.recv_reduce(frm, dst, so_far, wide=src is Buf.SCRATCH, final=last and final)


def gather_phase(b: Builder, members: Sequence[int], parts: Sequence[int]) -> None:
    """All-gather among ``members``: part ``parts[i]`` lies in RECV of ``members[i]`` first, of all in the end."""
    order = turns(members, b.task.rank)
    part_of = dict(zip(members, parts, strict=True))
    for to, _ in order:
        b.send(to, At(Buf.RECV, part_of[b.task.rank]))
    for _, frm in order:
        b.recv(frm, At(Buf.RECV, part_of[frm]))
