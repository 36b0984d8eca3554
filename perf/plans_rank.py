"""A rank of ``perf/plans.py``: times an all_reduce before and after a loss of rails, and checks what it gives.

Rank 0 prints ``healthy`` when the first part is over: the faults follow that line. The second part begins when the
agreement on the loss has come and a second has passed. One line of JSON from rank 0 at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

import r2ccl
from r2ccl.observe.events import EventKind

_SETTLE_S = 1.0
_PATIENCE_S = 20.0


class Timer:
    """The same call again and again; the time of a call is that of its slowest rank."""

    def __init__(self, comm: r2ccl.Communicator, nbytes: int) -> None:
        self.comm = comm
        self.send = np.full(nbytes // 4, comm.rank + 1, np.float32)
        self.recv = np.empty_like(self.send)
        self.total = comm.size * (comm.size + 1) // 2
        self.wrong = 0
        self.plan = ""

    def once(self) -> float:
        """Seconds of one call."""
        self.recv.fill(-1)
        self.comm.barrier()
        begin = time.perf_counter()
        work = self.comm.all_reduce(self.send, self.recv)
        slowest = np.array([time.perf_counter() - begin])
        self.plan = work.plan
        self.wrong += int(np.count_nonzero(self.recv != self.total))
        self.comm.all_reduce(slowest, op=r2ccl.ReduceOp.MAX)
        return float(slowest[0])

    def median(self, n: int) -> float:
        """Of n calls."""
        return statistics.median(self.once() for _ in range(n))


def agreed_loss(comm: r2ccl.Communicator) -> bool:
    """Whether all ranks know by now that rails are down."""
    return any(e.kind == EventKind.EPOCH and e.rails_down for e in comm.events())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("-n", type=int, default=7)
    parser.add_argument("--lossless", action="store_true", help="only the first part")
    options = parser.parse_args()
    with r2ccl.init() as comm:
        timer = Timer(comm, options.bytes)
        for _ in range(2):
            timer.once()
        healthy = timer.median(options.n)
        record = {"healthy_s": healthy, "healthy_plan": timer.plan}
        if not options.lossless:
            if comm.rank == 0:
                print("healthy", flush=True)
            deadline = time.monotonic() + _PATIENCE_S
            known = np.zeros(1, np.int32)
            while not known[0] and time.monotonic() < deadline:
                timer.once()
                known[0] |= agreed_loss(comm)
                comm.all_reduce(known, op=r2ccl.ReduceOp.MAX)
            begin = time.monotonic()
            over = np.zeros(1)
            while over[0] < _SETTLE_S:
                timer.once()
                over[0] = time.monotonic() - begin
                comm.broadcast(over)
            record["degraded_s"] = timer.median(options.n)
            record["plan"] = timer.plan
        wrong = np.array([timer.wrong])
        comm.all_reduce(wrong)
        if comm.rank == 0:
            print(json.dumps({**record, "wrong": int(wrong[0])}), flush=True)


if __name__ == "__main__":
    main()
