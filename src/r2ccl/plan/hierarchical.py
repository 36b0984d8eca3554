"""Inside the host, across hosts, inside the host again; each byte crosses to another host as rarely as it can.

Data are dealt to *columns*. Column s is handled in host h by its local rank s mod L_h, so hosts may have different
numbers of ranks. Across hosts each column runs a ring of its own (with two hosts that is a plain exchange of halves);
inside a host ranks exchange directly. The scheme of hierarchical all-reduce is common; see Jia et al., "Highly scalable
deep learning training system with mixed-precision", arXiv 1807.11205.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from .builder import At, Builder
from .direct import turns
from .ir import Buf, Plan
from .task import Task

MAX_COLUMNS = 64  # beyond that many, some ranks of uneven hosts handle one column more than others


def all_reduce(task: Task) -> Plan:
    """Reduce-scatter inside, all-reduce of each column across, all-gather inside.

    A host of L ranks sends 2(H-1)/H of the data to others; a rank moves 2(L-1)/L of the data inside.
    """
    hosts = task.hosts or (tuple(range(task.nranks)),)
    sizes = [len(host) for host in hosts]
    number = lcm(*sizes) if lcm(*sizes) <= MAX_COLUMNS else max(sizes)
    b = Builder(task, "hierarchical", (1,) * number, split=len(hosts))
    if task.nranks == 1:
        b.copy(b.all(Buf.RECV), b.all(Buf.SEND), final=True)
    columns = Columns(task, number)
    parts = [[[s * len(hosts) + j] for j in range(len(hosts))] for s in range(number)]
    columns.reduce(b, parts, b.acc)
    columns.gather(b, parts)
    return b.finish()


def reduce_scatter(task: Task) -> Plan:
    """Partial sums inside, then each block along the ring of its column to its rank."""
    b = Builder(task, "hierarchical")
    if task.nranks == 1:
        b.copy(b.all(Buf.RECV), b.all(Buf.SEND), final=True)
    columns = Columns(task)
    columns.reduce(b, columns.blocks(), Buf.SCRATCH)
    return b.finish()


def all_gather(task: Task) -> Plan:
    """Each block along the ring of its column, then inside each host."""
    b = Builder(task, "hierarchical")
    b.copy(At(Buf.RECV, task.rank), At(Buf.SEND, task.rank))
    columns = Columns(task)
    columns.gather(b, columns.blocks())
    return b.finish()


Parts = list[list[list[int]]]  # parts[column][host]: parts of the column whose sum is completed in the host


class Columns:
    """One rank's view: ``handler[s][h]`` is the rank that handles column s in host h. Default: a column a local rank.

    All ranks follow one order of messages: by phase, then step (host), then column. So no flow can block a cycle.
    """

    def __init__(self, task: Task, number: int | None = None) -> None:
        self.hosts = task.hosts or (tuple(range(task.nranks)),)
        number = max(len(host) for host in self.hosts) if number is None else number
        self.handler = [[host[s % len(host)] for host in self.hosts] for s in range(number)]
        self.here = next(h for h, host in enumerate(self.hosts) if task.rank in host)
        self.local = self.hosts[self.here]
        self.mine = [s for s in range(number) if self.handler[s][self.here] == task.rank]
        self.turns = turns(self.local, task.rank)

    def blocks(self) -> Parts:
        """One part a rank: column s has in host h the block of its local rank s, if there is one."""
        return [[[host[s]] if s < len(host) else [] for host in self.hosts] for s in range(len(self.handler))]

    def reduce(self, b: Builder, parts: Parts, acc: Buf) -> None:
        """Sum up everything: parts[s][h] end finished in RECV of handler[s][h]."""
        n = len(self.hosts)
        order = [(self.here - 1 - step) % n for step in range(n)]  # in which the ring across hosts wants them
        across = n > 1
        src = Buf.SEND
        if len(self.local) > 1:
            for j in order:
                self._reduce_inside(b, parts, j, acc, across)
            src = acc
        elif b.task.wide and across:  # other hosts expect a wide payload
            for j in order:
                for s in self.mine:
                    for part in parts[s][j]:
                        b.copy(At(acc, part), At(Buf.SEND, part))
            src = acc
        for step in range(n - 1):
            for s in self.mine:
                after, before = self.handler[s][(self.here + 1) % n], self.handler[s][self.here - 1]
                last = step == n - 2
                for part in parts[s][order[step]]:
                    b.send(after, At(src if step == 0 else acc, part))
                for part in parts[s][order[step + 1]]:
                    dst = At(Buf.RECV if last else acc, part)
                    b.recv_reduce(before, dst, At(src, part), wide=True, final=last)

    def gather(self, b: Builder, parts: Parts) -> None:
        """Give everybody everything: parts[s][h] lie in RECV of handler[s][h] at the start."""
        n = len(self.hosts)
        order = [(self.here - step) % n for step in range(n)]
        for step in range(n - 1):
            for s in self.mine:
                after, before = self.handler[s][(self.here + 1) % n], self.handler[s][self.here - 1]
                for part in parts[s][order[step]]:
                    b.send(after, At(Buf.RECV, part))
                for part in parts[s][order[step + 1]]:
                    b.recv(before, At(Buf.RECV, part))
        for j in order:
            for part in self._of(parts, j, self.mine):
                for to, _ in self.turns:
                    b.send(to, At(Buf.RECV, part))
            for _, frm in self.turns:
                for part in self._of(parts, j, self._columns_of(frm)):
                    b.recv(frm, At(Buf.RECV, part))

    def _reduce_inside(self, b: Builder, parts: Parts, j: int, acc: Buf, across: bool) -> None:
        for to, _ in self.turns:
            for part in self._of(parts, j, self._columns_of(to)):
                b.send(to, At(Buf.SEND, part))
        for part in self._of(parts, j, self.mine):
            so_far = At(Buf.SEND, part)
            for k, (_, frm) in enumerate(self.turns):
                last = k == len(self.turns) - 1 and not across
                dst = At(Buf.RECV if last else acc, part)
                b.recv_reduce(frm, dst, so_far, final=last)
                so_far = dst

    def _columns_of(self, rank: int) -> list[int]:
        return [s for s in range(len(self.handler)) if self.handler[s][self.here] == rank]

    def _of(self, parts: Parts, j: int, columns: Iterable[int]) -> list[int]:
        return [part for s in columns for part in parts[s][j]]
