"""Who touched which parts of one memory last: the interval map from which dependencies are derived."""

from __future__ import annotations

from bisect import bisect_right


class Accesses:
    """Last writer and readers since, of parts ``0 .. parts - 1`` of one memory, kept as maximal intervals.

    An interval is (writer op or -1, reader ops); a write makes the written range one interval again, so the map stays
    as small as the algorithm's own granularity and a plan of n ops costs O(n log n).
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._starts = [0]
        self._states: list[tuple[int, tuple[int, ...]]] = [(-1, ())]

    def read(self, first: int, parts: int, op: int) -> list[int]:
        """``op`` reads a range; returns the ops whose writes it must see."""
        i, j = self._cut(first), self._cut(first + parts)
        writers = []
        for k in range(i, j):
            writer, readers = self._states[k]
            if writer >= 0:
                writers.append(writer)
            self._states[k] = (writer, (*readers, op))
        return writers

    def write(self, first: int, parts: int, op: int) -> list[int]:
        """``op`` overwrites a range; returns the ops that must have read or written it before."""
        i, j = self._cut(first), self._cut(first + parts)
        earlier = []
        for writer, readers in self._states[i:j]:
            if writer >= 0:
                earlier.append(writer)
            earlier += readers
        self._starts[i:j] = [first]
        self._states[i:j] = [(op, ())]
        return earlier

    def _cut(self, at: int) -> int:
        """Index of the interval that starts at part ``at``, made by cutting one in two where needed."""
        if at >= self._parts:
            return len(self._starts)
        k = bisect_right(self._starts, at) - 1
        if self._starts[k] == at:
            return k
        self._starts.insert(k + 1, at)
        self._states.insert(k + 1, self._states[k])
        return k + 1
