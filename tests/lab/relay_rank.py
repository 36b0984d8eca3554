"""A rank of test_relays.py: all_reduces until all ranks know of the lost rails, then everything that has no other way than
straight between two ranks. JSON at the end."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

import r2ccl
from r2ccl.observe.events import EventKind

PATIENCE_S = 15.0
COUNT = 50_000  # elements of a block
LOST_RAILS = 2
ROUNDS = 3

Vector = np.ndarray[Any, np.dtype[np.float64]]


def wrong(got: Vector, expected: Vector) -> int:
    """Elements that differ."""
    return int(np.count_nonzero(got != expected))


def blocks(comm: r2ccl.Communicator, salt: int) -> int:
    """all_to_all, all_to_all_v."""
    n, me = comm.size, comm.rank
    recv = np.full(n * COUNT, np.nan)
    comm.all_to_all(np.repeat(1000.0 * me + np.arange(n) + salt, COUNT), recv)
    bad = wrong(recv, np.repeat(1000.0 * np.arange(n) + me + salt, COUNT))
    # Rank i sends (i + 1) * (j + 1) thousand elements to j.
    theirs = [1000 * (i + 1) * (me + 1) for i in range(n)]
    mine = [1000 * (me + 1) * (j + 1) for j in range(n)]
    recv = np.full(sum(theirs), np.nan)
    comm.all_to_all_v(np.repeat(1000.0 * me + np.arange(n) + salt, mine), mine, recv, theirs)
    return bad + wrong(recv, np.repeat(1000.0 * np.arange(n) + me + salt, theirs))


def rooted(comm: r2ccl.Communicator, root: int, salt: int) -> int:
    """gather, scatter."""
    n, me = comm.size, comm.rank
    bad = 0
    mine = np.full(COUNT, 10.0 * me + root + salt)
    every = np.full(n * COUNT, np.nan) if me == root else None
    comm.gather(mine, every, root=root)
    if every is not None:
        bad += wrong(every, np.repeat(10.0 * np.arange(n) + root + salt, COUNT))
    mine[:] = np.nan
    comm.scatter(every, mine, root=root)
    return bad + wrong(mine, np.full(COUNT, 10.0 * me + root + salt))


def messages(comm: r2ccl.Communicator, salt: int) -> int:
    """send and recv between all pairs, of small ones and of large ones."""
    bad = 0
    for a in range(comm.size):
        for b in range(comm.size):
            for count in (10, COUNT):
                data = np.full(count, 100.0 * a + b + salt)
                if comm.rank == a != b:
                    comm.send(data, b)
                elif comm.rank == b != a:
                    got = np.full(count, np.nan)
                    comm.recv(got, a)
                    bad += wrong(got, data)
    return bad


def main() -> int:
    with r2ccl.init() as comm:
        x = np.ones(1 << 18, np.float32)
        known = np.zeros(1, np.int32)
        down = 0
        begin = time.monotonic()
        for i in range(100_000):
            if comm.rank == 0 and i == 3:
                print("under way", flush=True)
            comm.all_reduce(x.copy())
            down = max([down, *(e.rails_down for e in comm.events() if e.kind is EventKind.EPOCH)])
            known[0] = down >= LOST_RAILS or time.monotonic() - begin > PATIENCE_S
            comm.all_reduce(known, op=r2ccl.ReduceOp.MIN)
            if known[0]:
                break
        bad = 0
        begin = time.monotonic()
        for salt in range(ROUNDS):
            bad += blocks(comm, salt) + messages(comm, salt)
            for root in range(comm.size):
                bad += rooted(comm, root, salt)
        taken_s = time.monotonic() - begin
        stats = comm.stats()
        report = {"wrong": bad, "taken_s": taken_s, "down": down}
        report |= {key: stats[key] for key in ("relayed_chunks", "forwarded_chunks")}
        comm.barrier()
        print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
