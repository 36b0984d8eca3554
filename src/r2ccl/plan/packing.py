"""Weighted tree packing: how the data divide into classes, and each host's degree in the tree of each class.

A class is reduced up a tree of all hosts and broadcast down the same tree, so every edge carries it once each way and
a host of degree d sends and receives it d times, wherever the root is. An average degree in proportion to bandwidth,
at least 1 (a leaf), thus meets the lower bound (docs/planner.md). Integers only, so that all ranks come to the same.

Three kinds of trees. Stars: a class for each host, which owns it; the spare bandwidth is the owner's share. Two steps, and
all transfers may begin at once, which keeps them in balance. Chains and binary trees: few messages on many hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

MOST_STARS = 64  # hosts: more than that would exchange too many small messages
FEW = 32  # hosts: more than that are given at most COARSE chains
FINE, COARSE = 240, 32  # units of the data that chains are made of: at least, on few hosts; exactly, on more
SHALLOW = 8  # units where trees are to be shallow
_SHARES = 1 << 16  # units of the data that stars are made of
_SCALE = 1 << 20  # of the fastest host's bandwidth


class Kind(Enum):
    """Shape of the trees."""

    STAR = 0
    CHAIN = 1
    BINARY = 2


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


def best_kind(hosts: int) -> Kind:
    """What suits large messages on so many hosts."""
    return Kind.STAR if hosts <= MOST_STARS else Kind.CHAIN


@lru_cache(maxsize=16)
def packing(gbs: tuple[float, ...], kind: Kind) -> Packing:
    """Classes for hosts of these bandwidths."""
    n = len(gbs)
    if n <= 2:
        return Packing((1,) * n, np.zeros((n, n), np.int64))
    if kind is Kind.STAR:
        share = inner_units(gbs, _SHARES)
        owners = np.flatnonzero(share)
        return Packing(tuple(share[owners].tolist()), (n - 2) * np.eye(n, dtype=np.int64)[owners])
    if kind is Kind.BINARY:
        return _paired(*classes(inner_units(gbs, SHALLOW), SHALLOW))
    even = n * (n - 1)  # equal hosts, and equal ones beside a leaf, come out without a rest
    units = even * -(-FINE // even) if n <= FEW else COARSE
    weights, inner = classes(inner_units(gbs, units), units)
    return Packing(tuple(weights.tolist()), inner)


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
    offsets = np.array(sorted({0, *(ends % units).tolist()}), np.int64)
    weights = np.diff(np.append(offsets, units))
    teeth = (ends[None, :] - offsets[:, None] + units - 1) // units  # teeth at offset, offset + units, ... below an end
    return weights, np.diff(teeth, axis=1, prepend=0)


def _paired(weights: Ints, inner: Ints) -> Packing:
    """Each class in two halves: hosts that are inner in one are leaves in the other, so trees branch (double trees)."""
    n = inner.shape[1]
    upto = np.minimum(np.cumsum(2 * inner, axis=1), n - 2)
    first = np.diff(upto, axis=1, prepend=0)
    both = np.stack((first, 2 * inner - first), axis=1).reshape(-1, n)
    return Packing(tuple(np.repeat(weights, 2).tolist()), both)
