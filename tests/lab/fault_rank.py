"""A rank for fault tests on the emulated cluster: repeated collectives, every result compared, a report as JSON.

Standard output: from rank 0 ``iteration N`` before and ``inside N`` in the middle of the all_reduce of iteration N, for
faults with ``on=``; from every rank one line of JSON at the end. The data of iteration i is that of ``i % PERIOD``, so
the first iterations, before any cut, are the run without failure that later ones must equal bit for bit. Rank 0 decides
when it is over and tells the others with every iteration.

Exit status: 0, or 3 when a call raised an error of r2ccl (the report says which).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from typing import Any

import numpy as np

import r2ccl

PERIOD = 2
LEAVE_S = 0.2  # so that everybody has looked before anybody closes
INSIDE_S = 0.02  # an all_reduce of 4 MiB takes some 100 ms on rails of 400 Mbit/s in all


def holdings() -> dict[str, Any]:
    """Descriptors and what they are, number of threads, mappings of memfds."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            descriptors.append([name, os.readlink(f"/proc/self/fd/{name}")])
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:" in line for line in maps)
    return {"descriptors": sorted(descriptors), "threads": len(os.listdir("/proc/self/task")), "shared": shared}


def noise(rank: int, count: int, salt: int) -> np.ndarray[Any, Any]:
    """Random float32 of both signs and very different sizes."""
    bits = np.random.default_rng([rank, salt]).integers(0, 1 << 32, count, np.uint32)
    bits &= np.uint32(0x87FFFFFF)
    bits |= np.uint32(0x38000000)
    return bits.view(np.float32)


class Rank:
    """One rank's run."""

    def __init__(self, options: argparse.Namespace, comm: r2ccl.Communicator) -> None:
        self.comm = comm
        self.options = options
        self.count = options.bytes // 4
        self.clean: dict[int, list[bytes]] = {}
        self.report: dict[str, Any] = {"rank": comm.rank, "iterations": 0, "compared": 0, "wrong": 0, "slowest_s": 0.0}
        self.events: list[r2ccl.Event] = []

    def iteration(self, i: int) -> None:
        """all_reduce and all_gather, compared with the first time that these data were used."""
        salt = i % PERIOD
        block = self.count // self.comm.size
        reduced, gathered = noise(self.comm.rank, self.count, salt), np.full(block * self.comm.size, np.nan, np.float32)
        begin = time.monotonic()
        work = self.comm.all_reduce(reduced, async_op=True)
        if self.comm.rank == 0:
            time.sleep(INSIDE_S)
            print(f"inside {i}", flush=True)
        work.wait()
        self.comm.all_gather(noise(self.comm.rank, block, salt), gathered)
        self.report["slowest_s"] = max(self.report["slowest_s"], time.monotonic() - begin)
        if i == self.options.corrupt and self.comm.rank == 1:
            reduced.view(np.uint32)[0] ^= 1
        results = [reduced.tobytes(), gathered.tobytes()]
        if i < PERIOD:
            self.clean[salt] = results
            expected = np.concatenate([noise(r, block, salt) for r in range(self.comm.size)])
            self.report["wrong"] += expected.tobytes() != results[1]
        else:
            self.report["compared"] += len(results)
            self.report["wrong"] += sum(a != b for a, b in zip(results, self.clean[salt], strict=True))
        self.report["iterations"] = i + 1
        self.events += self.comm.events()

    def run(self) -> None:
        """Iterations until rank 0 has had enough: at least so many, and so many seconds after the first cut."""
        i, over = 0, np.zeros(1, np.int32)
        cut_s = None
        while not over[0]:
            if self.comm.rank == 0:
                print(f"iteration {i}", flush=True)
                if i == self.options.cut_at:
                    cut_s = time.monotonic()
            if i and self.options.pause:
                time.sleep(self.options.pause)
            self.iteration(i)
            i += 1
            enough = cut_s is not None and time.monotonic() - cut_s >= self.options.seconds
            over[0] = self.comm.rank == 0 and i >= self.options.iterations and enough
            self.comm.broadcast(over, root=0)

    def look(self) -> None:
        """Notes counters and events."""
        stats = self.comm.stats()
        self.events += self.comm.events()
        self.report.update(
            events=[[e.kind.name, e.peer, e.rail, e.cause.name, e.value, e.verdict.name] for e in self.events],
            epoch=self.comm.epoch,
            links=[[li["peer"], li["rail"], li["state"], li["tx_bytes"], li["rx_bytes"]] for li in stats["links"]],
            replayed=stats["replayed_chunks"],
            repairs=stats["repairs"],
            staging=stats["staging_bytes"],
            relayed=stats["relayed_chunks"],
            forwarded=stats["forwarded_chunks"],
        )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=4 << 20)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.9, help="at least so long after iteration --cut-at")
    parser.add_argument("--cut-at", type=int, default=3, help="the iteration in which the first fault strikes")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of idleness before each iteration")
    parser.add_argument("--late", type=float, default=0.0, help="seconds that all ranks but 0 start later")
    parser.add_argument("--corrupt", type=int, default=-1, help="iteration whose result rank 1 falsifies")
    options = parser.parse_args()
    before = holdings()
    if os.environ["RANK"] != "0":
        time.sleep(options.late)
    begin = time.monotonic()
    comm = r2ccl.init()
    rank = Rank(options, comm)
    rank.report["init_s"] = time.monotonic() - begin
    begin = time.monotonic()
    status = 0
    try:
        rank.run()
        comm.barrier()
    except r2ccl.R2cclError as error:
        rank.report["error"] = [type(error).__name__, str(error)]
        status = 3
    rank.report["elapsed_s"] = time.monotonic() - begin
    rank.look()
    time.sleep(LEAVE_S)
    begin = time.monotonic()
    comm.close()
    rank.report["close_s"] = time.monotonic() - begin
    after, deadline = holdings(), time.monotonic() + 1.0
    while after["threads"] > before["threads"] and time.monotonic() < deadline:
        time.sleep(0.01)
        after = holdings()
    rank.report["leaked"] = {k: [before[k], after[k]] for k in before if before[k] != after[k]}
    print(json.dumps(rank.report), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
