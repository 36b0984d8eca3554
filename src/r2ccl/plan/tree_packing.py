"""All-reduce by weighted tree packing: as fast as any can be, whatever the hosts' bandwidths (docs/planner.md)."""

from __future__ import annotations

from .across import Across
from .forest import Node, forest
from .ir import Plan
from .packing import packing
from .task import Task


def all_reduce(task: Task, shallow: bool = False) -> Plan:
    """Each class up its tree and down again, all classes at once, chunks in a pipeline.

    A host of degree d in a class sends and receives the class d times, in lanes of its own on each edge.
    """
    trees = forest(task.speeds, shallow)
    x = Across(
        task, "shallow_packing" if shallow else "tree_packing", packing(task.speeds, shallow).weights, trees.lanes
    )
    nodes = trees.of(x.here)
    return x.all_reduce(lambda block, piece: _up_and_down(x, nodes[block], block, piece))


def _up_and_down(x: Across, node: Node, block: int, piece: int) -> None:
    for below in node.below:
        last = node.above < 0 and below is node.below[-1]
        x.add(below.host, block, piece, raw=below.leaf, final=last, lane=below.lane)
    if node.above >= 0:
        x.send_sum(node.above, block, piece, node.lane)
        x.take_result(node.above, block, piece, node.lane)
    for below in reversed(node.below):
        x.send_result(below.host, block, piece, below.lane)
