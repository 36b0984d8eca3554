"""Every collective against NumPy: one method a collective, comparing every element on every rank."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import r2ccl
from r2ccl import ReduceOp

Array = np.ndarray[Any, Any]
GUARD = 5  # elements before and after every output that nothing may touch
FILL = 0x55


PERIOD = 1009


@functools.cache
def _pattern(dtype: np.dtype[Any], periods: int) -> Array:
    return np.tile((np.arange(PERIOD) * 7 % PERIOD - PERIOD // 2).astype(dtype), periods)


def data(rank: int, count: int, salt: int = 0, dtype: Any = np.int32) -> Array:
    """Integers from -504 to 504 that differ between ranks, places and calls; a fresh array."""
    first = (rank * 311 + salt * 131) % PERIOD
    # The number of periods is rounded up, so that few patterns are kept.
    pattern = _pattern(np.dtype(dtype), 1 << ((first + count) // PERIOD).bit_length())
    return pattern[first : first + count].copy()


class Guarded:
    """An output of ``count`` elements with a guard on both sides."""

    def __init__(self, count: int, dtype: Any) -> None:
        self.memory = np.empty(count + 2 * GUARD, dtype)
        self.memory.view(np.uint8)[:] = FILL
        self.array: Array = self.memory[GUARD : GUARD + count]

    def intact(self) -> bool:
        around = np.concatenate([self.memory[:GUARD], self.memory[self.memory.size - GUARD :]])
        return bool((around.view(np.uint8) == FILL).all())


def assert_equal(got: Array, want: Array, what: str) -> None:
    """Every element, and the bits of every element."""
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, expected {want.dtype}"
    if got.tobytes() != want.tobytes():
        wrong = np.flatnonzero(got != want)
        at = int(wrong[0]) if wrong.size else -1
        raise AssertionError(
            f"{what}: {wrong.size} of {want.size} differ, first [{at}]: {got[at]}, expected {want[at]}"
        )


class Checks:
    """Calls collectives of one communicator and compares; ``compared`` counts the arrays that were looked at."""

    def __init__(self, comm: r2ccl.Communicator, dtype: Any = np.int32) -> None:
        self.comm = comm
        self.dtype = np.dtype(dtype)
        self.compared = 0
        self.plans: dict[str, set[str]] = {}
        self._salt = 0

    # -- reducing ------------------------------------------------------------------------------------------------

    def all_reduce(self, count: int, op: ReduceOp = ReduceOp.SUM, in_place: bool = False) -> None:
        salt = self._next()
        mine, want = self._data(count, salt), self._reduced(count, salt, op)
        out = self._out(count)
        if in_place:
            out.array[:] = mine
            self._note("all_reduce", self.comm.all_reduce(out.array, op=op))
        else:
            self._note("all_reduce", self.comm.all_reduce(mine, out.array, op))
            self._same(mine, self._data(count, salt), "input of all_reduce")
        self._same(out, want, f"all_reduce({count}, {op.name}, in_place={in_place})")

    def reduce(self, count: int, root: int, op: ReduceOp = ReduceOp.SUM, in_place: bool = False) -> None:
        salt = self._next()
        mine, want = self._data(count, salt), self._reduced(count, salt, op)
        what = f"reduce({count}, root={root}, in_place={in_place})"
        if in_place:
            out = self._out(count)
            out.array[:] = mine
            self._note("reduce", self.comm.reduce(out.array, op=op, root=root))
        elif self.comm.rank == root:
            out = self._out(count)
            self._note("reduce", self.comm.reduce(mine, out.array, op, root))
        else:
            self._note("reduce", self.comm.reduce(mine, None, op, root))
            self._same(mine, self._data(count, salt), f"input of {what}")
            return
        self._same(out, want if self.comm.rank == root else mine, what)

    def reduce_scatter(self, block: int, op: ReduceOp = ReduceOp.SUM, in_place: bool = False) -> None:
        size, rank, salt = self.comm.size, self.comm.rank, self._next()
        mine = self._data(block * size, salt)
        want = self._reduced(block * size, salt, op)[rank * block : (rank + 1) * block]
        what = f"reduce_scatter({block}, in_place={in_place})"
        if in_place:
            whole = self._out(block * size)
            whole.array[:] = mine
            own = whole.array[rank * block : (rank + 1) * block]
            self._note("reduce_scatter", self.comm.reduce_scatter(whole.array, own, op))
            assert whole.intact(), f"{what}: wrote beyond its array"
            self._same(own, want, what)
        else:
            out = self._out(block)
            self._note("reduce_scatter", self.comm.reduce_scatter(mine, out.array, op))
            self._same(out, want, what)
            self._same(mine, self._data(block * size, salt), f"input of {what}")

    def reduce_scatter_v(self, counts: Sequence[int], op: ReduceOp = ReduceOp.SUM, in_place: bool = False) -> None:
        rank, salt, total = self.comm.rank, self._next(), sum(counts)
        first = sum(counts[:rank])
        mine, want = self._data(total, salt), self._reduced(total, salt, op)[first : first + counts[rank]]
        if in_place:
            out: Array | Guarded = mine[first : first + counts[rank]]
            self.comm.reduce_scatter_v(mine, out, counts, op)
        else:
            out = self._out(counts[rank])
            self.comm.reduce_scatter_v(mine, out.array, counts, op)
        self._same(out, want, f"reduce_scatter_v({list(counts)}, in_place={in_place})")

    # -- moving --------------------------------------------------------------------------------------------------

    def broadcast(self, count: int, root: int, in_place: bool = False) -> None:
        salt = self._next()
        want, out = data(root, count, salt, self.dtype), self._out(count)
        if in_place:
            out.array[:] = self._data(count, salt)
            self._note("broadcast", self.comm.broadcast(out.array, root=root))
        else:
            self._note("broadcast", self.comm.broadcast(self._data(count, salt), out.array, root))
        self._same(out, want, f"broadcast({count}, root={root}, in_place={in_place})")

    def all_gather(self, block: int, in_place: bool = False) -> None:
        salt, rank, out = self._next(), self.comm.rank, self._out(block * self.comm.size)
        own = self._own(out, block, rank, salt) if in_place else self._data(block, salt)
        self._note("all_gather", self.comm.all_gather(own, out.array))
        self._same(out, self._gathered([block] * self.comm.size, salt), f"all_gather({block}, in_place={in_place})")

    def all_gather_v(self, counts: Sequence[int], in_place: bool = False) -> None:
        salt, rank, out = self._next(), self.comm.rank, self._out(sum(counts))
        own = self._data(counts[rank], salt)
        if in_place:
            first = sum(counts[:rank])
            out.array[first : first + counts[rank]] = own
            own = out.array[first : first + counts[rank]]
        self.comm.all_gather_v(own, out.array, counts)
        self._same(out, self._gathered(counts, salt), f"all_gather_v({list(counts)}, in_place={in_place})")

    def gather(self, block: int, root: int, in_place: bool = False) -> None:
        salt, what = self._next(), f"gather({block}, root={root}, in_place={in_place})"
        if self.comm.rank != root:
            self._note("gather", self.comm.gather(self._data(block, salt), root=root))
            return
        out = self._out(block * self.comm.size)
        own = self._own(out, block, root, salt) if in_place else self._data(block, salt)
        self._note("gather", self.comm.gather(own, out.array, root))
        self._same(out, self._gathered([block] * self.comm.size, salt), what)

    def scatter(self, block: int, root: int, in_place: bool = False) -> None:
        salt, rank, size = self._next(), self.comm.rank, self.comm.size
        whole = data(root, block * size, salt, self.dtype)
        want = whole[rank * block : (rank + 1) * block].copy()
        what = f"scatter({block}, root={root}, in_place={in_place})"
        if rank == root and in_place:
            own = whole[rank * block : (rank + 1) * block]
            self._note("scatter", self.comm.scatter(whole, own, root))
            self._same(whole, data(root, block * size, salt, self.dtype), f"input of {what}")
            return
        out = self._out(block)
        self._note("scatter", self.comm.scatter(whole if rank == root else None, out.array, root))
        self._same(out, want, what)

    def all_to_all(self, block: int, in_place: bool = False) -> None:
        salt, rank, size = self._next(), self.comm.rank, self.comm.size
        blocks = [data(r, block * size, salt, self.dtype)[rank * block : (rank + 1) * block] for r in range(size)]
        want, out = np.concatenate(blocks), self._out(block * size)
        if in_place:
            out.array[:] = self._data(block * size, salt)
            self._note("all_to_all", self.comm.all_to_all(out.array, out.array))
        else:
            self._note("all_to_all", self.comm.all_to_all(self._data(block * size, salt), out.array))
        self._same(out, want, f"all_to_all({block}, in_place={in_place})")

    def all_to_all_v(self, table: Sequence[Sequence[int]]) -> None:
        """``table[i][j]`` elements go from rank i to rank j."""
        salt, rank, size = self._next(), self.comm.rank, self.comm.size
        send_counts, recv_counts = list(table[rank]), [table[i][rank] for i in range(size)]
        pieces = []
        for i in range(size):
            first = sum(table[i][:rank])
            pieces.append(data(i, sum(table[i]), salt, self.dtype)[first : first + table[i][rank]])
        out = self._out(sum(recv_counts))
        self.comm.all_to_all_v(self._data(sum(send_counts), salt), send_counts, out.array, recv_counts)
        self._same(out, np.concatenate(pieces), f"all_to_all_v({[list(row) for row in table]})")

    def ring(self, count: int) -> None:
        """Everybody sends to the right and receives from the left, at once."""
        rank, size, salt = self.comm.rank, self.comm.size, self._next()
        if size == 1:
            return
        left, right, out = (rank - 1) % size, (rank + 1) % size, self._out(count)
        with self.comm.group():
            self.comm.send(self._data(count, salt), right)
            self.comm.recv(out.array, left)
        self._same(out, data(left, count, salt, self.dtype), f"send/recv({count})")

    # -- helpers -------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._salt += 1
        return self._salt

    def _data(self, count: int, salt: int) -> Array:
        return data(self.comm.rank, count, salt, self.dtype)

    def _out(self, count: int) -> Guarded:
        return Guarded(count, self.dtype)

    def _own(self, out: Guarded, block: int, rank: int, salt: int) -> Array:
        own = out.array[rank * block : (rank + 1) * block]
        own[:] = self._data(block, salt)
        return own

    def _reduced(self, count: int, salt: int, op: ReduceOp) -> Array:
        ufunc = {ReduceOp.SUM: np.add, ReduceOp.PROD: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}[
            op
        ]
        want = data(0, count, salt, self.dtype)
        with np.errstate(over="ignore"):
            for r in range(1, self.comm.size):
                ufunc(want, data(r, count, salt, self.dtype), out=want)
        return want

    def _gathered(self, counts: Sequence[int], salt: int) -> Array:
        return np.concatenate([data(r, counts[r], salt, self.dtype) for r in range(self.comm.size)])

    def _note(self, collective: str, work: r2ccl.Work) -> None:
        self.plans.setdefault(collective, set()).add(work.plan)

    def _same(self, got: Array | Guarded, want: Array, what: str) -> None:
        if isinstance(got, Guarded):
            assert got.intact(), f"{what}: wrote beyond its array"
            got = got.array
        assert_equal(got, want, f"rank {self.comm.rank}: {what}")
        self.compared += 1


def uneven(size: int, count: int) -> list[int]:
    """Counts that differ, some of them zero, of ``count`` in all or a little less."""
    weights = [(r * 5 + 3) % 7 for r in range(size)]
    return [count * w // max(1, sum(weights)) for w in weights]


def every_collective(checks: Checks, count: int, roots: range | tuple[int, ...]) -> None:
    """``count``: elements of the larger buffer."""
    size = checks.comm.size
    block = -(-count // size)
    for in_place in (False, True):
        checks.all_reduce(count, in_place=in_place)
        checks.reduce_scatter(block, in_place=in_place)
        checks.all_gather(block, in_place=in_place)
        checks.all_to_all(block, in_place=in_place)
        checks.all_gather_v(uneven(size, count), in_place=in_place)
        checks.reduce_scatter_v(uneven(size, count), in_place=in_place)
        for root in roots:
            checks.reduce(count, root, in_place=in_place)
            checks.broadcast(count, root, in_place=in_place)
            checks.gather(block, root, in_place=in_place)
            checks.scatter(block, root, in_place=in_place)
    checks.all_to_all_v([[(i + 2 * j) % 4 * count // (8 * size) for j in range(size)] for i in range(size)])
    checks.ring(count)
    checks.comm.barrier()
