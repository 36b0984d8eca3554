"""k NICs fail at random among those of n servers: how much slower the all-reduce, and the job, become."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from ..errors import InvalidArgument
from .cluster import Cluster
from .collective import collective_s
from .training import Job


@dataclass(frozen=True)
class Spread:
    """Of one quantity over all draws, as fractions above the healthy time."""

    mean: float
    median: float
    p95: float
    worst: float


def patterns(cluster: Cluster, failures: int, draws: int, seed: int) -> Counter[tuple[int, ...]]:
    """How often each pattern came: the NICs lost by each damaged server, most first. A draw that silences one is repeated."""
    if failures > cluster.servers * (cluster.nics - 1):
        raise InvalidArgument(f"{failures} failures: {cluster.servers} servers of {cluster.nics} NICs keep one each")
    rng = random.Random(seed)
    nics = [server for server in range(cluster.servers) for _ in range(cluster.nics)]
    found: Counter[tuple[int, ...]] = Counter()
    while sum(found.values()) < draws:
        hit = sorted(Counter(rng.sample(nics, failures)).values(), reverse=True)
        if not hit or hit[0] < cluster.nics:
            found[tuple(hit)] += 1
    return found


def all_reduce_spread(
    cluster: Cluster, nbytes: float, method: str, found: Counter[tuple[int, ...]], steps: int
) -> Spread:
    """Of the time of one all-reduce."""
    healthy = collective_s(cluster, (0,) * cluster.servers, nbytes, method, steps=steps).seconds
    extra = {
        hit: collective_s(cluster, cluster.lost_of(dict(enumerate(hit))), nbytes, method, steps=steps).seconds / healthy
        - 1
        for hit in found
    }
    return spread(extra, found)


def job_spread(job: Job, method: str, found: Counter[tuple[int, ...]]) -> Spread:
    """Of the time per token of a job."""
    return spread({hit: job.extra(method, dict(enumerate(hit))) for hit in found}, found)


def spread(value: dict[tuple[int, ...], float], times: Counter[tuple[int, ...]]) -> Spread:
    """Statistics of values that came so many times each."""
    every = sorted(value[hit] for hit, number in times.items() for _ in range(number))
    return Spread(sum(every) / len(every), every[len(every) // 2], every[int(0.95 * len(every))], every[-1])
