"""All-reduce by weighted tree packing: as fast as any can be, whatever the hosts' bandwidths (docs/planner.md)."""

from __future__ import annotations

from .across import Across
from .forest import Node, forest
from .ir import Plan
from .packing import Kind, best_kind, packing
from .task import Task

NAMES = {Kind.BINARY: "binary_packing"}


def all_reduce(task: Task, kind: Kind | None = None) -> Plan:
    """Each class up its tree and down again, all classes at once, chunks in a pipeline.

    A host of degree d in a class sends and receives the class d times, in lanes of its own on each edge. Where hosts
    share no rail, the owner of a class reaches some through others.
    """
    kind = kind or (Kind.STAR if task.rails else best_kind(len(task.speeds)))
    trees = forest(task.speeds, kind, task.rails)
    x = Across(task, NAMES.get(kind, "tree_packing"), packing(task.speeds, kind).weights, trees.lanes, paced=True)
    up = list(enumerate(trees.of(x.here)))
    down = up
    if kind is Kind.STAR and not task.rails:  # nobody is everybody's first target; own classes last, then first
        turn = next((block for block, node in up if node.above > x.here), 0)
        up = up[turn:] + up[:turn]
        down = sorted(up, key=lambda item: item[1].above >= 0)

    def schedule(piece: int) -> None:
        for block, node in up:
            _up(x, node, block, piece)
        for block, node in down:
            _down(x, node, block, piece)

    return x.all_reduce(schedule)


def _up(x: Across, node: Node, block: int, piece: int) -> None:
    for below in node.below:
        last = node.above < 0 and below is node.below[-1]
        x.add(below.host, block, piece, raw=below.leaf, final=last, lane=below.lane)
    if node.above >= 0:
        x.send_sum(node.above, block, piece, node.lane)


def _down(x: Across, node: Node, block: int, piece: int) -> None:
    if node.above >= 0:
        x.take_result(node.above, block, piece, node.lane)
    for below in node.below:
        x.send_result(below.host, block, piece, below.lane)
