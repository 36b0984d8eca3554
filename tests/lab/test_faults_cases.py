"""Field reports on the emulated cluster (numbers: the list of reports), and failures that meet other failures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from fault_lab import REPAIR, Outcome, check, rail_events, run

from r2ccl.lab import Fabric, available

WHY_NOT = available()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}"),
    pytest.mark.timeout(90),
]


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=2, rails=4, rate="100mbit") as built:
        yield built


@pytest.fixture(scope="module")
def three_rails() -> Iterator[Fabric]:
    with Fabric(hosts=2, rails=3, rate="200mbit") as built:
        yield built


# -- one after another -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kinds",
    [
        ("down", "blackhole"),
        ("tx-drop", "port-down"),
        ("blackhole", "rx-drop", "down"),
        ("removed", "reset", "tx-drop"),
    ],
    ids="+".join,
)
def test_rails_are_cut_one_after_another(fabric: Fabric, kinds: tuple[str, ...]) -> None:
    """Two and three of four rails, at either host."""
    faults = [f"on='inside {3 + 2 * i}' host={i % 2} rail={i} {kind}" for i, kind in enumerate(kinds)]
    outcome = run(fabric, faults, "--iterations", 10, "--seconds", 2.0)
    check(fabric, outcome, [(i % 2, i) for i in range(len(kinds))])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3), 2)), ids=str)
def test_case_06_every_order_down_to_one(three_rails: Fabric, order: tuple[int, ...]) -> None:
    faults = [f"on='inside {3 + 2 * i}' host={i} rail={rail} down" for i, rail in enumerate(order)]
    outcome = run(three_rails, faults, "--seconds", 1.2)
    check(three_rails, outcome, [(i, rail) for i, rail in enumerate(order)])


@pytest.mark.parametrize("kinds", [("down", "down"), ("blackhole", "blackhole"), ("blackhole", "down")], ids="+".join)
def test_a_second_failure_while_the_first_is_repaired(fabric: Fabric, kinds: tuple[str, str]) -> None:
    """Both in the same call, the second as soon as the lab can act again (some 20 ms), at the other host."""
    faults = [f"on='inside 3' host={i} rail={i + 1} {kind}" for i, kind in enumerate(kinds)]
    outcome = run(fabric, faults)
    check(fabric, outcome, [(0, 1), (1, 2)])


def test_a_failure_while_idle(fabric: Fabric) -> None:
    """Between two collectives. Silent: found by the next one. A link that goes down is noticed at once."""
    for kind in ("blackhole", "down"):
        outcome = run(fabric, [f"on='iteration 3' host=1 rail=0 {kind}"], "--pause", 0.15, "--bytes", 1 << 20)
        check(fabric, outcome, [(1, 0)], replay=False)


def test_small_messages(fabric: Fabric) -> None:
    """Calls of one chunk; rail 0 is what they prefer."""
    outcome = run(fabric, ["on='inside 30' host=0 rail=0 blackhole"], "--bytes", 8192, "--cut-at", 30)
    check(fabric, outcome, [(0, 0)], replay=False)


def test_acknowledgements_lost_while_data_arrive(fabric: Fabric) -> None:
    """A broadcast-like direction: what host 1 sends on rail 3 vanishes, what it receives arrives."""
    outcome = run(fabric, ["on='inside 3' host=1 rail=3 tx-drop"])
    check(fabric, outcome, [(1, 3)])


# -- cases -------------------------------------------------------------------------------------------------------------


def test_case_02_a_flapping_link_costs_no_more_than_the_link(fabric: Fabric) -> None:
    """Down and up for 100 ms each, five times: no exception, right results, the other rails untouched."""
    outcome = run(fabric, ["on='inside 3' host=0 rail=1 flap 100ms 5"], "--seconds", 1.6)
    assert outcome.result.exit_code == 0, outcome.text
    _results_are_right(outcome)
    (fault,) = outcome.result.faults
    assert fault.evidence_at_end[0, 1]["carrier_changes"] >= 4
    assert {rail for r in outcome.reports for _, _, rail, *_ in r["events"] if rail >= 0} == {1}
    assert any(event.startswith("RAIL_DOWN") for event in rail_events(outcome, 0, 1)[0])


@pytest.mark.parametrize("kind", ["down", "blackhole"])
def test_case_07_no_rail_left(fabric: Fabric, kind: str) -> None:
    """A clear error after outage_s that names the two ranks, at both; nothing hangs, nothing leaks."""
    faults = [f"on='inside 3' host=0 rail={rail} {kind}" for rail in range(4)]
    outcome = run(fabric, faults, env={"R2CCL_OUTAGE_S": "0.5"})
    _all_fail_naming_the_pair(outcome)


def test_case_07_the_only_rail_is_lost() -> None:
    with Fabric(hosts=2, rails=1, rate="200mbit") as fabric:
        outcome = run(fabric, ["on='inside 3' host=1 rail=0 port-down"], env={"R2CCL_OUTAGE_S": "0.5"})
        _all_fail_naming_the_pair(outcome)


def test_different_rails_lost_at_two_hosts_leave_none_in_common() -> None:
    """Rails are separate networks: rail 0 of one host and rail 1 of the other are no path."""
    with Fabric(hosts=2, rails=2, rate="200mbit") as fabric:
        faults = ["on='inside 3' host=0 rail=0 down", "on='inside 3' host=1 rail=1 down"]
        outcome = run(fabric, faults, env={"R2CCL_OUTAGE_S": "0.5"})
        _all_fail_naming_the_pair(outcome)


@pytest.mark.parametrize("kind", ["down", "port-down", "removed", "blackhole"])
def test_case_16_a_rail_is_dead_at_the_start(fabric: Fabric, kind: str) -> None:
    """A degraded start with a warning that names the rail; all that is left works, and survives another loss."""
    fabric.fault(kind, 0, 2)
    outcome = run(fabric, ["on='inside 3' host=1 rail=1 blackhole"], env={"R2CCL_INIT_TIMEOUT_S": "10"})
    check(fabric, outcome, [(1, 1)], absent=[(0, 2)])
    assert any("degraded start: " in r.stderr and "rail2" in r.stderr for r in outcome.result.ranks), outcome.text
    for report in outcome.reports:
        used = {rail for _, rail, _, tx, rx in report["links"] if tx + rx > 1 << 20}
        assert used == {"rail0", "rail1", "rail3"}, outcome.text
        assert report["init_s"] < 12


@pytest.mark.parametrize("kind", ["blackhole", "down", "port-down"])
def test_case_39_the_control_network_is_cut(fabric: Fabric, kind: str) -> None:
    """Collectives go on; then a data rail fails too, and the notice travels over the rails that live."""
    faults = [f"on='inside 3' host=0 rail=mgmt {kind}", "on='inside 6' host=1 rail=1 blackhole"]
    outcome = run(fabric, faults, "--seconds", 2.0, "--iterations", 10)
    check(fabric, outcome, [(1, 1)], replay=False)


def test_case_39_the_control_network_alone(fabric: Fabric) -> None:
    outcome = run(fabric, ["on='inside 3' host=1 rail=mgmt blackhole"])
    assert outcome.result.exit_code == 0, outcome.text
    _results_are_right(outcome)
    assert not [e for r in outcome.reports for e in r["events"] if e[2] >= 0], outcome.text


@pytest.mark.parametrize("percent", [30, 100])
def test_case_09_random_loss(fabric: Fabric, percent: int) -> None:
    """Frames are lost by chance, or all of them: slower or one link less, but right."""
    outcome = run(fabric, [f"on='inside 3' host=0 rail=1 loss {percent}"], "--seconds", 2.0)
    assert outcome.result.exit_code == 0, outcome.text
    _results_are_right(outcome)
    assert outcome.result.faults[0].evidence_at_end[0, 1]["dropped_packets"] > 0
    assert {rail for r in outcome.reports for _, _, rail, *_ in r["events"] if rail >= 0} <= {1}
    if percent == 100:
        for rank, peer in ((0, 1), (1, 0)):
            assert outcome.kinds(rank, peer, 1) == REPAIR, outcome.text


def _results_are_right(outcome: Outcome) -> None:
    for report in outcome.reports:
        assert "error" not in report, outcome.text
        assert report["wrong"] == 0, outcome.text
        assert report["compared"] >= 4, outcome.text
        assert report["leaked"] == {}, outcome.text


def _all_fail_naming_the_pair(outcome: Outcome) -> None:
    kinds = set()
    for report in outcome.reports:
        kind, message = report["error"]
        kinds.add(kind)
        assert "no rail is left between rank" in message, outcome.text
        assert "rank 0" in message, outcome.text
        assert "rank 1" in message, outcome.text
        assert report["wrong"] == 0, outcome.text
        assert report["leaked"] == {}, outcome.text
        assert report["elapsed_s"] < 20, outcome.text
        assert report["close_s"] < 5, outcome.text
    assert kinds == {"PeerUnreachable"}, outcome.text
    assert outcome.result.exit_code == 3, outcome.text
