"""How the time to simulate grows with the number of servers, and how good the simulation is against the lower bound."""

from __future__ import annotations

import time

from ..plan.algorithms import ALGORITHMS
from ..plan.bounds import connected_bound
from ..plan.select import PlanRequest, pick
from ..types import Collective
from .cluster import Cluster
from .collective import locals_of, shape_of
from .fluid import Net, simulate
from .messages import gather
from .tables import Cell, Table

SIZES = (4, 16, 64, 256, 1024)
BYTES = 1 << 30  # of each GPU's buffer


def scale(sizes: tuple[int, ...] = SIZES, nbytes: int = BYTES) -> Table:
    """One all-reduce with one of 8 NICs lost, on ever more servers: the library's choice, and a ring (Balance)."""
    rows: list[tuple[Cell, ...]] = []
    for n in sizes:
        cluster = Cluster(n, 8, 8, 50.0, 450.0)
        gbs = tuple(cluster.nic_gbs * cluster.share_left(k) for k in cluster.lost_of({0: 1}))
        column = nbytes // cluster.gpus
        best = pick(PlanRequest(Collective.ALL_REDUCE, column), shape_of(cluster, gbs)).name
        for name in (best, "ring"):
            algorithm = next(a for a in ALGORITHMS[Collective.ALL_REDUCE] if a.name == name)
            began = time.perf_counter()
            messages = gather(locals_of(algorithm, gbs, column))
            planned = time.perf_counter()
            net = Net(tuple(range(n)), gbs, cluster.inside_gbs, cluster.alpha_us, cluster.chunk_bytes)
            outcome = simulate(messages, net)
            ended = time.perf_counter()
            bound = connected_bound(gbs) * column / 1e9
            size = (len(messages.size), outcome.steps)
            rows.append((n, name, *size, 1e3 * outcome.seconds, 1e3 * bound, planned - began, ended - planned))
    columns = ("servers", "algorithm", "messages", "steps", "ms", "bound ms", "plans s", "simulation s")
    notes = (
        f"{nbytes >> 20} MiB on each of 8 GPUs a server, one of 8 NICs of server 0 lost; between servers, one column",
    )
    return Table("scale", "time to simulate one all-reduce", columns, tuple(rows), "simulation s", notes)
