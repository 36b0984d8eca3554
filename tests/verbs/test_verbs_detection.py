"""A link that is down is noticed by the kernel's word, long before RDMA's own time-out; both measured in one run."""

from __future__ import annotations

import time

import pytest

from r2ccl import Cause, EventKind
from tools.rdma_guest.faults import BLACKHOLE, DOWN, PORT_DOWN, Breaker
from tools.rdma_guest.rails import Rails
from tools.rdma_guest.traffic import Traffic

pytestmark = pytest.mark.timeout(150)
NO_STALL_RULE = {"stall_floor_ms": 1e6, "heartbeat_ms": 0.0, "recovery": False}


def test_events_come_before_the_time_out(rails: Rails, breaker: Breaker, capsys: pytest.CaptureFixture[str]) -> None:
    strikes = ((BLACKHOLE, 0), (DOWN, 1), (PORT_DOWN, 1))
    struck_ns, reports = {}, []
    for first, second in ((strikes[0], strikes[1]), (strikes[2], None)):
        with Traffic(rails, 2, **NO_STALL_RULE) as traffic:
            traffic.run_on(3)
            for number, place in enumerate(filter(None, (first, second))):
                kind, rail = place
                struck_ns[kind] = time.time_ns()
                breaker.strike(kind, 1, rail)
                traffic.wait(lambda more=number: min(traffic.counters.repaired) > more)  # type: ignore[misc]
                assert breaker.evidence(kind, 1, rail)
                traffic.run_on(1)
            breaker.heal_all()
            reports.append(traffic.stop())
    told = "\n".join(report.told() for run in reports for report in run)
    ms = {}
    for (kind, rail), run in zip(strikes, (reports[0], reports[0], reports[1]), strict=True):
        suspected = [time_ns for report in run for time_ns in report.times_ns(EventKind.LINK_SUSPECT, rail)]
        ms[kind] = (min(suspected) - struck_ns[kind]) / 1e6
    with capsys.disabled():
        print(f"\nnoticed: down after {ms[DOWN]:.1f} ms, port-down {ms[PORT_DOWN]:.1f}, time-out {ms[BLACKHOLE]:.0f}")
    causes = {event.cause for report in reports[0] for event in report.events if event.rail == 0}
    assert Cause.DEVICE in causes, told  # a completion with an error
    assert 5 * ms[DOWN] <= ms[BLACKHOLE], told
    assert 5 * ms[PORT_DOWN] <= ms[BLACKHOLE], told
    assert all(report.wrong == 0 for run in reports for report in run), told
