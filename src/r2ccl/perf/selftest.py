"""``r2ccl-perf --selftest verbs``: the fault drill on the NICs that are there, without root.

While all ranks call ``all_reduce`` and compare every element, rank 0 moves the queue pairs of one rail after the other
to their error state, as a failing device does. Each rail must be given up, what was on it sent again, and the rail be in
use again. Rails that speak TCP are reset instead.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import Config, Event, EventKind
from ..testing import Fault, FaultScript, RankError, RankGroup
from . import values
from .launch import mpi_world
from .launcher import launcher

_MOST_RAILS = 64
_FIRST_MS, _EACH_MS = 1000, 2000
_BACK_S = 10.0  # how long the last rail may take to come back
_COUNT = 1 << 21  # elements of a call: chunks for every rail


def selftest(argv: Sequence[str]) -> int:
    """The exit status: 0 all rails passed, 1 one did not."""
    flags = _parse(argv)
    who = launcher(os.environ)
    if who == "alone":
        group = RankGroup(_drill, flags.ngpus, hosts=flags.hosts, rails=flags.rails, config=_config)
        try:
            with group:
                return int(group.join(timeout_s=None)[0])
        except RankError as error:
            print(f"r2ccl-perf: {error}", file=sys.stderr)
            return 1
    import r2ccl

    via: Any = None
    rank = int(os.environ.get("RANK", "0"))
    if who == "mpi":
        via = mpi_world()
        rank = via.rank
    with r2ccl.init(via, config=_config(rank)) as comm:
        return _drill(comm)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="r2ccl-perf", description="The fault drill: every rail fails once, and comes back."
    )
    p.add_argument("--selftest", choices=("verbs",), required=True, help="queue pairs are moved to their error state")
    p.add_argument("-g", "--ngpus", type=values.positive, default=2, metavar="RANKS", help="alone: local ranks")
    p.add_argument("--hosts", type=values.positive, default=2, help="alone: emulated hosts (%(default)s)")
    p.add_argument("--rails", type=values.count, default=2, help="alone: loopback rails (%(default)s)")
    return p.parse_args(argv)


def _config(rank: int) -> Config:
    config = Config.from_env()
    if rank != 0:
        return config
    faults = [Fault("device-error", rail, after_ms=_FIRST_MS + rail * _EACH_MS) for rail in range(_MOST_RAILS)]
    return config.with_(fault_script=str(FaultScript(tuple(faults))), log_level="error")


def _drill(comm: Any) -> int:
    names = [rail["name"] for rail in comm.stats()["rails"]]
    used = sorted({link["rail"] for link in comm.stats()["links"]} & set(names), key=names.index)
    if not used:
        if comm.rank == 0:
            print(
                "r2ccl-perf: no rail is in use: the drill needs ranks on several hosts, or R2CCL_SHM=0", file=sys.stderr
            )
        return 1
    struck_s = (_FIRST_MS + (names.index(used[-1]) + 1) * _EACH_MS) / 1e3
    wrong, events = _calls(comm, struck_s)
    return _report(comm, names, used, wrong, events) if comm.rank == 0 else 0


def _calls(comm: Any, least_s: float) -> tuple[int, list[Event]]:
    """Calls until every rail has failed and all are in use again; wrong elements of all ranks, this rank's events."""
    begin = time.monotonic()
    wrong = 0
    events: list[Event] = []
    array = np.empty(_COUNT, np.int32)
    base = np.arange(_COUNT, dtype=np.int32) % 1021
    with comm.register(array):
        while True:
            np.add(base, comm.rank, out=array)
            comm.all_reduce(array)
            wrong += int(np.count_nonzero(array != base * comm.size + sum(range(comm.size))))
            events += comm.events()
            passed_s = time.monotonic() - begin
            down = any(link["state"] != "up" for link in comm.stats()["links"])
            more = passed_s < least_s or (down and passed_s < least_s + _BACK_S)
            # Ranks end together, and learn of each other's wrong elements.
            both = np.array([int(more), wrong], np.int64)
            comm.all_reduce(both)
            if both[0] == 0:
                return int(both[1]), events


def _report(comm: Any, names: list[str], used: list[str], wrong: int, events: list[Event]) -> int:
    print(f"# {comm.size} ranks, {len(used)} rails; rank 0 moves the queue pairs of each to their error state")
    print(f"{'rail':16} {'noticed by':28} {'repaired ms':>11} {'back ms':>8}  verdict")
    failed = False
    for name in used:
        rail = names.index(name)
        mine = [e for e in events if e.rail == rail]
        suspect = next((e for e in mine if e.kind == EventKind.LINK_SUSPECT), None)
        repaired = next((e for e in mine if e.kind == EventKind.REPAIRED), None)
        up = next((e for e in mine if e.kind == EventKind.LINK_UP), None)
        passed = suspect is not None and repaired is not None and up is not None
        failed |= not passed
        how = str(suspect).partition("(")[2].rstrip(")") if suspect is not None else "nothing: it did not fail"
        ms = f"{repaired.value / 1e6:.1f}" if repaired is not None else "-"
        back = f"{(up.time_ns - suspect.time_ns) / 1e6:.0f}" if suspect is not None and up is not None else "-"
        print(f"{name:16} {how:28} {ms:>11} {back:>8}  {'passed' if passed else 'FAILED'}")
    print(f"# {wrong} wrong elements")
    return int(failed or wrong > 0)
