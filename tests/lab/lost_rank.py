"""A rank of test_lab_lost_ranks.py: collectives until one of the ranks ends itself; then shrink and go on. Reports as JSON."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import r2ccl

FIRST_ROUNDS, ROUNDS_AFTER = 20, 5


def play(comm: r2ccl.Communicator, options: argparse.Namespace, died: Path) -> str:
    """Until this rank ends or learns of the end of another; what it learnt."""
    x, y = np.ones(options.bytes // 4, np.float32), np.empty(options.bytes // 4, np.float32)
    begin = time.monotonic()
    announced = False
    over = np.zeros(1, np.int32)
    rounds = 0
    try:
        while time.monotonic() - begin < 25.0:
            elapsed = time.monotonic() - begin
            if not announced and elapsed > 0.5:
                print("under way", flush=True)
                announced = True
            rounds += 1
            if options.mode == "idle" and rounds > FIRST_ROUNDS:
                comm.check()  # calls nothing else
                time.sleep(0.002)
            elif options.mode == "apart" and rounds > FIRST_ROUNDS:
                # Ranks 0 and 1 exchange messages, and have nothing to do with the victim.
                if comm.rank < 2:
                    with comm.group():
                        comm.send(x[:1000], 1 - comm.rank)
                        comm.recv(y[:1000], 1 - comm.rank)
                else:
                    comm.check()
                    time.sleep(0.002)
            else:
                comm.all_reduce(x, y)
                if y[0] != comm.size or y[-1] != comm.size:
                    return "wrong"
                over[0] = elapsed > options.seconds > 0
                if options.seconds:
                    comm.broadcast(over)
                if over[0]:
                    return "nothing happened"
            if comm.rank == options.victim and elapsed > options.after:
                died.write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
    except r2ccl.R2cclError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing happened"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--victim", type=int, default=1)
    parser.add_argument("--after", type=float, default=2.0, help="seconds until the victim ends itself")
    parser.add_argument("--seconds", type=float, default=0.0, help="in mode busy: end after so long if nothing happens")
    parser.add_argument("--mode", default="busy", choices=["busy", "idle", "apart"])
    parser.add_argument("--bytes", type=int, default=1 << 18)
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()
    died = Path(options.folder) / "died"
    comm = r2ccl.init()
    report: dict[str, Any] = {"old": comm.rank}
    report["error"] = play(comm, options, died)
    learnt = time.monotonic()
    report["late_s"] = learnt - float(died.read_text()) if died.exists() else None
    report["events"] = [[e.kind.name, e.peer] for e in comm.events()]
    comm = comm.shrink(timeout_s=20)
    report["shrunk_s"] = time.monotonic() - learnt
    report.update(rank=comm.rank, size=comm.size, right=0)
    for _ in range(ROUNDS_AFTER):
        x = np.full(100_000, comm.rank + 1.0)
        comm.all_reduce(x)
        report["right"] += int((x == comm.size * (comm.size + 1) / 2).all())
    comm.close()
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
