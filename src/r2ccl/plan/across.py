"""All-reduce schedules between hosts, carried out by all ranks of each host.

The data are *blocks*, each with a schedule between hosts. A block is dealt to columns as in ``hierarchical``: column s is
handled in host h by its local rank s mod L_h, which gathers the contributions of its host, speaks for the host in the
schedule, and hands the result to the others. A schedule thus names hosts, and never ranks.

All ranks follow one order of messages: inside, across, inside; in each of them by piece, then block, then column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm

from .builder import At, Builder
from .direct import turns
from .hierarchical import MAX_COLUMNS
from .ir import Buf, Plan
from .task import Task

PIECES = 8  # at least, of all blocks together: messages inside a host are so short that no block waits long for another


class Across:
    """Writes the ops of this rank for a schedule between hosts. ``here`` is the index of its host, of ``n``.

    weights: of the blocks. split: pieces of a block; 0: as many as messages inside a host need. paced: see Plan.
    """

    def __init__(
        self, task: Task, name: str, weights: Sequence[int], lanes: int = 1, split: int = 0, paced: bool = False
    ) -> None:
        self.hosts = task.hosts or (tuple(range(task.nranks)),)
        self.n = len(self.hosts)
        self.here = next(h for h, host in enumerate(self.hosts) if task.rank in host)
        self.local = self.hosts[self.here]
        sizes = {len(host) for host in self.hosts}
        self._columns = lcm(*sizes) if lcm(*sizes) <= MAX_COLUMNS else max(sizes)
        self._mine = [s for s in range(self._columns) if self.local[s % len(self.local)] == task.rank]
        self._split = split or (1 if max(sizes) == 1 else max(1, PIECES // len(weights)))
        self._turns = turns(self.local, task.rank)
        self.blocks = len(weights)
        every = [w for w in weights for _ in range(self._columns)]
        self.b = Builder(task, name, every, split=self._split, lanes=lanes, paced=paced)
        self._so_far: dict[int, Buf] = {}  # where this host's partial sum of a part lies; the user's input by default

    def all_reduce(self, schedule: Callable[[int], None]) -> Plan:
        """The plan; ``schedule(piece)`` writes this host's ops for a piece of every block; all hosts end with the result."""
        pieces = [(k, j) for j in range(self._split) for k in range(self.blocks)]
        if self.b.task.nranks == 1:
            self.b.copy(self.b.all(Buf.RECV), self.b.all(Buf.SEND), final=True)
        for k, j in pieces:
            self._reduce_inside(k, j)
        if self.n > 1:
            for j in range(self._split):
                schedule(j)
        for k, j in pieces:
            self._gather_inside(k, j)
        return self.b.finish()

    def send_sum(self, host: int, block: int, piece: int, lane: int = 0) -> None:
        """Send what this host has summed up so far."""
        for s, part in self._parts(block, piece):
            self.b.send(self._rank(host, s), At(self._so_far.get(part, Buf.SEND), part), lane=lane)

    def add(self, host: int, block: int, piece: int, *, raw: bool, final: bool, lane: int = 0) -> None:
        """Add what another host has summed up. ``raw``: it has received nothing from others. ``final``: the last one."""
        for s, part in self._parts(block, piece):
            dst = At(Buf.RECV if final else self.b.acc, part)
            src = At(self._so_far.get(part, Buf.SEND), part)
            wide = not raw or len(self.hosts[host]) > 1
            self.b.recv_reduce(self._rank(host, s), dst, src, wide=wide, final=final, lane=lane)
            self._so_far[part] = dst.buf

    def take_sum(self, host: int, block: int, piece: int, lane: int = 0) -> None:
        """Receive a partial sum, instead of this host's own."""
        for s, part in self._parts(block, piece):
            self.b.recv(self._rank(host, s), At(self.b.acc, part), lane=lane)
            self._so_far[part] = self.b.acc

    def send_result(self, host: int, block: int, piece: int, lane: int = 0) -> None:
        """Send the finished sum."""
        for s, part in self._parts(block, piece):
            self.b.send(self._rank(host, s), At(Buf.RECV, part), lane=lane)

    def take_result(self, host: int, block: int, piece: int, lane: int = 0) -> None:
        """Receive the finished sum."""
        for s, part in self._parts(block, piece):
            self.b.recv(self._rank(host, s), At(Buf.RECV, part), lane=lane)

    def _rank(self, host: int, column: int) -> int:
        ranks = self.hosts[host]
        return ranks[column % len(ranks)]

    def _part(self, block: int, column: int, piece: int) -> int:
        return (block * self._columns + column) * self._split + piece

    def _parts(self, block: int, piece: int) -> list[tuple[int, int]]:
        """(column, part) of this rank's columns."""
        return [(s, self._part(block, s, piece)) for s in self._mine]

    def _of(self, rank: int, block: int, piece: int) -> list[int]:
        first = self.local.index(rank)
        return [self._part(block, s, piece) for s in range(first, self._columns, len(self.local))]

    def _reduce_inside(self, block: int, piece: int) -> None:
        for to, _ in self._turns:
            for part in self._of(to, block, piece):
                self.b.send(to, At(Buf.SEND, part))
        for _, part in self._parts(block, piece):
            for k, (_, frm) in enumerate(self._turns):
                final = self.n == 1 and k == len(self._turns) - 1
                dst = At(Buf.RECV if final else self.b.acc, part)
                self.b.recv_reduce(frm, dst, At(self._so_far.get(part, Buf.SEND), part), final=final)
                self._so_far[part] = dst.buf

    def _gather_inside(self, block: int, piece: int) -> None:
        for _, part in self._parts(block, piece):
            for to, _ in self._turns:
                self.b.send(to, At(Buf.RECV, part), lane=self.b.lanes - 1)
        for _, frm in self._turns:
            for part in self._of(frm, block, piece):
                self.b.recv(frm, At(Buf.RECV, part), lane=self.b.lanes - 1)
