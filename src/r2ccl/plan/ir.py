"""The plan: an immutable schedule between ranks, as seen by one of them.

A plan says *what* moves to *whom*, in what order, and where it is reduced. It knows no rail, no address and
no element count: it speaks of *parts*, and a call binds parts to elements (see ``Layout``). The same object is
proved by ``verify``, timed by ``cost`` and executed by the native core, which reads ``ops`` and ``deps`` as
they lie in memory (``include/r2ccl/plan.h`` states the same records; a test compares sizes and offsets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from ..types import Collective


class OpKind(IntEnum):
    """What one operation does; ``dst`` and ``src`` are (buffer, first part) and cover ``parts`` parts."""

    SEND = 0  # src -> peer
    RECV = 1  # peer -> dst
    RECV_REDUCE = 2  # dst = src o (what arrives from peer)
    COPY = 3  # dst = src
    REDUCE = 4  # dst = dst o src


class Buf(IntEnum):
    """The user's input, the user's output, and memory of the call's own."""

    SEND = 0
    RECV = 1
    SCRATCH = 2


class Flag(IntFlag):
    NONE = 0
    WIDE = 1  # the payload travels in the accumulation type (float32 for 8- and 16-bit floats)
    FINAL = 2  # this write completes the reduction: AVG divides here


OP = np.dtype(
    [
        ("kind", "u1"),
        ("lane", "u1"),
        ("flags", "u1"),
        ("dst_buf", "u1"),
        ("src_buf", "u1"),
        ("_pad", "u1", (3,)),
        ("peer", "<i4"),  # -1 where there is none
        ("dst", "<u4"),
        ("src", "<u4"),
        ("parts", "<u4"),
        ("dep_first", "<u4"),
        ("dep_count", "<u4"),
    ]
)
DEP = np.dtype([("op", "<u4"), ("whole", "<u4")])


@dataclass(frozen=True)
class Layout:
    """How a space of elements divides into parts: blocks of given relative weight, each cut in ``split``.

    Part ``p = b * split + j`` of ``N`` elements starts at element ``B_b + (B_{b+1} - B_b) * j // split`` where
    ``B_b = N * W_b // W`` with ``W_b`` the cumulative weight. In a ``_v`` call ``B_b`` comes from the counts.
    """

    weights: tuple[int, ...]
    split: int = 1

    @property
    def parts(self) -> int:
        return len(self.weights) * self.split

    def starts(self, elements: int) -> list[int]:
        """First element of each part of ``elements``, and their number at the end: ``parts + 1`` values."""
        total = sum(self.weights)
        return self._cut([0, *(elements * so_far // total for so_far in accumulate(self.weights))])

    def starts_v(self, counts: Sequence[int]) -> list[int]:
        """The same for a ``_v`` call, whose blocks have ``counts`` elements, one count a weight."""
        return self._cut([0, *accumulate(counts)])

    def _cut(self, blocks: Sequence[int]) -> list[int]:
        return [a + (b - a) * j // self.split for a, b in pairwise(blocks) for j in range(self.split)] + [blocks[-1]]


@dataclass(frozen=True, eq=False)
class Plan:
    """One rank's part of a collective.

    ``space0`` lays out SEND, RECV and SCRATCH; where ``space1`` is given (all-to-all) it lays out RECV instead.
    ``*_window`` is the half-open range of parts that the buffer holds; None: the rank has no such buffer.
    A rank's ops towards one peer within one lane are carried out in program order, and meet the peer's matching
    ops in the peer's program order. ``deps[dep_first : dep_first + dep_count]`` are the earlier ops of this rank that
    an op waits for: chunk by chunk when ``whole == 0`` (same parts, so same chunks), else entirely.

    ``paced``: what goes to other hosts is to advance in proportion, so that each gets of this rank's rails what the plan
    sends it.
    """

    collective: Collective
    algorithm: str
    nranks: int
    rank: int
    root: int
    lanes: int
    space0: Layout
    space1: Layout | None
    send_window: tuple[int, int] | None
    recv_window: tuple[int, int] | None
    scratch_window: tuple[int, int] | None
    wide: bool
    ops: npt.NDArray[np.void] = field(repr=False)
    deps: npt.NDArray[np.void] = field(repr=False)
    paced: bool = False
