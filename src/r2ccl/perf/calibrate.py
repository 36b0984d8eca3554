"""``r2ccl-perf --calibrate FILE``: measures what messages and bytes cost here, for the choice of plans.

Two path classes: inside a host, and between hosts. One pair of ranks measures each while the others wait. What is not
there to be measured keeps its default, and what a further message costs is scaled with what the first one does. Rank 0
writes the file, which ``Config.costs`` (R2CCL_COSTS) names later.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..costs import ACROSS_HOSTS, ONE_HOST, Costs
from ..errors import InvalidArgument

_TURNS = 200  # of a ping-pong
_ROUNDS = 7
_WARM_UP = 2
_LEAST_US = 0.01
_COPY_BYTES = 16 << 20
_WIRE_BYTES = 32 << 20


def calibrate(comm: Any, path: str) -> Costs:
    """Every rank calls it; returns the costs, which rank 0 has written to ``path``.

    Raises InvalidArgument where there is nothing to measure, OSError when the file cannot be written.
    """
    if comm.size == 1:
        raise InvalidArgument("--calibrate measures between ranks: start two at least (-g 2, mpiexec, torchrun)")
    hosts = comm.hosts
    near = next((host[:2] for host in hosts if len(host) > 1), None)
    far = (hosts[0][0], hosts[1][0]) if len(hosts) > 1 else None
    base = ACROSS_HOSTS if far is not None else ONE_HOST
    found: dict[str, float] = {}
    if near is not None:
        found["alpha_shm_us"], found["shm_gbs"] = _pair(comm, near, _COPY_BYTES, both=False)
        found["overhead_shm_us"] = base.overhead_shm_us * found["alpha_shm_us"] / base.alpha_shm_us
    if far is not None:
        found["alpha_net_us"], gbs = _pair(comm, far, _WIRE_BYTES, both=True)
        found["overhead_net_us"] = base.overhead_net_us * found["alpha_net_us"] / base.alpha_net_us
        nominal = comm.explain("all_reduce", 8)["host_gbs"]
        found["wire_share"] = gbs / min(nominal[0], nominal[1])
    costs = dataclasses.replace(base, **found)
    if comm.rank == 0:
        Path(path).write_text(costs.to_json() + "\n", encoding="utf-8")
    comm.barrier()
    return costs


def _pair(comm: Any, pair: Sequence[int], nbytes: int, *, both: bool) -> tuple[float, float]:
    """Microseconds of one step between two ranks, and GB/s of long messages (in each direction if ``both``).

    A step is what an all_reduce of two ranks takes beyond one of a single rank.
    """
    measured = np.zeros(2)
    mine = comm.rank in pair
    alone = comm.split(comm.rank if mine else None)
    together = comm.split(0 if mine else None)
    if together is not None:
        with alone, together:
            measured[:] = max(_LEAST_US, _call_us(together) - _call_us(alone)), _stream(together, nbytes, both=both)
    comm.broadcast(measured, root=pair[0])
    return float(measured[0]), float(measured[1])


def _call_us(comm: Any) -> float:
    """Of the smallest all_reduce."""
    value = np.zeros(1)
    rounds = []
    for _ in range(_ROUNDS):
        comm.barrier()
        start = time.perf_counter()
        for _ in range(_TURNS):
            comm.all_reduce(value)
        rounds.append((time.perf_counter() - start) * 1e6 / _TURNS)
    return statistics.median(rounds)


def _stream(comm: Any, nbytes: int, *, both: bool) -> float:
    """GB/s of long messages from rank 0 to rank 1 of two, in each direction if ``both``; the first ones warm up."""
    out, into = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)  # pages of their own
    other = 1 - comm.rank
    rates = []
    for _ in range(_WARM_UP + _ROUNDS):
        comm.barrier()
        start = time.perf_counter()
        works = []
        if both or comm.rank == 0:
            works.append(comm.send(out, other, async_op=True))
        if both or comm.rank == 1:
            works.append(comm.recv(into, other, async_op=True))
        for work in works:
            work.wait()
        rates.append(nbytes / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates[_WARM_UP:])
