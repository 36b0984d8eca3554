"""Every kind of fault on the emulated cluster, in mid-collective: same bits, events in order, silence afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_lab import check, rail_events, run

from r2ccl.lab import Fabric, available

WHY_NOT = available()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}"),
    pytest.mark.timeout(90),
]
KINDS = ["down", "port-down", "removed", "blackhole", "rx-drop", "tx-drop", "switch", "reset"]
HARD = ("down", "removed", "port-down")  # the host's own kernel says so


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=2, rails=4, rate="100mbit") as built:
        yield built


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[Fabric]:
    with Fabric(hosts=3, rails=3, rate="200mbit") as built:
        yield built


@pytest.mark.parametrize("kind", KINDS)
def test_case_01_one_rail_is_cut_in_mid_collective(fabric: Fabric, kind: str) -> None:
    outcome = run(fabric, [f"on='inside 3' host=0 rail=1 {kind}"])
    places = [(0, 1), (1, 1)] if kind == "switch" else [(0, 1)]
    check(fabric, outcome, places)
    (events,) = rail_events(outcome, 0, 1)
    if kind in HARD:
        assert events[0] == "RAIL_DOWN"
        assert events[1] == "LINK_SUSPECT/INTERFACE"
        assert "RAIL_DOWN" not in rail_events(outcome, 1, 1)[0]
    else:
        assert "RAIL_DOWN" not in events


@pytest.mark.parametrize("kind", ["down", "blackhole", "switch"])
def test_two_ranks_a_host(fabric: Fabric, kind: str) -> None:
    """Both ranks of the host lose their links over the rail."""
    _cut_for_two_ranks(fabric, kind, 1, 2)


@pytest.mark.parametrize("kind", ["port-down", "rx-drop"])
def test_three_hosts_two_ranks_three_rails(three_hosts: Fabric, kind: str) -> None:
    _cut_for_two_ranks(three_hosts, kind, 1, 0)


def _cut_for_two_ranks(fabric: Fabric, kind: str, host: int, rail: int) -> None:
    """Part of an all_reduce is inside the hosts: a cut at such a moment finds no chunk on the rail. Then once more."""
    for _ in range(3):
        outcome = run(fabric, [f"on='inside 3' host={host} rail={rail} {kind}"], ranks=2)
        check(fabric, outcome, [(host, rail)], every_link=False, replay=False)
        assert any(rail_events(outcome, host, rail))
        if outcome.replayed:
            return
    pytest.fail("no cut found a chunk on the rail")


def test_a_falsified_element_is_noticed(fabric: Fabric) -> None:
    """The negative control: one bit of one element of one rank in one iteration."""
    outcome = run(fabric, ["on='inside 3' host=0 rail=1 down"], "--corrupt", 5)
    assert [r["wrong"] for r in outcome.reports] == [0, 1]
    with pytest.raises(AssertionError, match='"wrong": 1'):
        check(fabric, outcome, [(0, 1)])


def test_a_fault_that_comes_too_late_is_noticed(fabric: Fabric) -> None:
    """The negative control of the proof that the fault fired."""
    outcome = run(fabric, ["on='inside 9999' host=0 rail=1 down"], "--seconds", 0, "--iterations", 4)
    with pytest.raises(AssertionError, match="never fired"):
        check(fabric, outcome, [(0, 1)])
