"""A rank of the soak: calls by chance until time is up, then peace; a report as JSON on standard output.

What the process holds (memory, descriptors, threads) is read every second or so. Exit status: 0, or 3 when a call
raised an error of r2ccl or gave wrong elements (the report says which).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, deque
from typing import Any

import numpy as np
from soak_calls import Caller, draw

import r2ccl

CHECK_EVERY = 8  # calls between questions whether it is over
SAMPLE_S = 0.5
KEPT_EVENTS = 600
PEACE_S = 40.0  # for all links to come back at the end: the longest probation is 10 s, for each end
FREEZE_EVERY_S = 15.0
FREEZE_S = 0.7
_LIBC = ctypes.CDLL(None)


def holdings() -> dict[str, int]:
    """Resident memory in KiB, descriptors, threads and mappings of memfds of this process.

    What the allocator keeps of freed memory is given back first: it is no growth.
    """
    if (trim := getattr(_LIBC, "malloc_trim", None)) is not None:
        trim(0)
    with open("/proc/self/statm") as statm:
        rss_kib = int(statm.read().split()[1]) * (os.sysconf("SC_PAGE_SIZE") // 1024)
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:" in line for line in maps)
    descriptors = len(os.listdir("/proc/self/fd")) - 1  # the listing's own
    return {
        "rss_kib": rss_kib,
        "descriptors": descriptors,
        "threads": len(os.listdir("/proc/self/task")),
        "shared": shared,
    }


class Soak:
    """One rank's run and its report."""

    def __init__(self, options: argparse.Namespace, comm: r2ccl.Communicator) -> None:
        self.options, self.comm = options, comm
        self.caller = Caller(comm, options.max_bytes, options.falsify if comm.rank == 1 else -1)
        self.begin = time.monotonic()
        self.chance = random.Random(f"rank {comm.rank} of {options.seed}")
        self.events: deque[str] = deque(maxlen=KEPT_EVENTS)
        self.kinds: Counter[str] = Counter()
        self.samples: list[dict[str, Any]] = []
        self.longest = (0.0, "")
        self.freezer: subprocess.Popen[bytes] | None = None
        self.frozen = 0
        self.next_freeze_s = self.chance.expovariate(1 / FREEZE_EVERY_S) + 3

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begin

    def run(self) -> None:
        """Calls until rank 0 has had enough."""
        number, over = 0, np.zeros(1, np.int32)
        while not over[0]:
            for _ in range(CHECK_EVERY):
                call = draw(self.options.seed, number, self.comm.size, self.options.max_bytes)
                number += 1
                self._rest()
                begin = time.monotonic()
                self.caller.make(call)
                self.longest = max(self.longest, (time.monotonic() - begin, f"{call} at {begin - self.begin:.1f} s"))
            self._look()
            over[0] = self.comm.rank == 0 and self.elapsed_s > self.options.seconds
            self.comm.broadcast(over, root=0)

    def peace(self) -> bool:
        """Small calls until every link of every rank is up; False when that does not come about."""
        deadline = time.monotonic() + PEACE_S
        down = np.zeros(2, np.int32)
        while True:
            self._look()
            down[0] = sum(link["state"] != "up" for link in self.comm.stats()["links"])
            down[1] = time.monotonic() > deadline
            self.comm.all_reduce(down)
            if down[0] == 0 or down[1]:
                return bool(down[0] == 0)
            time.sleep(0.1)

    def report(self) -> dict[str, Any]:
        """Everything that the driver wants to know."""
        self._look(force=True)
        stats = self.comm.stats()
        return {
            "rank": self.comm.rank,
            "calls": dict(self.caller.done),
            "elements": self.caller.elements,
            "wrong": self.caller.wrong,
            "first_wrong": self.caller.first_wrong,
            "longest": self.longest,
            "frozen": self.frozen,
            "kinds": dict(self.kinds),
            "events": list(self.events),
            "samples": self.samples,
            "links": [[li["peer"], li["rail"], li["state"], li["tx_bytes"], li["rx_bytes"]] for li in stats["links"]],
            **{
                k: stats[k]
                for k in ("replayed_chunks", "repairs", "duplicate_chunks", "hedged_chunks", "refused_frames")
            },
        }

    def _rest(self) -> None:
        """Now and then a rank computes for a while, or is stopped, so that ranks are in different calls."""
        if self.chance.random() < 0.2:
            time.sleep(self.chance.uniform(0, 0.02))
        if self.freezer is not None and self.freezer.poll() is not None:
            self.freezer = None
        if (
            self.options.freeze
            and self.freezer is None
            and self.next_freeze_s < self.elapsed_s < self.options.seconds - 2
        ):
            hold_s = self.chance.uniform(0.05, FREEZE_S)
            command = f"sleep 0.01; kill -STOP $PPID; sleep {hold_s:.3f}; kill -CONT $PPID"
            self.freezer = subprocess.Popen(["sh", "-c", command], stdin=subprocess.DEVNULL)
            self.frozen += 1
            self.next_freeze_s = self.elapsed_s + self.chance.expovariate(1 / FREEZE_EVERY_S)

    def _look(self, force: bool = False) -> None:
        """Takes events and, from time to time, a sample of what the process holds."""
        for event in self.comm.events():
            self.kinds[event.kind.name] += 1
            self.events.append(f"{event.time_ns / 1e9:.4f} {event}")
        if force or not self.samples or self.elapsed_s - self.samples[-1]["at_s"] > SAMPLE_S:
            if self.freezer is not None and (force or self.freezer.poll() is not None):
                self.freezer.wait()
                self.freezer = None
            stats = self.comm.stats()
            down = sum(link["state"] != "up" for link in stats["links"])
            pools_kib = stats["staging_bytes"] >> 10
            self.samples.append({"at_s": round(self.elapsed_s, 2), "down": down, "pools_kib": pools_kib, **holdings()})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--max-bytes", type=int, default=2 << 20)
    parser.add_argument("--freeze", action="store_true", help="stop the process for a moment now and then")
    parser.add_argument("--falsify", type=int, default=-1)
    options = parser.parse_args()
    before = holdings()
    comm = r2ccl.init()
    soak = Soak(options, comm)
    status, error, peace = 0, "", False
    try:
        soak.run()
        peace = soak.peace()
        comm.barrier()
    except r2ccl.R2cclError as e:
        status, error = 3, f"{type(e).__name__}: {e}"
    report = soak.report()
    if not error:
        time.sleep(0.2)  # nobody closes while others still look
    comm.close()
    after, deadline = holdings(), time.monotonic() + 2.0
    while after["threads"] > before["threads"] and time.monotonic() < deadline:
        time.sleep(0.01)
        after = holdings()
    leaked = {k: [before[k], after[k]] for k in ("descriptors", "threads", "shared") if before[k] != after[k]}
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({**report, "error": error, "peace": peace, "leaked": leaked}), flush=True)
    return status or (3 if report["wrong"] or not peace else 0)


if __name__ == "__main__":
    sys.exit(main())
