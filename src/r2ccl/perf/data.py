"""Inputs whose results are known exactly, cheap enough to check every element of every iteration.

A rank's data is periodic with ``PERIOD`` elements, a prime, so that no chunk, slot or block boundary coincides with
it: an element that is lost, doubled, stale, of another rank, or elsewhere differs from what is expected. Each
rank and each iteration starts at another place of one random table. A result of an element-wise reduction is then
periodic too, so that it is computed for one period and compared with all of them, bit by bit.

All values are whole numbers so small that every partial result is exact in the data type, whatever the order of
reduction. (With more ranks than an 8-bit float has exact whole numbers, a result rests on rounding to nearest.)
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..types import NUMPY_OF, DType, ReduceOp

Array = npt.NDArray[np.generic]

PERIOD = 65521
_ROWS = 16  # periods compared at once: what fits in a cache
# Whole numbers up to here are exact.
_EXACT = {
    DType.BOOL: 1,
    DType.INT8: 127,
    DType.UINT8: 255,
    DType.INT16: 32767,
    DType.UINT16: 65535,
    DType.FLOAT16: 2048,
    DType.BFLOAT16: 256,
    DType.FLOAT8_E4M3FN: 16,
    DType.FLOAT8_E5M2: 8,
    DType.FLOAT32: 1 << 24,
    DType.COMPLEX64: 1 << 24,
}
_LARGEST = 1 << 24  # enough to tell elements apart
_LARGEST_FACTOR = 7
_COMPLEX = frozenset({DType.COMPLEX64, DType.COMPLEX128})
_WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.uint64}


class Pattern:
    """Data of all ranks for one iteration of one collective.

    dtype, ranks, op: ``op`` is None where nothing is reduced.
    iteration: another number gives other data.
    """

    def __init__(self, dtype: DType, ranks: int, op: ReduceOp | None, iteration: int) -> None:
        self.dtype = dtype
        self.ranks = ranks
        self.op = op
        self.iteration = iteration

    def rank(self, rank: int) -> Array:
        """One period of what ``rank`` sends; element i of its buffer is entry ``i % PERIOD``."""
        return _cast(self._whole(rank, 0), self._whole(rank, 1), self.dtype)

    def reduced(self) -> Array:
        """One period of the reduction over all ranks."""
        if self.op is None:
            raise ValueError("this pattern has no reduction")
        return _cast(self._reduce(0), self._reduce(1), self.dtype)

    def _whole(self, rank: int, salt: int) -> npt.NDArray[np.int64]:
        """The real (salt 0) or imaginary (salt 1) part of a rank's period, as whole numbers."""
        bound = min(_EXACT.get(self.dtype, _LARGEST), _LARGEST)
        shift = 7919 * (rank + 1) + 104729 * self.iteration + 31337 * salt
        if self.op is None or self.op in (ReduceOp.MIN, ReduceOp.MAX):
            return _table(bound + 1, shift)
        if self.op is ReduceOp.SUM:
            return _table(max(bound // self.ranks, 1) + 1, shift)
        common = 104729 * self.iteration + 31337 * salt
        if self.op is ReduceOp.AVG:
            # The average is the common part: the deviations cancel in pairs of ranks.
            deviation = 0 if rank == self.ranks - 1 and self.ranks % 2 else 1 - 2 * (rank % 2)
            return _table(max(bound // self.ranks - 1, 1), common) + 1 + deviation
        # PROD: for each element one rank has the factor, which one depends on the element, and all others have 1.
        if salt:
            return np.zeros(PERIOD, np.int64)
        mine = _table(self.ranks, common + 17) == rank
        return np.where(mine, _table(_LARGEST_FACTOR, common) + 1, 1)

    def _reduce(self, salt: int) -> npt.NDArray[np.int64]:
        if self.op is ReduceOp.PROD:
            if salt:
                return np.zeros(PERIOD, np.int64)
            return _table(_LARGEST_FACTOR, 104729 * self.iteration) + 1
        result = self._whole(0, salt)
        for rank in range(1, self.ranks):
            part = self._whole(rank, salt)
            if self.op is ReduceOp.MIN:
                result = np.minimum(result, part)
            elif self.op is ReduceOp.MAX:
                result = np.maximum(result, part)
            else:
                result = result + part
        if self.op is ReduceOp.AVG:
            result = result // self.ranks
        return result


def fill(buffer: Array, period: Array, start: int = 0) -> None:
    """Write the pattern into ``buffer`` (one-dimensional) as if it began at element ``start``."""
    for piece, values in _pieces(buffer, period, start):
        piece[...] = values


def count_wrong(buffer: Array, period: Array, start: int = 0) -> int:
    """Number of elements of ``buffer`` that differ, in any bit, from the pattern that begins at ``start``."""
    wrong = 0
    for piece, values in _pieces(buffer, period, start):
        different = piece != values
        if buffer.itemsize == 16:  # compared as two words
            different = different.reshape(*different.shape[:-1], -1, 2).any(axis=-1)
        wrong += int(np.count_nonzero(different))
    return wrong


def _pieces(buffer: Array, period: Array, start: int) -> list[tuple[Array, Array]]:
    """Views of the buffer, each with what belongs there: rows of whole periods and a rest, as unsigned words."""
    words = max(buffer.itemsize // 8, 1)
    flat = buffer.view(_WORD[buffer.itemsize])
    unit = np.roll(period, -(start % PERIOD)).view(_WORD[buffer.itemsize])
    rows, rest = divmod(flat.size, PERIOD * words)
    whole = flat[: rows * PERIOD * words].reshape(rows, PERIOD * words)
    pieces: list[tuple[Array, Array]] = [(whole[i : i + _ROWS], unit) for i in range(0, rows, _ROWS)]
    if rest:
        pieces.append((flat[flat.size - rest :], unit[:rest]))
    return pieces


def _table(below: int, shift: int) -> npt.NDArray[np.int64]:
    """Whole numbers from 0 to ``below - 1``, fixed but without order, beginning at ``shift``."""
    return np.roll(_random(below), -(shift % PERIOD))


@lru_cache(maxsize=8)
def _random(below: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(below).integers(0, below, PERIOD, np.int64)


def _cast(real: npt.NDArray[np.int64], imaginary: npt.NDArray[np.int64], dtype: DType) -> Array:
    if dtype in _COMPLEX:
        values: Array = (real + 1j * imaginary).astype(NUMPY_OF[dtype])
        return values
    # 8- and 16-bit floats are rounded from float32, as the library rounds.
    middle = real.astype(np.float32) if dtype.is_low_precision else real
    return middle.astype(NUMPY_OF[dtype])
