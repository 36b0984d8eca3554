"""Every collective over three rails of soft RDMA, every element compared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "mp"))

from mp_checks import Checks, every_collective

from r2ccl import Communicator, EventKind, ReduceOp
from r2ccl.testing import run_ranks
from tools.rdma_guest.rails import Rails
from tools.rdma_guest.traffic import packets_sent, rank_config

pytestmark = pytest.mark.timeout(180)
SMALL = (0, 1, 1000, 30_011)
LARGE = 300_007
# Nothing fails here: a machine that is slow must not look like a link that is dead.
PATIENT = {"stall_floor_ms": 60_000.0, "heartbeat_ms": 0.0}


def battery(comm: Communicator) -> int:
    """Arrays compared."""
    checks = Checks(comm)
    for count in SMALL:
        every_collective(checks, count, range(comm.size))
        checks.reduce(count, 0, ReduceOp.MAX)
    every_collective(checks, LARGE, (comm.size - 1,))
    lost = [str(event) for event in comm.events() if event.kind == EventKind.LINK_SUSPECT]
    assert not lost, lost
    return checks.compared


@pytest.mark.parametrize("hosts", [2, 3])
def test_every_collective(hosts: int, rails: Rails) -> None:
    before = [packets_sent(rails.device(host, rail)) for host in range(hosts) for rail in range(rails.rails)]
    compared = run_ranks(battery, hosts, config=lambda rank: rank_config(rails, rank, **PATIENT), timeout_s=150)
    after = [packets_sent(rails.device(host, rail)) for host in range(hosts) for rail in range(rails.rails)]
    assert min(compared) > 80
    assert all(a > b for a, b in zip(after, before, strict=True)), f"every rail carried RDMA: {before}, {after}"
