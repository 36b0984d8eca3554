"""A queue pair that an independent program forces into the error state: the port stays up, only the pair is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from r2ccl import Cause, EventKind
from tools.rdma_guest.rails import Rails
from tools.rdma_guest.traffic import Traffic

PROGRAM = Path(__file__).with_name("foreign") / "break_queue.py"
pytestmark = pytest.mark.timeout(120)


def test_a_queue_pair_in_error_is_replaced(rails: Rails) -> None:
    with Traffic(rails, 2, pause_s=0.4) as traffic:
        traffic.run_on(3)
        victim = f"::ffff:{rails.address(0, 1)}"
        command = ["/usr/bin/python3", str(PROGRAM), rails.device(1, 1), rails.device(0, 1), victim, "40"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.stdout.startswith("broken "), done.stderr
        traffic.wait(lambda: min(traffic.counters.repaired) > 0)
        traffic.wait(lambda: min(traffic.counters.up) > 0)
        traffic.run_on(2)
        reports = traffic.stop()
    told = "\n".join(report.told() for report in reports)
    for report in reports:
        assert report.wrong == 0, told
        suspects = [event for event in report.events if event.kind == EventKind.LINK_SUSPECT]
        assert {event.rail for event in suspects} == {1}, told
        assert not any(event.kind == EventKind.RAIL_DOWN for event in report.events), told
    assert any(event.cause == Cause.DEVICE for event in reports[0].events), told
