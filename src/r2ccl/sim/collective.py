"""How long one collective takes on a modelled cluster, by method: the method's plan, carried by ``fluid``.

The GPUs of a server each speak for one column of the data, all columns alike, so one column is simulated: a rank a server,
1/gpus of the server's bandwidth. What moves inside the server is added before and after, as if nothing overlapped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..plan import optcc, partial_rings
from ..plan.algorithms import ALGORITHMS, Algorithm
from ..plan.select import PlanRequest, pick
from ..plan.shape import ClusterShape
from ..plan.task import Task
from ..types import Collective
from .cluster import Cluster
from .fluid import Net, simulate
from .messages import Local, gather, local_of

MOST_PLANNED = 16  # servers: above, the published algorithms of long paths take their closed form, without end effects
HBM_GBS = 1000.0  # what a GPU copies and reduces, for the choice among algorithms
TURNS = ("ring", "hierarchical")  # plans that look alike from all ranks when each server has one


@dataclass(frozen=True)
class Timing:
    """seconds of the call; algorithm; how it was obtained: ``flows`` (simulated plan) or ``formula``."""

    seconds: float
    algorithm: str
    how: str


class Method(NamedTuple):
    """algorithm: empty for the library's own choice. backups: each lost NIC has one other that carries its load, too.

    paced: see ``fluid.Net``; None: as the plan asks for.
    """

    algorithm: str
    backups: bool = False
    paced: bool | None = None


METHODS = {
    "hot_repair": Method("ring", backups=True),
    "balance": Method("ring"),
    "r2ccl_allreduce": Method("r2ccl_allreduce"),
    "optcc": Method("optcc"),
    "tree_packing": Method("tree_packing"),
    "unpaced_packing": Method("tree_packing", paced=False),
    "r2ccl": Method(""),
}


@lru_cache(maxsize=4096)
def collective_s(
    cluster: Cluster,
    lost: tuple[int, ...],
    nbytes: float,
    method: str = "r2ccl",
    collective: Collective = Collective.ALL_REDUCE,
    local: int = 0,
    steps: int = 1500,
) -> Timing:
    """Time of one call over ``len(lost)`` servers.

    lost: NICs lost by each, see ``Cluster.lost_of``. nbytes: of each GPU's buffer. local: GPUs of a server that take part
    together (0: all); the other GPUs run groups of their own at the same time. steps: of the simulation, at most.
    """
    local = local or cluster.gpus
    inside = _inside_s(cluster, nbytes, local, collective)
    if len(lost) < 2:
        return Timing(inside, "inside", "formula")
    how = METHODS[method]
    share = cluster.share_on_backups if how.backups else cluster.share_left
    column = cluster.server_gbs / cluster.gpus
    gbs = tuple(column * share(k) for k in lost)
    algorithm = _algorithm(cluster, how.algorithm, gbs, int(nbytes / local), collective)
    time = _across(cluster, algorithm, gbs, int(nbytes / local), collective, steps, how.paced)
    # The columns whose NIC is gone reach another one through its GPU, chunk by chunk beside the transfer itself.
    detour = 2 * nbytes / local / (cluster.inside_gbs * 1e9) if max(lost) else 0.0
    return Timing(max(time.seconds, detour) + inside, time.algorithm, time.how)


def ideal_s(method: str, gbs: tuple[float, ...], nbytes: float) -> float | None:
    """What a published algorithm takes in closed form, without latency and end effects; None where it has none here."""
    times: dict[str, Callable[[tuple[float, ...]], float]] = {
        "r2ccl_allreduce": partial_rings.time,
        "optcc": optcc.time,
    }
    return times[method](gbs) * nbytes / 1e9 if method in times and len(gbs) > 2 else None


def p2p_s(cluster: Cluster, lost: int, nbytes: float, method: str = "r2ccl") -> float:
    """Time of a message of one server to another, all its GPUs sending a part."""
    left = cluster.share_on_backups(lost) if METHODS[method].backups else cluster.share_left(lost)
    return cluster.alpha_us * 1e-6 + nbytes / (cluster.server_gbs * left * 1e9)


def _inside_s(cluster: Cluster, nbytes: float, local: int, collective: Collective) -> float:
    """Reduce-scatter before and all-gather after, or one of them; directly between the GPUs of a server."""
    if local < 2:
        return 0.0
    phases = 2 if collective is Collective.ALL_REDUCE else 1
    return phases * ((local - 1) / local * nbytes / (cluster.inside_gbs * 1e9) + cluster.alpha_inside_us * 1e-6)


def shape_of(cluster: Cluster, gbs: tuple[float, ...]) -> ClusterShape:
    """One column of the cluster as the planner sees it: a rank a server."""
    return ClusterShape(
        tuple((h,) for h in range(len(gbs))),
        host_gbs=gbs,
        alpha_net_us=cluster.alpha_us,
        overhead_net_us=0.1 * cluster.alpha_us,
        shm_gbs=HBM_GBS,
        chunk_bytes=cluster.chunk_bytes,
    )


def _algorithm(cluster: Cluster, name: str, gbs: tuple[float, ...], nbytes: int, collective: Collective) -> Algorithm:
    """The one of this name, or the choice; a ring where three servers would be needed."""
    shape = shape_of(cluster, gbs)
    if not name:
        return pick(PlanRequest(collective, max(1, nbytes)), shape)
    named = {a.name: a for a in ALGORITHMS[collective]}
    able = name in named and named[name].applies(shape.nranks, len(gbs), False)
    return named[name if able else "ring"]


def _across(
    cluster: Cluster,
    algorithm: Algorithm,
    gbs: tuple[float, ...],
    nbytes: int,
    collective: Collective,
    steps: int,
    paced: bool | None,
) -> Timing:
    n = len(gbs)
    ideal = ideal_s(algorithm.name, gbs, nbytes)
    if n > MOST_PLANNED and ideal is not None:
        return Timing(ideal + 2 * n * cluster.alpha_us * 1e-6, algorithm.name, "formula")
    if paced is None:
        paced = algorithm.build(_task(0, gbs, collective)).paced
    net = Net(tuple(range(n)), gbs, cluster.inside_gbs, cluster.alpha_us, cluster.chunk_bytes, paced)
    outcome = simulate(gather(locals_of(algorithm, gbs, nbytes, collective)), net, steps)
    return Timing(outcome.seconds, algorithm.name, "flows")


def locals_of(
    algorithm: Algorithm, gbs: tuple[float, ...], nbytes: int, collective: Collective = Collective.ALL_REDUCE
) -> list[Local]:
    """The messages of each of ``len(gbs)`` ranks, one a host."""
    n = len(gbs)

    def plan(rank: int) -> Local:
        return local_of(algorithm.build(_task(rank, gbs, collective)), nbytes)

    if algorithm.name in TURNS:
        first = plan(0)
        return [first.turned(rank, n) for rank in range(n)]
    return [plan(rank) for rank in range(n)]


def _task(rank: int, gbs: tuple[float, ...], collective: Collective) -> Task:
    """One rank a host."""
    return Task(collective, len(gbs), rank, hosts=tuple((h,) for h in range(len(gbs))), host_gbs=gbs)
