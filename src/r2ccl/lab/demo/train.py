"""The program that every rank of the demonstration runs: ordinary data-parallel training. It knows of no faults.

Started as ``python -m r2ccl.lab.demo.train`` with torchrun's variables. Each rank appends a line per step to
``rank<r>.jsonl`` in the given folder, and at its end writes ``rank<r>.json``; see ``logs``. Rank 0 also prints a line
just before each all_reduce.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import r2ccl

from .model import Digits, Perceptron

_RATE, _MOMENTUM = 0.03, 0.9


def marker(step: int) -> str:
    """What rank 0 prints before the all_reduce of a step."""
    return f"step {step} reduces"


def train(comm: r2ccl.Communicator, options: argparse.Namespace) -> None:
    """The whole training of one rank."""
    digits = Digits.load(options.data)
    model = Perceptron(options.width, options.seed)
    comm.barrier()
    with open(options.folder / f"rank{comm.rank}.jsonl", "w", buffering=1) as log:
        for step in range(options.steps):
            begin_s = time.monotonic()
            # Every rank draws the same permutation and takes its own part of it.
            drawn = np.random.default_rng([options.seed, step]).permutation(len(digits.train_y))
            own = np.resize(drawn, comm.size * options.batch)[comm.rank :: comm.size]
            loss = model.backward(digits.train_x[own], digits.train_y[own])
            if comm.rank == 0:
                print(marker(step), flush=True)
            reduce_s = time.monotonic()
            work = comm.all_reduce(model.gradient, op=r2ccl.ReduceOp.AVG)
            end_s = time.monotonic()
            model.descend(_RATE, _MOMENTUM)
            done_s = time.monotonic()
            rails = [[rail["tx_bytes"], rail["rx_bytes"]] for rail in comm.stats()["rails"]]
            line = {
                "step": step,
                "loss": loss,
                "begin_s": begin_s,
                "reduce_s": reduce_s,
                "end_s": end_s,
                "done_s": done_s,
                "replayed": work.replayed,
                "rails": rails,
            }
            log.write(json.dumps(line) + "\n")
    if comm.rank == options.corrupt_rank:
        model.weights[0] = np.nextafter(model.weights[0], np.float32(np.inf))
    write_report(comm, model, digits, options.folder / f"rank{comm.rank}.json")


def write_report(comm: r2ccl.Communicator, model: Perceptron, digits: Digits, path: Path) -> None:
    """What this rank has come to; written under another name first, so that no reader sees half of it."""
    report: dict[str, Any] = {
        "rank": comm.rank,
        "sha256": hashlib.sha256(model.weights.tobytes()).hexdigest(),
        "parameters": model.weights.size,
        "accuracy": model.accuracy(digits.test_x, digits.test_y),
        "stats": comm.stats(),
        "events": [
            {
                "time_ns": e.time_ns,
                "kind": e.kind.name,
                "peer": e.peer,
                "rail": e.rail,
                "cause": e.cause.name,
                "value": e.value,
            }
            for e in comm.events()
        ],
    }
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(report))
    os.replace(draft, path)


def main() -> int:
    """Entry point of a rank."""
    parser = argparse.ArgumentParser(prog="r2ccl.lab.demo.train")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("--steps", "--width", "--batch", "--seed"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--corrupt-rank", type=int)
    options = parser.parse_args()
    with r2ccl.init() as comm:
        train(comm, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
