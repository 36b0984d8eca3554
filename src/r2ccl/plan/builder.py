"""Builds a Plan from operations written down as a sequential program; derives what each must wait for.

Algorithms append operations in the order in which one rank alone would carry them out. ``finish`` keeps of that order
only what the data demand: an op waits for the earlier ops that wrote what it reads, and for those that read or wrote
what it overwrites. Everything else may overlap.

Deadlock cannot occur when all ranks write their programs along one common order of the messages in which each message
needs only earlier ones: the earliest unfinished message can then always move (``verify`` proves it for each plan).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import InternalError
from ..types import Collective
from .hazards import Accesses
from .ir import DEP, OP, Buf, Flag, Layout, OpKind, Plan
from .task import Task


class At(NamedTuple):
    """``parts`` consecutive parts of a buffer, from part ``first``."""

    buf: Buf
    first: int
    parts: int = 1


def windows(task: Task, layout: Layout) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The parts that the user's input and output hold, by collective; None where a rank has no such buffer."""
    every = (0, layout.parts)
    own = (task.rank * layout.split, (task.rank + 1) * layout.split)
    at_root = every if task.is_root else None
    return {
        Collective.ALL_REDUCE: (every, every),
        Collective.REDUCE: (every, at_root),
        Collective.BROADCAST: (at_root, every),
        Collective.ALL_GATHER: (own, every),
        Collective.REDUCE_SCATTER: (every, own),
        Collective.ALL_TO_ALL: (every, every),
        Collective.GATHER: (own, at_root),
        Collective.SCATTER: (at_root, own),
        Collective.SEND: (every, None),
        Collective.RECV: (None, every),
        Collective.BARRIER: (every, every),
    }[task.collective]


class Builder:
    """Collects the ops of one rank. ``weights`` and ``split`` give the Layout of the main space; ``paced``: see Plan."""

    def __init__(
        self,
        task: Task,
        algorithm: str,
        weights: Sequence[int] | None = None,
        *,
        split: int = 1,
        lanes: int = 1,
        paced: bool = False,
    ) -> None:
        self.task = task
        self.algorithm = algorithm
        self.layout = Layout(tuple(weights) if weights is not None else (1,) * task.nranks, split)
        self.lanes = lanes
        self.paced = paced
        self._two_spaces = task.collective is Collective.ALL_TO_ALL
        accesses = [Accesses(self.layout.parts) for _ in Buf]
        if task.in_place:
            accesses[Buf.SEND] = accesses[Buf.RECV]
        self._accesses = accesses
        self._rows: list[tuple[int, ...]] = []
        self._grids: list[tuple[int, int, int]] = []  # (space, first, parts): ops of one grid have the same chunks
        self._deps: list[tuple[tuple[int, int], ...]] = []
        self._before: list[int] = []  # bit mask of all ops that an op waits for, directly or not
        self._scratch: list[int] = []

    @property
    def acc(self) -> Buf:
        """Where partial sums are kept when every rank has the whole output: the output itself, unless wide."""
        return Buf.SCRATCH if self.task.wide else Buf.RECV

    def all(self, buf: Buf) -> At:
        """Every part of a buffer."""
        return At(buf, 0, self.layout.parts)

    def send(self, peer: int, src: At, *, lane: int = 0) -> None:
        """Send ``src`` to ``peer``; what lies in SCRATCH of a wide plan travels wide."""
        flags = Flag.WIDE if self.task.wide and src.buf is Buf.SCRATCH else Flag.NONE
        self._append(OpKind.SEND, None, src, peer, lane, flags)

    def recv(self, peer: int, dst: At, *, lane: int = 0) -> None:
        """Receive into ``dst``; the payload has the width of ``dst``."""
        flags = Flag.WIDE if self.task.wide and dst.buf is Buf.SCRATCH else Flag.NONE
        self._append(OpKind.RECV, dst, None, peer, lane, flags)

    def recv_reduce(
        self, peer: int, dst: At, src: At, *, wide: bool = False, final: bool = False, lane: int = 0
    ) -> None:
        """dst = src o payload. ``wide``: the peer sends from its SCRATCH (it has no effect unless the task is wide)."""
        flags = (Flag.WIDE if wide and self.task.wide else Flag.NONE) | (Flag.FINAL if final else Flag.NONE)
        self._append(OpKind.RECV_REDUCE, dst, src, peer, lane, flags)

    def copy(self, dst: At, src: At, *, final: bool = False) -> None:
        """dst = src; nothing where both are the same memory."""
        users = {dst.buf, src.buf}
        if dst == src or (self.task.in_place and users == {Buf.SEND, Buf.RECV} and dst[1:] == src[1:]):
            return
        self._append(OpKind.COPY, dst, src, -1, 0, Flag.FINAL if final else Flag.NONE)

    def reduce(self, dst: At, src: At, *, final: bool = False) -> None:
        """dst = dst o src."""
        self._append(OpKind.REDUCE, dst, src, -1, 0, Flag.FINAL if final else Flag.NONE)

    def finish(self) -> Plan:
        """The Plan. The builder must not be used afterwards."""
        send, recv = windows(self.task, self.layout)
        ops = np.zeros(len(self._rows), OP)
        if self._rows:
            columns = np.array(self._rows, np.int64).T
            names = ("kind", "lane", "flags", "dst_buf", "src_buf", "peer", "dst", "src", "parts")
            for name, column in zip(names, columns, strict=True):
                ops[name] = column
        counts = np.array([len(d) for d in self._deps], np.uint32)
        ops["dep_count"] = counts
        ops["dep_first"] = np.cumsum(counts) - counts
        deps = np.array([pair for d in self._deps for pair in d], DEP)
        ops.flags.writeable = deps.flags.writeable = False
        scratch = (min(self._scratch), max(self._scratch)) if self._scratch else None
        return Plan(
            collective=self.task.collective,
            algorithm=self.algorithm,
            nranks=self.task.nranks,
            rank=self.task.rank,
            root=self.task.root,
            lanes=self.lanes,
            space0=self.layout,
            space1=self.layout if self._two_spaces else None,
            send_window=send,
            recv_window=recv,
            scratch_window=scratch,
            wide=self.task.wide,
            ops=ops,
            deps=deps,
            paced=self.paced,
        )

    def _append(self, kind: OpKind, dst: At | None, src: At | None, peer: int, lane: int, flags: Flag) -> None:
        here = dst or src
        if here is None or here.parts < 1 or (dst and src and dst.parts != src.parts):
            raise InternalError(f"{self.algorithm}: {kind.name} covers dst {dst} and src {src}")
        if not 0 <= lane < self.lanes:
            raise InternalError(f"{self.algorithm}: lane {lane} of {self.lanes}")
        op = len(self._rows)
        earlier: list[int] = []
        if src:
            earlier += self._accesses[src.buf].read(src.first, src.parts, op)
        if dst:  # what REDUCE reads of dst, it also overwrites: the write asks for more than the read
            earlier += self._accesses[dst.buf].write(dst.first, dst.parts, op)
        for side in (src, dst):
            if side and side.buf is Buf.SCRATCH:
                self._scratch += (side.first, side.first + side.parts)
        self._grids.append((self._space(here.buf), here.first, here.parts))
        self._deps.append(self._reduced(op, earlier))
        self._rows.append(
            (
                kind,
                lane,
                flags,
                dst.buf if dst else 0,
                src.buf if src else 0,
                peer,
                dst.first if dst else 0,
                src.first if src else 0,
                here.parts,
            )
        )

    def _space(self, buf: Buf) -> int:
        return 1 if self._two_spaces and buf is Buf.RECV else 0

    def _reduced(self, op: int, earlier: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Dependencies of ``op``, without itself and without those that another one already waits for.

        op -> e -> d makes op -> d redundant: a chain could say less than the direct dependency only if all its steps
        were chunk-wise and that one whole, but then all ops of the chain have one grid and it is chunk-wise, too.
        """
        kept: list[tuple[int, int]] = []
        covered = 0
        grid = self._grids[op]
        for d in sorted(set(earlier) - {op}, reverse=True):
            if not covered >> d & 1:
                kept.append((d, 0 if self._grids[d] == grid else 1))
                covered |= self._before[d] | 1 << d
        self._before.append(covered)
        return tuple(reversed(kept))
