"""A rank that calls all_reduce until its plan has changed and is the first one again; prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

import r2ccl

PATIENCE_S = 25.0


def main() -> int:
    with r2ccl.init() as comm:
        send = np.full(2 << 20, comm.rank + 1, np.float32)
        plans: list[str] = []
        events: list[r2ccl.Event] = []
        wrong, calls = 0, 0
        over = np.zeros(1, np.int32)
        deadline = time.monotonic() + PATIENCE_S
        while not over[0]:
            recv = np.zeros_like(send)
            work = comm.all_reduce(send, recv)
            wrong += int(np.count_nonzero(recv != comm.size * (comm.size + 1) // 2))
            if plans[-1:] != [work.plan]:
                plans.append(work.plan)
            calls += 1
            if comm.rank == 0:
                print(f"call {calls}", flush=True)
            events += comm.events()
            over[0] = comm.rank == 0 and (len(plans) >= 3 or time.monotonic() > deadline)
            comm.broadcast(over)
        told = [[e.kind.name, e.evidence, e.value, e.rails_down] for e in events if e.kind.name in ("EPOCH", "PLAN")]
        print(json.dumps({"rank": comm.rank, "plans": plans, "events": told, "wrong": wrong}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
