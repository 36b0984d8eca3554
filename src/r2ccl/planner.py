"""From a call to its plan: the cluster as the planner sees it, the choice, and the chunk size. Pure Python, on a miss only."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from ._native.core import PlanEntry
from .config import Config
from .costs import ACROSS_HOSTS, ONE_HOST, Costs
from .plan.ir import Plan
from .plan.select import PlanRequest, check_algorithm, choose, costs_us, pick, size_class
from .plan.shape import ClusterShape
from .topology.cluster import Cluster
from .topology.model import DOWN
from .types import Collective, DType, ReduceOp

log = logging.getLogger("r2ccl.plan")

_ASSUMED_RAIL_GBS = 1.25  # of a rail whose speed the driver does not tell: 10 Gbit/s
_NO_RAIL = 1e-3  # of its whole bandwidth counts for a host without rails
_WHOLE = 255  # the level of a rail that is not known to be slow
_SLOW_CHUNK_BYTES = 128 << 10  # on slow rails, where one of 256 KiB takes 2 ms or more
_SMALLEST_CHUNK_BYTES = 64 << 10
_SMALLEST_CACHED_CHUNK_BYTES = 32 << 10
_CACHED_CHUNK_BYTES = 128 << 10  # through shared memory: producer and consumer both find it in the cache
_WIDE = frozenset({ReduceOp.SUM, ReduceOp.PROD, ReduceOp.AVG})
_REDUCING = frozenset({Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER})


def shape_of(
    cluster: Cluster, config: Config, cores: int, health: bytes = b"", costs: Costs | None = None
) -> ClusterShape:
    """The values that plans are chosen by; the same on every rank.

    ``cores``: of the weakest host. ``health``: one byte per rail of each rank, 0 not usable; empty: as at the start.
    ``costs``: None for the defaults.
    """
    costs = costs or (ACROSS_HOSTS if len(cluster.hosts) > 1 else ONE_HOST)
    levels = _levels(cluster, health)
    full, now = [], []
    for host in cluster.hosts:
        rails = cluster.ranks[host.ranks[0]].rails
        nominal = tuple((r.speed_mbps or 0) / 8000 or _ASSUMED_RAIL_GBS for r in rails) or (_ASSUMED_RAIL_GBS,)
        whole = tuple(costs.wire_share * gbs for gbs in nominal)
        left = tuple(gbs * max(_level(levels[rank], i) for rank in host.ranks) for i, gbs in enumerate(whole))
        full.append(whole)
        # A host without a rail waits for one to return: any bandwidth will do, but none is no bandwidth.
        now.append(left if any(left) else tuple(_NO_RAIL * gbs for gbs in whole))
    return ClusterShape(
        hosts=tuple(host.ranks for host in cluster.hosts),
        rail_gbs=tuple(now),
        full_gbs=tuple(full),
        cores=cores,
        chunk_bytes=config.chunk_bytes,
        alpha_shm_us=costs.alpha_shm_us,
        alpha_net_us=costs.alpha_net_us,
        overhead_shm_us=costs.overhead_shm_us,
        overhead_net_us=costs.overhead_net_us,
        shm_gbs=costs.shm_gbs,
    )


def _levels(cluster: Cluster, health: bytes) -> list[bytes]:
    """The health of each rank's rails; before anything is agreed what is down at the start is not usable."""
    health = health or bytes(rail.state != DOWN for info in cluster.ranks for rail in info.rails)
    levels, at = [], 0
    for info in cluster.ranks:
        levels.append(health[at : at + len(info.rails)])
        at += len(info.rails)
    return levels


def _level(levels: bytes, rail: int) -> float:
    return 0.0 if rail < len(levels) and levels[rail] == 0 else 1.0


def is_slow(health: bytes) -> bool:
    """Whether some rail was measured at less than 128 MB/s. The bytes: see SpeedClass in flow/rate.h."""
    return any(0 < level < _WHOLE for level in health)


@dataclass(frozen=True)
class Replanned:
    """A plan that was made for another state of the rails than that of the start."""

    time_ns: int
    epoch: int
    collective: Collective
    nbytes: int
    algorithm: str
    predicted_us: float


class Planner:
    """Makes the plan of a call; the core keeps it under the call's key."""

    def __init__(
        self, rank: int, cluster: Cluster, config: Config, cores: int, rails: int, costs: Costs | None = None
    ) -> None:
        """``cores``: of the weakest host; ``rails``: of the rank that has fewest; ``costs``: None for the defaults."""
        check_algorithm(config.algorithm)
        self.rank = rank
        self.config = config
        self.rails = max(1, rails)
        self._cluster = cluster
        self._cores = cores
        self.costs = costs
        self.shape = shape_of(cluster, config, cores, costs=costs)
        self.epoch = 0
        self.replanned: deque[Replanned] = deque(maxlen=256)
        self._slow_rails = False

    def renew(self, epoch: int, health: bytes) -> None:
        """From now on plans are for this state of the rails, on which all ranks have agreed (``shape_of``)."""
        self.epoch = epoch
        self._slow_rails = is_slow(health)
        if self.config.deterministic:
            return
        self.shape = shape_of(self._cluster, self.config, self._cores, health, self.costs)
        log.info("epoch %d: bandwidth of the hosts %s GB/s", epoch, [round(gbs, 3) for gbs in self.shape.host_gbs])

    def __call__(
        self, collective: int, dtype: int, op: int, nbytes: int, root: int, in_place: bool, given: bool, peer: int
    ) -> PlanEntry:
        """``nbytes``: of the main space, the power of two at or below it; ``given``: the counts differ between ranks."""
        kind, element = Collective(collective), DType(dtype)
        request = PlanRequest(
            collective=kind,
            nbytes=size_class(nbytes),
            itemsize=element.itemsize,
            wide=kind in _REDUCING and element.is_low_precision and ReduceOp(op) in _WIDE,
            in_place=bool(in_place),
            root=max(root, 0),
            v=bool(given),
            peer=peer,
        )
        plan = choose(request, self.shape, self.rank, self.config.algorithm, self.config.deterministic)
        chunk_bytes = self.chunk_bytes(request)
        log.debug("%s of %d bytes: %s, chunks of %d bytes", kind.name.lower(), nbytes, plan.algorithm, chunk_bytes)
        if self.epoch and peer < 0:
            shape = self.shape.undamaged if self.config.deterministic else self.shape
            us = costs_us(request, shape).get(plan.algorithm, 0.0)
            self.replanned.append(Replanned(time.time_ns(), self.epoch, kind, request.nbytes, plan.algorithm, us))
        return self.entry(plan, chunk_bytes)

    def explain(self, collective: Collective, nbytes: int) -> dict[str, Any]:
        """What each algorithm that applies should take, which one is chosen, and why."""
        request = PlanRequest(collective, size_class(nbytes))
        shape = self.shape.undamaged if self.config.deterministic else self.shape
        costs = costs_us(request, shape)
        chosen = pick(request, shape, self.config.algorithm).name
        if chosen == min(costs, key=lambda name: costs[name]):
            why = "the quickest by the cost model"
        elif self.config.algorithm:
            why = f"since algorithm={self.config.algorithm!r}"
        else:
            why = "as quick as any within the accuracy of the cost model, and it loads the damaged host's rails least"
        return {"chosen": chosen, "why": why, "predicted_us": costs, "host_gbs": shape.gbs}

    def entry(self, plan: Plan, chunk_bytes: int) -> PlanEntry:
        """The plan in the core's form."""
        return PlanEntry(plan, self.shape.nranks, chunk_bytes)

    def chunk_bytes(self, request: PlanRequest) -> int:
        """Upper limit of a chunk. Small enough that a message fills all rails and pipelines, large enough to be cheap.

        Depends only on what all ranks agree about.
        """
        cached = min(self.config.chunk_bytes, _CACHED_CHUNK_BYTES)
        if request.v or request.peer >= 0:  # the other rank's counts are not known here
            return cached if len(self.shape.hosts) == 1 else self.config.chunk_bytes
        if len(self.shape.hosts) == 1:
            pipelined = max(_SMALLEST_CACHED_CHUNK_BYTES, request.nbytes // 2)
            return min(cached, pipelined)
        per_rail = request.nbytes // (2 * self.rails * max(2, len(self.shape.hosts)))
        # Where a chunk takes long, what waits for the last one at the end of a call costs more than a few more calls.
        most = min(self.config.chunk_bytes, _SLOW_CHUNK_BYTES if self._slow_rails else self.config.chunk_bytes)
        if self._slow_rails:
            per_rail //= 2
        return min(most, max(_SMALLEST_CHUNK_BYTES, per_rail))
