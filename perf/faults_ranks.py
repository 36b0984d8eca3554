"""Ranks that are killed or frozen in the middle of a call: when do the others have their error?"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass

from faults_job import Job
from faults_kinds import FROZEN_TIMEOUT_S, Lab

from r2ccl.lab import Fabric

WAIT_S = 5.0


@dataclass
class Lost:
    """What the survivors of several jobs had: milliseconds until the last of them knew."""

    across_ms: list[float]
    same_host_ms: list[float]
    wrong: int = 0  # survivors without the right error, and wrong elements


def lose_ranks(fabric: Fabric, lab: Lab, fault: str, cuts: int, seed: int) -> Lost:
    """``cuts`` jobs, each of which loses a rank in mid-call."""
    chance = random.Random(seed)
    lost = Lost([], [])
    victim = 1  # on host 0 where it has two ranks, so that one survivor shares the host
    number, expected = (signal.SIGKILL, "PeerLost") if fault == "killed" else (signal.SIGSTOP, "Timeout")
    env = {"R2CCL_TIMEOUT_S": str(FROZEN_TIMEOUT_S)} if fault == "frozen" else {}
    for _ in range(cuts):
        with Job(fabric, lab.ranks, lab.call_bytes, env) as job:
            time.sleep(chance.uniform(0, 0.15))
            begin_ns = time.time_ns()
            os.kill(job.processes[victim].pid, number)
            survivors = [r for r in range(job.size) if r != victim]
            job.wait_for(lambda job=job, of=survivors: all(job.logs[r].error for r in of), WAIT_S)  # type: ignore[misc]
            lost.wrong += job.wrong()
            waits: dict[bool, list[float]] = {True: [], False: []}
            for rank in survivors:
                error = job.logs[rank].error
                # Who has lost a rank is told which; who has waited too long, for whom it waits: that may wait, too.
                named = error is not None and (expected == "Timeout" or f"rank {victim}" in error[2])
                if error is None or error[1] != expected or not named:
                    lost.wrong += 1
                    print(f"    rank {rank} of {lab.name} has {error}, not {expected}", flush=True)
                    continue
                waits[rank // lab.ranks == victim // lab.ranks].append((error[0] - begin_ns) * 1e-6)
            for same, kept in ((True, lost.same_host_ms), (False, lost.across_ms)):
                if waits[same]:
                    kept.append(max(waits[same]))
    return lost
