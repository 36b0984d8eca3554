"""How fast an all-reduce can be at best: the yardstick of the planner, in tests and explanations. Not used to plan.

Hosts may combine partial sums, the network does not. docs/planner.md derives both bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..errors import InvalidArgument
from .shape import ClusterShape

MOST_HOSTS = 12  # of the linear program, which has a row for every set of hosts


def all_reduce_bound_s(shape: ClusterShape, nbytes: float) -> float:
    """Seconds that an all-reduce of ``nbytes`` takes at least. Rail-separated fabrics: solves a linear program (SciPy)."""
    if len(shape.hosts) == 1:
        return 0.0
    if shape.connected or not shape.rail_gbs:
        return connected_bound(shape.gbs) * nbytes / 1e9
    return separated_bound(shape.rail_gbs) * nbytes / 1e9


def connected_bound(gbs: Sequence[float]) -> float:
    """Least time in units of data / bandwidth where every rail reaches every other.

    Each host sends and receives the data at least once; all hosts together send them 2 (n - 1) times.
    """
    return max(1 / min(gbs), 2 * (len(gbs) - 1) / sum(gbs)) if len(gbs) > 1 else 0.0


def separated_bound(rail_gbs: Sequence[Sequence[float]]) -> float:
    """Least time in units of data / bandwidth where rail i of a host reaches only rail i of the others.

    Minimises T over all mixtures x of spanning trees whose edges are dealt to rails: sum_j x[i, j, r] <= b[i, r] T.
    A mixture is a point of the spanning tree polytope (Edmonds 1971): x(all) = n - 1, x(within S) <= |S| - 1.
    Raises InvalidArgument where the healthy rails do not connect all hosts, or there are more than ``MOST_HOSTS``.
    """
    from scipy.optimize import linprog

    n = len(rail_gbs)
    if n > MOST_HOSTS:
        raise InvalidArgument(f"{n} hosts: the linear program takes at most {MOST_HOSTS}; use connected_bound")
    edges = [
        (i, j, r)
        for i, j in combinations(range(n), 2)
        for r, (a, b) in enumerate(zip(rail_gbs[i], rail_gbs[j], strict=True))
        if a > 0 and b > 0
    ]
    rows, limits = [], []
    for i in range(n):
        for r, speed in enumerate(rail_gbs[i]):
            row = [float(r == e[2] and i in e[:2]) for e in edges]
            rows.append([*row, -speed])
            limits.append(0.0)
    for size in range(2, n):
        for inside in combinations(range(n), size):
            rows.append([*(float(e[0] in inside and e[1] in inside) for e in edges), 0.0])
            limits.append(size - 1.0)
    found = linprog(
        np.array([*([0.0] * len(edges)), 1.0]),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.array([[1.0] * len(edges) + [0.0]]),
        b_eq=np.array([n - 1.0]),
        method="highs",
    )
    if found.status != 0:
        raise InvalidArgument(f"rail_gbs = {rail_gbs}: the healthy rails do not connect all hosts: {found.message}")
    return float(found.x[-1])
