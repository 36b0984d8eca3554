"""Rails that die under traffic over RDMA: repaired without a wrong result, and used again when they are back."""

from __future__ import annotations

import time

import pytest

from r2ccl import EventKind
from tools.rdma_guest.faults import ADDRESS, BLACKHOLE, DOWN, PORT_DOWN, REMOVED, Breaker
from tools.rdma_guest.rails import Rails
from tools.rdma_guest.traffic import RankReport, Traffic, packets_sent

pytestmark = pytest.mark.timeout(120)


def all_told(reports: list[RankReport]) -> str:
    return "\n".join(report.told() for report in reports)


def check(reports: list[RankReport], dead: dict[int, set[int]], healed: bool = True) -> None:
    """dead: host -> its rails that failed. Links with an end there, and no others, were lost and repaired."""
    for report in reports:
        assert report.wrong == 0, all_told(reports)
        assert report.compared >= 2 * 6, all_told(reports)
        hit = {rail for rails in dead.values() for rail in rails}
        own = dead.get(report.rank, set())
        for peer in range(len(reports)):
            for rail in range(3):
                if peer == report.rank:
                    continue
                struck = rail in own or rail in dead.get(peer, set())
                kinds = [e.kind for e in report.events if (e.peer, e.rail) == (peer, rail)]
                assert (EventKind.LINK_SUSPECT in kinds) == struck, all_told(reports)
                assert (EventKind.REPAIRED in kinds) == struck, all_told(reports)
                assert (EventKind.LINK_UP in kinds) == (struck and healed), all_told(reports)
        assert hit


@pytest.mark.parametrize("kind", [DOWN, PORT_DOWN, BLACKHOLE, ADDRESS, REMOVED])
def test_a_rail_dies_and_returns(kind: str, rails: Rails, breaker: Breaker) -> None:
    with Traffic(rails, 2) as traffic:
        traffic.run_on(4)
        before = [packets_sent(rails.device(0, rail)) for rail in range(3)]
        traffic.run_on(2)
        after = [packets_sent(rails.device(0, rail)) for rail in range(3)]
        assert all(a > b for a, b in zip(after, before, strict=True)), "every rail carries RDMA"
        breaker.strike(kind, 1, 1)
        traffic.wait(lambda: min(traffic.counters.repaired) > 0)
        traffic.run_on(3)
        assert breaker.evidence(kind, 1, 1)
        if kind != REMOVED:
            quiet = packets_sent(rails.device(1, 1))
            traffic.run_on(2)
            assert packets_sent(rails.device(1, 1)) == quiet, "the dead rail is still used"
        breaker.heal(kind, 1, 1)
        traffic.wait(lambda: min(traffic.counters.up) > 0)
        before = [packets_sent(rails.device(1, rail)) for rail in range(3)]
        traffic.run_on(4)
        after = [packets_sent(rails.device(1, rail)) for rail in range(3)]
        assert all(a > b for a, b in zip(after, before, strict=True)), "every rail is used again"
        check(traffic.stop(), {1: {1}})


def test_two_failures_in_a_row(rails: Rails, breaker: Breaker) -> None:
    """The second strikes the other host while the first may still be under repair; one rail is left."""
    with Traffic(rails, 2) as traffic:
        traffic.run_on(4)
        breaker.strike(BLACKHOLE, 0, 0)
        time.sleep(0.05)
        breaker.strike(PORT_DOWN, 1, 2)
        traffic.wait(lambda: min(traffic.counters.repaired) > 1)
        traffic.run_on(3)
        assert all(breaker.evidence(*place) for place in breaker.broken)
        breaker.heal_all()
        traffic.wait(lambda: min(traffic.counters.up) > 1)
        traffic.run_on(2)
        check(traffic.stop(), {0: {0}, 1: {2}})


def test_three_hosts_lose_a_rail_of_one(rails: Rails, breaker: Breaker) -> None:
    with Traffic(rails, 3) as traffic:
        traffic.run_on(4)
        breaker.strike(DOWN, 2, 0)
        traffic.wait(lambda: traffic.counters.repaired[2] > 1 and min(traffic.counters.repaired) > 0)
        traffic.run_on(3)
        assert breaker.evidence(DOWN, 2, 0)
        check(traffic.stop(), {2: {0}}, healed=False)
