"""Calls by chance: any collective, dtype, operator, size, root and place, with every element of the result compared.

All ranks draw the same call for the same (seed, number). The data are those of ``r2ccl.perf.data``: whole numbers whose
results are exact in every dtype, and which tell one element, rank and call from another.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import r2ccl
from r2ccl import DType, ReduceOp
from r2ccl.perf.data import Array, Pattern, count_wrong, fill
from r2ccl.perf.ops import OPS, REDUCED, Case
from r2ccl.types import NUMPY_OF

GUARD_BYTES = 64  # before and after every output: nothing may touch them
FILL = 0xA5
V_OPS = ("all_gather_v", "reduce_scatter_v", "all_to_all_v")
NAMES = (*OPS, *V_OPS, "burst", "pairs")
REDUCING = ("reduce_scatter_v", "burst", *(op.name for op in OPS.values() if op.reduces))
REPERTOIRE = (
    400  # kinds of calls of a seed: each has a plan that is kept, and a growth of memory would not be told from those
)
COMPLEX = (DType.COMPLEX64, DType.COMPLEX128)


@dataclass(frozen=True)
class Drawn:
    """One call, the same on all ranks."""

    number: int
    name: str
    dtype: DType
    op: ReduceOp
    nbytes: int  # of the larger array
    root: int
    in_place: bool

    def __str__(self) -> str:
        return f"#{self.number} {self.name} {self.dtype.name} {self.op.name} {self.nbytes} bytes root={self.root}" + (
            " in place" if self.in_place else ""
        )


def draw(seed: int, number: int, ranks: int, max_bytes: int) -> Drawn:
    """The call of that number: one of the seed's ``REPERTOIRE``, with a size of its own within a factor of two.

    Sizes from nothing to ``max_bytes``, small ones as often as large ones.
    """
    own = random.Random(f"{seed}/{number}")
    kind = random.Random(f"{seed} kind {own.randrange(REPERTOIRE)}")
    name, dtype = kind.choice(NAMES), kind.choice(list(DType))
    ops = [op for op in ReduceOp if not (dtype is DType.BOOL and op is ReduceOp.AVG)]
    if dtype in COMPLEX:
        ops = [op for op in ops if op not in (ReduceOp.MIN, ReduceOp.MAX)]
    nbytes = 0 if kind.random() < 0.03 else int(2 ** kind.uniform(0, np.log2(max_bytes)) * own.uniform(0.5, 1))
    return Drawn(number, name, dtype, kind.choice(ops), nbytes, kind.randrange(ranks), kind.random() < 0.4)


@dataclass
class Caller:
    """Carries out calls on one communicator; ``wrong`` elements and ``done`` calls by name so far."""

    comm: r2ccl.Communicator
    max_bytes: int
    falsify: int = -1
    """A negative control: in the first call with this number or a higher one that has a result, a bit is changed."""
    wrong: int = 0
    elements: int = 0
    done: Counter[str] = field(default_factory=Counter)
    first_wrong: str = ""

    def __post_init__(self) -> None:
        # Room for one dtype's rounding up per rank; made once, so that memory does not grow because of us.
        size = self.max_bytes + 16 * self.comm.size + 2 * GUARD_BYTES
        self._sent, self._received = np.zeros(size, np.uint8), np.zeros(size, np.uint8)

    def make(self, call: Drawn) -> None:
        """Makes the call and compares what it gave."""
        if call.name in OPS:
            self._plain(call)
        else:
            getattr(self, f"_{call.name}")(call)
        self.done[call.name] += 1

    # -- kinds of calls ------------------------------------------------------------------------------------------------

    def _plain(self, call: Drawn) -> None:
        op, rank, size = OPS[call.name], self.comm.rank, self.comm.size
        case = Case(rank, size, call.root, op.count(call.nbytes, call.dtype.itemsize, size), call.op)
        pattern = self._pattern(call)
        sends, receives = op.sends(case), op.receives(case)
        in_place = call.in_place and op.call_in_place is not None
        send = self._input(call, sends * case.count) if sends else None
        recv = self._output(call, receives * case.count) if receives else None
        if in_place and send is not None and recv is not None:
            mine = slice(rank * case.count, (rank + 1) * case.count)
            if sends > receives:
                recv = send[mine]
            else:
                send = recv[mine] if sends < receives else recv
        if send is not None:
            fill(send, pattern.rank(rank))
        make = op.call_in_place if in_place else op.call
        assert make is not None
        make(self.comm, case, send, recv)
        for piece in op.expected(case):
            assert recv is not None
            block = recv[piece.block * case.count : (piece.block + 1) * case.count]
            self._compare(call, pattern, block, piece.source, piece.start)
        if receives and not (in_place and sends > receives):
            self._guards(call, receives * case.count)

    def _all_gather_v(self, call: Drawn) -> None:
        counts = self._counts(call)
        pattern, recv = self._pattern(call), self._output(call, sum(counts))
        send = self._input(call, counts[self.comm.rank])
        if call.in_place:
            first = sum(counts[: self.comm.rank])
            send = recv[first : first + counts[self.comm.rank]]
        fill(send, pattern.rank(self.comm.rank))
        self.comm.all_gather_v(send, recv, counts)
        for source, count in enumerate(counts):
            first = sum(counts[:source])
            self._compare(call, pattern, recv[first : first + count], source, 0)
        self._guards(call, sum(counts))

    def _reduce_scatter_v(self, call: Drawn) -> None:
        counts, rank = self._counts(call), self.comm.rank
        first = sum(counts[:rank])
        pattern, send = self._pattern(call), self._input(call, sum(counts))
        recv = send[first : first + counts[rank]] if call.in_place else self._output(call, counts[rank])
        fill(send, pattern.rank(rank))
        self.comm.reduce_scatter_v(send, recv, counts, call.op)
        self._compare(call, pattern, recv, REDUCED, first)
        if not call.in_place:
            self._guards(call, counts[rank])

    def _all_to_all_v(self, call: Drawn) -> None:
        size, rank = self.comm.size, self.comm.rank
        chance = random.Random(f"table {call}")
        most = call.nbytes // call.dtype.itemsize // size
        table = [[chance.randint(0, most) for _ in range(size)] for _ in range(size)]
        sent, received = table[rank], [row[rank] for row in table]
        pattern, send, recv = self._pattern(call), self._input(call, sum(sent)), self._output(call, sum(received))
        fill(send, pattern.rank(rank))
        self.comm.all_to_all_v(send, sent, recv, received)
        for source, count in enumerate(received):
            first = sum(received[:source])
            self._compare(call, pattern, recv[first : first + count], source, sum(table[source][:rank]))
        self._guards(call, sum(received))

    def _burst(self, call: Drawn) -> None:
        """Four all-reduces under way at once, waited for in another order."""
        count = call.nbytes // call.dtype.itemsize // 4
        pattern, whole = self._pattern(call), self._output(call, 4 * count)
        parts = [whole[i * count : (i + 1) * count] for i in range(4)]
        for i, part in enumerate(parts):
            fill(part, pattern.rank(self.comm.rank), 17 * i)
        works = [self.comm.all_reduce(part, op=call.op, async_op=True) for part in parts]
        for i in (2, 0, 3, 1):
            works[i].wait()
            self._compare(call, pattern, parts[i], REDUCED, 17 * i)
        self._guards(call, 4 * count)

    def _pairs(self, call: Drawn) -> None:
        """A message to and from every other rank, all at once."""
        size, rank = self.comm.size, self.comm.rank
        count = call.nbytes // call.dtype.itemsize // size
        pattern, send, recv = self._pattern(call), self._input(call, size * count), self._output(call, size * count)
        fill(send, pattern.rank(rank))
        others = [r for r in range(size) if r != rank]
        with self.comm.group():
            for r in others:
                self.comm.send(send[r * count : (r + 1) * count], r)
                self.comm.recv(recv[r * count : (r + 1) * count], r)
        for r in others:
            self._compare(call, pattern, recv[r * count : (r + 1) * count], r, rank * count)
        self._guards(call, size * count)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _pattern(self, call: Drawn) -> Pattern:
        return Pattern(call.dtype, self.comm.size, call.op if call.name in REDUCING else None, call.number)

    def _counts(self, call: Drawn) -> list[int]:
        """Counts of all ranks, some of them nothing."""
        chance, whole = random.Random(f"counts {call}"), call.nbytes // call.dtype.itemsize
        cuts = sorted(chance.randint(0, whole) for _ in range(self.comm.size - 1))
        return [b - a for a, b in zip([0, *cuts], [*cuts, whole], strict=True)]

    def _input(self, call: Drawn, count: int) -> Array:
        return self._sent[: count * call.dtype.itemsize].view(NUMPY_OF[call.dtype])

    def _output(self, call: Drawn, count: int) -> Array:
        """An output between guards, full of what no result is."""
        memory = self._received[: count * call.dtype.itemsize + 2 * GUARD_BYTES]
        memory[:] = FILL
        return memory[GUARD_BYTES : memory.size - GUARD_BYTES].view(NUMPY_OF[call.dtype])

    def _compare(self, call: Drawn, pattern: Pattern, block: Array, source: int, start: int) -> None:
        if block.size == 0:
            return
        if 0 <= self.falsify <= call.number:
            self.falsify = -1
            block.view(np.uint8)[0] ^= 1
        period = pattern.reduced() if source == REDUCED else pattern.rank(source)
        wrong = count_wrong(block, period, start)
        self.elements += block.size
        self._note(call, wrong, f"block of {'all ranks' if source == REDUCED else f'rank {source}'}")

    def _guards(self, call: Drawn, count: int) -> None:
        end = GUARD_BYTES + count * call.dtype.itemsize
        around: Any = np.concatenate([self._received[:GUARD_BYTES], self._received[end : end + GUARD_BYTES]])
        self._note(call, int(np.count_nonzero(around != FILL)), "memory beside the output")

    def _note(self, call: Drawn, wrong: int, what: str) -> None:
        self.wrong += wrong
        if wrong and not self.first_wrong:
            self.first_wrong = f"{call}: {wrong} wrong elements, {what}"
