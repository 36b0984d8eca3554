"""The table of algorithms: by collective, in order of preference when the cost is equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from ..types import Collective
from . import (
    direct,
    doubling,
    exchange,
    hierarchical,
    loads,
    loads_uneven,
    optcc,
    partial_rings,
    ring,
    subtree,
    tree,
    tree_packing,
)
from .cost import Load, Model
from .ir import Plan
from .packing import Kind
from .task import Task


class Talks(Enum):
    """Which hosts an algorithm makes speak to each other."""

    ALL = 0
    NEIGHBOURS = 1  # in the order of the hosts, the last with the first
    REACHABLE = 2  # those that can


@dataclass(frozen=True)
class Algorithm:
    """name: as in Config.algorithm. build: one rank's plan. load: for the cost. v: works with counts that differ.

    min_hosts, max_ranks: where it applies (0: no limit). uneven: it is for hosts of different bandwidths, and only there
    it is chosen without being asked for. talks: which hosts speak to each other, for fabrics where not all can.
    """

    name: str
    build: Callable[[Task], Plan]
    load: Callable[[Model], Load]
    v: bool = False
    min_hosts: int = 0
    max_ranks: int = 0
    uneven: bool = False
    talks: Talks = Talks.ALL

    def applies(self, nranks: int, hosts: int, v: bool) -> bool:
        """Whether it can serve this many ranks on this many hosts, with counts that differ if ``v``."""
        return (self.v or not v) and hosts >= self.min_hosts and (not self.max_ranks or nranks <= self.max_ranks)


RING = Talks.NEIGHBOURS


def _rooted(reduces: bool) -> tuple[Algorithm, ...]:
    by_tree = tree.reduce if reduces else tree.broadcast
    trees = [
        Algorithm(
            name,
            partial(by_tree, name=name),
            partial(load, reduces=reduces),
            talks=RING if name == "chain" else Talks.ALL,
        )
        for name, load in (
            ("binomial", loads.root_binomial),
            ("flat", loads.root_flat),
            ("chain", loads.root_chain),
            ("double_tree", loads.root_double_tree),
        )
    ]
    by_ring, straight = (ring.reduce, direct.reduce) if reduces else (ring.broadcast, direct.broadcast)
    return (
        *trees,
        Algorithm("direct", straight, partial(loads.root_direct, reduces=reduces)),
        Algorithm("ring", by_ring, partial(loads.root_ring, reduces=reduces)),
    )


def _packing(name: str, kind: Kind | None) -> Algorithm:
    build = partial(tree_packing.all_reduce, kind=kind)
    load = partial(loads_uneven.all_reduce_packing, kind=kind)
    talks = Talks.ALL if kind else Talks.REACHABLE
    return Algorithm(name, build, load, min_hosts=3, uneven=True, talks=talks)


def _uneven(name: str, build: Callable[[Task], Plan], load: Callable[[Model], Load]) -> Algorithm:
    return Algorithm(name, build, load, min_hosts=3, uneven=True)


ALGORITHMS: dict[Collective, tuple[Algorithm, ...]] = {
    Collective.ALL_REDUCE: (
        Algorithm("exchange", direct.exchange, loads.exchange, max_ranks=2),
        Algorithm("doubling", doubling.all_reduce, loads.all_reduce_doubling),
        Algorithm("direct", direct.all_reduce, loads.all_reduce_direct),
        Algorithm("halving_doubling", doubling.halving_doubling, loads.all_reduce_halving_doubling),
        Algorithm("hierarchical", hierarchical.all_reduce, loads.all_reduce_hierarchical, min_hosts=2, talks=RING),
        Algorithm("ring", ring.all_reduce, loads.all_reduce_ring, talks=RING),
        Algorithm("double_tree", tree.all_reduce, loads.all_reduce_double_tree),
        _packing("tree_packing", None),
        _packing("binary_packing", Kind.BINARY),
        _uneven("optcc", optcc.all_reduce, loads_uneven.all_reduce_optcc),
        _uneven("r2ccl_allreduce", partial_rings.all_reduce, loads_uneven.all_reduce_partial_rings),
    ),
    Collective.REDUCE: _rooted(reduces=True),
    Collective.BROADCAST: _rooted(reduces=False),
    Collective.ALL_GATHER: (
        Algorithm("direct", direct.all_gather, partial(loads.blocks_direct, reduces=False), v=True),
        Algorithm("doubling", doubling.all_gather, partial(loads.blocks_circulant, reduces=False), v=True),
        Algorithm(
            "hierarchical",
            hierarchical.all_gather,
            partial(loads.blocks_hierarchical, reduces=False),
            True,
            2,
            talks=RING,
        ),
        Algorithm("ring", ring.all_gather, partial(loads.blocks_ring, reduces=False), v=True, talks=RING),
    ),
    Collective.REDUCE_SCATTER: (
        Algorithm("direct", direct.reduce_scatter, partial(loads.blocks_direct, reduces=True), v=True),
        Algorithm("halving", doubling.reduce_scatter, partial(loads.blocks_circulant, reduces=True), v=True),
        Algorithm(
            "hierarchical",
            hierarchical.reduce_scatter,
            partial(loads.blocks_hierarchical, reduces=True),
            True,
            2,
            talks=RING,
        ),
        Algorithm("ring", ring.reduce_scatter, partial(loads.blocks_ring, reduces=True), v=True, talks=RING),
    ),
    Collective.ALL_TO_ALL: (Algorithm("direct", direct.all_to_all, loads.only_choice, v=True),),
    Collective.GATHER: (
        Algorithm("direct", direct.gather, loads.rooted_blocks_direct),
        Algorithm("binomial", subtree.gather, loads.rooted_blocks_binomial),
    ),
    Collective.SCATTER: (
        Algorithm("direct", direct.scatter, loads.rooted_blocks_direct),
        Algorithm("binomial", subtree.scatter, loads.rooted_blocks_binomial),
    ),
    Collective.SEND: (Algorithm("p2p", exchange.p2p, loads.only_choice),),
    Collective.RECV: (Algorithm("p2p", exchange.p2p, loads.only_choice),),
    Collective.BARRIER: (Algorithm("dissemination", exchange.barrier, loads.only_choice),),
}
