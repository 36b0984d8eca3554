"""One record per collective: its buffers, what they must hold afterwards, the call, and the bus factor.

Buffers consist of blocks of ``count`` elements, one block or one per rank. Sizes are nccl-tests': the size of an
operation is that of the larger buffer, so ``count = size / itemsize``, divided by the number of ranks where one of
the buffers has a block per rank. ``algbw = size / time`` and ``busbw = algbw * factor(n)``, the factor being what
makes busbw comparable with the speed of the wires whatever n is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..types import ReduceOp
from .data import Array

REDUCED = -1  # "source rank" of a block that is the reduction over all ranks


@dataclass(frozen=True)
class Case:
    """One rank's view of one measurement. ``count`` is the number of elements of a block."""

    rank: int
    ranks: int
    root: int
    count: int
    op: ReduceOp


@dataclass(frozen=True)
class Piece:
    """Block ``block`` of the output holds the data of rank ``source`` from its element ``start`` on."""

    block: int
    source: int
    start: int


Call = Callable[[Any, Case, Any, Any], Any]  # (communicator, case, send, recv) -> Work or None


@dataclass(frozen=True)
class Op:
    """A collective.

    sends, receives: number of blocks of the buffers, as functions of the case; 0: this rank passes None.
    expected: what the output must hold; nothing for a rank without output.
    call: out of place. call_in_place: None where there is no such form; there the buffers overlap as the API
        demands: equal where they have equally many blocks, else the smaller is block ``rank`` of the larger.
    """

    name: str
    factor: Callable[[int], float]
    sends: Callable[[Case], int]
    receives: Callable[[Case], int]
    expected: Callable[[Case], list[Piece]]
    call: Call
    call_in_place: Call | None
    divided: bool = False  # a block per rank in one of the buffers
    reduces: bool = False
    rooted: bool = False

    def count(self, size_bytes: int, itemsize: int, ranks: int) -> int:
        """Elements of a block for a size as the command line gives it (rounded down)."""
        return size_bytes // itemsize // (ranks if self.divided else 1)

    def size_bytes(self, count: int, itemsize: int, ranks: int) -> int:
        """The size that is reported for blocks of ``count`` elements."""
        return count * itemsize * (ranks if self.divided else 1)


def outputs(send: Array | None, recv: Array | None, in_place: bool) -> Array | None:
    """The array that holds the result; in place it may be the one that was sent."""
    return send if in_place and recv is None else recv


def _one(_: Case) -> int:
    return 1


def _each(case: Case) -> int:
    return case.ranks


def _one_at_root(case: Case) -> int:
    return int(case.rank == case.root)


def _each_at_root(case: Case) -> int:
    return case.ranks if case.rank == case.root else 0


def _same(_: int) -> float:
    return 1.0


def _others(n: int) -> float:
    return (n - 1) / n


def _at_root(pieces: Callable[[Case], list[Piece]]) -> Callable[[Case], list[Piece]]:
    return lambda case: pieces(case) if case.rank == case.root else []


def _gathered(case: Case) -> list[Piece]:
    return [Piece(r, r, 0) for r in range(case.ranks)]


def _send_recv(comm: Any, case: Case, send: Any, recv: Any) -> None:
    with comm.group():
        comm.send(send, (case.rank + 1) % case.ranks)
        comm.recv(recv, (case.rank - 1) % case.ranks)


_RECORDS = (
    Op(
        "all_reduce",
        lambda n: 2 * (n - 1) / n,
        _one,
        _one,
        lambda c: [Piece(0, REDUCED, 0)],
        lambda comm, c, send, recv: comm.all_reduce(send, recv, op=c.op),
        lambda comm, c, send, recv: comm.all_reduce(recv, op=c.op),
        reduces=True,
    ),
    Op(
        "reduce",
        _same,
        _one,
        _one_at_root,
        _at_root(lambda c: [Piece(0, REDUCED, 0)]),
        lambda comm, c, send, recv: comm.reduce(send, recv, op=c.op, root=c.root),
        lambda comm, c, send, recv: comm.reduce(send, op=c.op, root=c.root),
        reduces=True,
        rooted=True,
    ),
    Op(
        "broadcast",
        _same,
        _one,
        _one,
        lambda c: [Piece(0, c.root, 0)],
        lambda comm, c, send, recv: comm.broadcast(send, recv, root=c.root),
        lambda comm, c, send, recv: comm.broadcast(recv, root=c.root),
        rooted=True,
    ),
    Op(
        "all_gather",
        _others,
        _one,
        _each,
        _gathered,
        lambda comm, c, send, recv: comm.all_gather(send, recv),
        lambda comm, c, send, recv: comm.all_gather(send, recv),
        divided=True,
    ),
    Op(
        "reduce_scatter",
        _others,
        _each,
        _one,
        lambda c: [Piece(0, REDUCED, c.rank * c.count)],
        lambda comm, c, send, recv: comm.reduce_scatter(send, recv, op=c.op),
        lambda comm, c, send, recv: comm.reduce_scatter(send, recv, op=c.op),
        divided=True,
        reduces=True,
    ),
    Op(
        "all_to_all",
        _others,
        _each,
        _each,
        lambda c: [Piece(r, r, c.rank * c.count) for r in range(c.ranks)],
        lambda comm, c, send, recv: comm.all_to_all(send, recv),
        None,
        divided=True,
    ),
    Op(
        "gather",
        _others,
        _one,
        _each_at_root,
        _at_root(_gathered),
        lambda comm, c, send, recv: comm.gather(send, recv, root=c.root),
        lambda comm, c, send, recv: comm.gather(send, recv, root=c.root),
        divided=True,
        rooted=True,
    ),
    Op(
        "scatter",
        _others,
        _each_at_root,
        _one,
        lambda c: [Piece(0, c.root, c.rank * c.count)],
        lambda comm, c, send, recv: comm.scatter(send, recv, root=c.root),
        lambda comm, c, send, recv: comm.scatter(send, recv, root=c.root),
        divided=True,
        rooted=True,
    ),
    Op(
        "sendrecv",
        _same,
        _one,
        _one,
        lambda c: [Piece(0, (c.rank - 1) % c.ranks, 0)],
        _send_recv,
        None,
    ),
    Op(
        "barrier",
        _same,
        lambda c: 0,
        lambda c: 0,
        lambda c: [],
        lambda comm, c, send, recv: comm.barrier(),
        None,
    ),
)

OPS: dict[str, Op] = {op.name: op for op in _RECORDS}
