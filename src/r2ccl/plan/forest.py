"""The trees of a packing: who is above and below a host in each class, and which lane an edge has.

In a tree of given degrees the hosts with most children come first, so it is as shallow as its degrees allow; of
degrees 1 and 2 it is a chain whose middle is the root. Each chain starts from another host and winds to both sides of it
(Walecki's Hamiltonian paths), so that two classes have few edges in common. A star lists the hosts after its root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .packing import Ints, Kind, packing
from .reach import Rails, tree

MOST_LANES = 8


@dataclass(frozen=True)
class Below:
    """A host below another: its number, the lane of the edge, and whether nobody is below it."""

    host: int
    lane: int
    leaf: bool


@dataclass(frozen=True)
class Node:
    """A host's place in the tree of one class; above is -1 at the root.

    below: fast hosts first, so that the sum of a class waits for none of them when a slow one comes in.
    """

    above: int
    lane: int
    below: tuple[Below, ...]


class Forest:
    """One tree over n hosts for each class, in breadth-first order.

    order: (classes, n) the host at each position, the root first. first: (classes, n + 1) first position below each
    position; so those below position p are first[k, p] .. first[k, p + 1] - 1. rails: where they are given, every tree
    uses pairs of hosts that share one, at the price of other degrees than ``inner`` asks for.

    Classes that use the same edge have different lanes there, while there are enough: in one lane the messages between
    two ranks go one after the other, and a class would wait for the end of another.
    """

    def __init__(self, inner: Ints, gbs: tuple[float, ...] = (), rails: Rails = ()) -> None:
        self.gbs = gbs or (1.0,) * inner.shape[1]
        self.classes, self.n = inner.shape
        self.order = np.empty(inner.shape, np.int64)
        self.first = np.empty((self.classes, self.n + 1), np.int64)
        self.first[:, 0] = 1
        for k in range(self.classes):
            first = k * self.n // self.classes if self.classes > self.n else k
            star = inner[k].max() == self.n - 2
            start = np.roll(np.arange(self.n), -int(np.argmax(inner[k])) or -k) if star else winding(self.n, first)
            self.order[k] = start[np.argsort(-inner[k][start], kind="stable")]
            below = inner[k][self.order[k]]
            below[0] += self.n > 1
            if rails:
                self.order[k], below = _listed(tree(int(self.order[k, 0]), rails, self.gbs), int(self.order[k, 0]))
            np.cumsum(below, out=self.first[k, 1:])
        self.first[:, 1:] += 1
        self.lanes = min(MOST_LANES, self._most_on_an_edge())

    def of(self, host: int) -> list[Node]:
        """A host's place in each class."""
        used: dict[int, int] = {}
        nodes = []
        for k, at in enumerate(np.argmax(self.order == host, axis=1).tolist()):
            order, first = self.order[k], self.first[k]

            def lane(other: int) -> int:
                used[other] = used.get(other, -1) + 1
                return used[other] % self.lanes

            above = int(order[np.searchsorted(first, at, side="right") - 1]) if at else -1
            up = lane(above) if at else 0
            below = [
                Below(int(order[p]), lane(int(order[p])), bool(first[p] == first[p + 1]))
                for p in range(int(first[at]), int(first[at + 1]))
            ]
            nodes.append(Node(above, up, tuple(sorted(below, key=lambda b: -self.gbs[b.host]))))
        return nodes

    def time(self, weights: Sequence[int]) -> float:
        """When the last host is done with classes of these weights, in units of data / bandwidth."""
        degrees = np.zeros(self.n, np.int64)
        for k, weight in enumerate(weights):
            degrees[self.order[k]] += weight * (np.diff(self.first[k]) + (np.arange(self.n) > 0))
        return float((degrees / np.array(self.gbs)).max()) / sum(weights)

    @property
    def depth(self) -> int:
        """Levels below the root of the deepest tree."""
        deepest = 0
        for first in self.first.tolist():
            levels, end = 0, 1
            while end < self.n:
                end = first[end]
                levels += 1
            deepest = max(deepest, levels)
        return deepest

    def _most_on_an_edge(self) -> int:
        if self.n == 1:
            return 1
        above = np.stack([np.repeat(self.order[k], np.diff(self.first[k])) for k in range(self.classes)])
        below = self.order[:, 1:]
        edges = np.sort((np.minimum(above, below) * self.n + np.maximum(above, below)).ravel())
        return int(np.diff(np.flatnonzero(np.diff(edges, prepend=-1, append=-1))).max())


@lru_cache(maxsize=16)
def forest(gbs: tuple[float, ...], kind: Kind, rails: Rails = ()) -> Forest:
    """The trees of ``packing(gbs, kind)``."""
    return Forest(packing(gbs, kind).inner, gbs, rails)


def winding(n: int, start: int) -> Ints:
    """The path start, start + 1, start - 1, start + 2, ... over all hosts, from its middle alternately to both ends."""
    step = np.arange(n)
    place = n // 2 + np.where(step % 2, -(step + 1) // 2, step // 2)
    return np.asarray((start + np.where(place % 2, (place + 1) // 2, -(place // 2))) % n, np.int64)


def _listed(below: list[list[int]], root: int) -> tuple[Ints, Ints]:
    """A tree in breadth-first order, and the number of hosts below each position."""
    order = [root]
    for host in order:
        order += below[host]
    return np.array(order, np.int64), np.array([len(below[host]) for host in order], np.int64)
