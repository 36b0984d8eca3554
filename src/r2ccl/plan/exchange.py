"""Plans of two ranks (send, recv) and of no data at all (barrier)."""

from __future__ import annotations

from ..types import Collective
from .builder import Builder
from .ir import Buf, Plan
from .task import Task


def p2p(task: Task) -> Plan:
    """SEND to, or RECV from, ``task.peer``: one message."""
    b = Builder(task, "p2p", (1,))
    if task.collective is Collective.SEND:
        b.send(task.peer, b.all(Buf.SEND))
    else:
        b.recv(task.peer, b.all(Buf.RECV))
    return b.finish()


def barrier(task: Task) -> Plan:
    """Dissemination barrier: in step k, tell the rank 2^k further what you have heard of. ceil(log2 n) steps.

    Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J. Parallel Prog. 17 (1988).
    The call binds it to no elements; each message is one empty chunk. Written as a reduction so that the proof can
    follow who has heard of whom.
    """
    b = Builder(task, "dissemination", (1,))
    n, ring = task.nranks, task.ring
    pos = ring.index(task.rank)
    known = b.all(Buf.SEND)
    distance = 1
    while distance < n:
        b.send(ring[(pos + distance) % n], known)
        b.recv_reduce(ring[pos - distance], b.all(Buf.RECV), known)
        known = b.all(Buf.RECV)
        distance *= 2
    if n == 1:
        b.copy(b.all(Buf.RECV), known)
    return b.finish()
