"""Weighted tree packing: how the data divide into classes, and each host's degree in the tree of each class.

A class is reduced up a tree of all hosts and broadcast down the same tree, so every edge carries it once each way and
a host of degree d sends and receives it d times, wherever the root is. An average degree in proportion to bandwidth,
at least 1 (a leaf), thus meets the lower bound (docs/planner.md). Integers only, so that all ranks come to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

FEW = 32  # hosts: more than that are given at most COARSE classes
FINE, COARSE = 240, 32  # units of the data that classes consist of: at least, on few hosts; exactly, on more
SHALLOW = 8  # units where trees are to be shallow
_SCALE = 1 << 20  # of the fastest host's bandwidth


@dataclass(frozen=True, eq=False)
class Packing:
    """Classes of a packing over n hosts.

    weights: units of data of each class. inner: (classes, n) int64, the degree of a host in a class less one: how many
    hosts hang below it where it is not the root. Each row sums to n - 2.
    """

    weights: tuple[int, ...]
    inner: Ints

    @cached_property
    def degrees(self) -> npt.NDArray[np.float64]:
        """Average degree of each host: the data it sends, and as much receives, in units of the data reduced."""
        total = sum(self.weights)
        if self.inner.shape[1] == 1:
            return np.zeros(1)
        return 1 + np.array(self.weights, np.int64) @ self.inner / total

    def time(self, gbs: Sequence[float]) -> float:
        """When the last host is done, in units of data / bandwidth."""
        return float((self.degrees / np.array(gbs)).max())


@lru_cache(maxsize=16)
def packing(gbs: tuple[float, ...], shallow: bool = False) -> Packing:
    """Classes for hosts of these bandwidths. ``shallow``: trees of few levels rather than chains."""
    n = len(gbs)
    if n <= 2:
        return Packing((1, 1), np.zeros((2, n), np.int64))
    even = n * (n - 1)  # equal hosts, and equal ones beside a leaf, come out without a rest
    units = SHALLOW if shallow else even * -(-FINE // even) if n <= FEW else COARSE
    weights, inner = classes(inner_units(gbs, units), units)
    return _paired(weights, inner) if shallow else Packing(tuple(int(w) for w in weights), inner)


def inner_units(gbs: Sequence[float], units: int) -> Ints:
    """``units`` times (average degree - 1) of each host, with the sum (n - 2) ``units``, so as to end early.

    At the bound T host i may have the degree b_i T: rounded down, then what is missing is given to those that it
    delays least, and what is too much is taken from all in proportion.
    """
    n = len(gbs)
    speed = np.maximum(1, np.rint(np.array(gbs) / max(gbs) * _SCALE).astype(np.int64))
    least, total = int(speed.min()), int(speed.sum())
    # T = max(1 / least, 2 (n - 1) / total), as a fraction.
    top, bottom = (1, least) if total >= 2 * (n - 1) * least else (2 * (n - 1), total)
    inner: Ints = np.maximum(units * speed * top // bottom - units, 0)
    want, have = (n - 2) * units, int(inner.sum())
    if have > want:
        inner = inner * want // have
    missing = want - int(inner.sum())
    later = np.argsort((inner + units + 1) / speed, kind="stable")
    inner[later[:missing]] += 1
    return inner


def classes(inner: Ints, units: int) -> tuple[Ints, Ints]:
    """(weights, degrees less one by class) whose weighted sum is ``inner``: systematic sampling.

    The hosts' shares lie end to end on a line; a class is a comb of teeth ``units`` apart, and a host has in it as many
    hosts below as teeth fall on its share. Moving the comb by one tooth's distance passes every point of the line once,
    so each host gets its share exactly, within one of the average in each class.
    """
    ends = np.cumsum(inner)
    offsets = np.unique(np.concatenate(([0], ends % units)))
    weights = np.diff(np.append(offsets, units))
    teeth = (ends[None, :] - offsets[:, None] + units - 1) // units  # teeth at offset, offset + units, ... below an end
    return weights, np.diff(teeth, axis=1, prepend=0)


def _paired(weights: Ints, inner: Ints) -> Packing:
    """Each class in two halves: hosts that are inner in one are leaves in the other, so trees branch (double trees)."""
    n = inner.shape[1]
    upto = np.minimum(np.cumsum(2 * inner, axis=1), n - 2)
    first = np.diff(upto, axis=1, prepend=0)
    both = np.stack((first, 2 * inner - first), axis=1).reshape(-1, n)
    return Packing(tuple(int(w) for w in np.repeat(weights, 2)), both)
