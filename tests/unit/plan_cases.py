"""Cases that the tests of plans share: every algorithm, and ways to spread ranks over hosts."""

from __future__ import annotations

import numpy as np

from r2ccl.plan.algorithms import ALGORITHMS, Algorithm
from r2ccl.plan.ir import DEP, OP, Plan
from r2ccl.plan.task import REDUCING, ROOTED, Task
from r2ccl.types import Collective

EVERY = [
    (c, a) for c, algorithms in ALGORITHMS.items() for a in algorithms if c not in (Collective.SEND, Collective.RECV)
]
NAMES = [f"{c.name.lower()}-{a.name}" for c, a in EVERY]


def hostings(n: int) -> list[tuple[tuple[int, ...], ...]]:
    """n ranks on one host, one each, unevenly, and dealt in turn."""
    every = tuple(range(n))
    out = [(), (every,), tuple((r,) for r in every)]
    if n > 1:
        out += [(every[:1], every[1:]), (every[::2], every[1::2])]
    if n > 4:
        out += [(every[:2], every[2:3], every[3:]), (every[3:], every[:3])]
    if n > 5:
        out += [(every[:3], every[3:5], every[5:])]
    return out


def plans_of(algorithm: Algorithm, collective: Collective, n: int, **more: object) -> list[Plan]:
    """The plans of all ranks."""
    return [algorithm.build(Task(collective, n, r, **more)) for r in range(n)]  # type: ignore[arg-type]


def applies(algorithm: Algorithm, n: int) -> bool:
    """Whether it takes n ranks, whatever the hosts (hierarchical plans must be right on one host, too)."""
    return not algorithm.max_ranks or n <= algorithm.max_ranks


def wides(collective: Collective) -> tuple[bool, ...]:
    return (False, True) if collective in REDUCING else (False,)


def places(collective: Collective) -> tuple[bool, ...]:
    return (False,) if collective is Collective.ALL_TO_ALL else (False, True)


def roots(collective: Collective, n: int) -> range:
    return range(n) if collective in ROOTED else range(1)


def changed(plan: Plan, ops: np.ndarray, deps: list[list[tuple[int, int]]]) -> Plan:
    """The same plan with other ops; deps[i] are those of ops[i]."""
    from dataclasses import replace

    ops = ops.astype(OP)
    counts = np.array([len(d) for d in deps], np.uint32)
    ops["dep_count"] = counts
    ops["dep_first"] = np.cumsum(counts) - counts
    return replace(plan, ops=ops, deps=np.array([pair for d in deps for pair in d], DEP))
