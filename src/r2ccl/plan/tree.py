"""Trees: binomial for few bytes, chain and double binary tree with chunks in a pipeline for many.

Double tree: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
Parallel Computing 35 (2009): two binary trees, each for half of the data, such that who is an inner node in one is a
leaf in the other. Each tree has its own lane, so that one that stalls does not hold up the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .builder import At, Builder
from .ir import Buf, Plan
from .task import Task

Parents = list[int]  # parent of each position; -1: the top


def binomial(n: int) -> Parents:
    """Position v hangs below v without its lowest set bit; its subtree is v .. v + lowest bit - 1."""
    return [v & (v - 1) if v else -1 for v in range(n)]


def chain(n: int) -> Parents:
    """Each position hangs below the one before it."""
    return [v - 1 for v in range(n)]


def flat(n: int) -> Parents:
    """All hang below position 0."""
    return [0 if v else -1 for v in range(n)]


def binary(n: int) -> Parents:
    """Binary tree in order: positions 0, 2, 4, ... are leaves (labels from 1: the lowest set bit is the height)."""
    parents = []
    for label in range(1, n + 1):
        low = label & -label
        up = (label ^ low) | (low << 1)
        parents.append((up if up <= n else label ^ low) - 1)
    return parents


def mirrored(n: int) -> Parents:
    """``binary`` with the positions moved by one or turned round, so that its inner nodes were leaves there."""
    tree = binary(n)
    role = [n - 1 - v for v in range(n)] if n % 2 == 0 else [(v + 1) % n for v in range(n)]
    position = {r: v for v, r in enumerate(role)}
    return [position[tree[r]] if tree[r] >= 0 else -1 for r in role]


def under_root(tree: Callable[[int], Parents]) -> Callable[[int], Parents]:
    """The tree over positions 1 .. n-1, with position 0 above its top."""
    return lambda n: [-1] + [p + 1 for p in tree(n - 1)]


_SHAPES: dict[str, list[Callable[[int], Parents]]] = {
    "binomial": [binomial],
    "chain": [chain],
    "flat": [flat],
    "double_tree": [under_root(binary), under_root(mirrored)],
}


def broadcast(task: Task, name: str) -> Plan:
    """Down a tree from the root; every rank receives everything once."""
    trees = _SHAPES[name]
    b = Builder(task, name, (1,) * len(trees), lanes=len(trees))
    for lane, tree in enumerate(trees):
        part = At(Buf.SEND if task.is_root else Buf.RECV, lane)
        down(b, Place(tree(task.nranks), task.ring_from_root, task.rank), part, lane)
    if task.is_root:
        b.copy(b.all(Buf.RECV), b.all(Buf.SEND))
    return b.finish()


def reduce(task: Task, name: str) -> Plan:
    """Up a tree to the root; every other rank sends everything once, as a partial sum."""
    trees = _SHAPES[name]
    b = Builder(task, name, (1,) * len(trees), lanes=len(trees))
    if task.nranks == 1:
        b.copy(b.all(Buf.RECV), b.all(Buf.SEND), final=True)
    acc = b.acc if task.is_root else Buf.SCRATCH
    for lane, tree in enumerate(trees):
        up(b, Place(tree(task.nranks), task.ring_from_root, task.rank), lane, acc, lane)
    return b.finish()


def all_reduce(task: Task) -> Plan:
    """Two binary trees, each for half of the data: up to the top, and down again."""
    b = Builder(task, "double_tree", (1, 1), lanes=2)
    if task.nranks == 1:
        b.copy(b.all(Buf.RECV), b.all(Buf.SEND), final=True)
    places = [Place(tree(task.nranks), task.ring, task.rank) for tree in (binary, mirrored)]
    for lane, place in enumerate(places):
        up(b, place, lane, b.acc, lane)
    for lane, place in enumerate(places):
        down(b, place, At(Buf.RECV, lane), lane)
    return b.finish()


class Place:
    """One rank's place in a tree over ``members``: its parent and children (ranks), largest subtree last."""

    def __init__(self, parents: Parents, members: Sequence[int], rank: int) -> None:
        pos = members.index(rank)
        inner = set(parents)
        below = [v for v, p in enumerate(parents) if p == pos]
        self.parent = members[parents[pos]] if parents[pos] >= 0 else None
        self.children = tuple(members[v] for v in below)
        self.leaves = frozenset(members[v] for v in below if v not in inner)


def up(b: Builder, place: Place, part: int, acc: Buf, lane: int) -> None:
    """Sum the children's ``part`` to SEND in ``acc`` and pass it on; at the top it is finished, in RECV."""
    so_far = At(Buf.SEND, part)
    for child in place.children:
        last = place.parent is None and child == place.children[-1]
        dst = At(Buf.RECV if last else acc, part)
        b.recv_reduce(child, dst, so_far, wide=child not in place.leaves, final=last, lane=lane)
        so_far = dst
    if place.parent is not None:
        b.send(place.parent, so_far, lane=lane)


def down(b: Builder, place: Place, part: At, lane: int) -> None:
    """Receive ``part`` from the parent (the top has it) and pass it on, to the largest subtree first."""
    if place.parent is not None:
        b.recv(place.parent, part, lane=lane)
    for child in reversed(place.children):
        b.send(child, part, lane=lane)
