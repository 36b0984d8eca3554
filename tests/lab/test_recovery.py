"""Rails that come back: both ends take them into use again after a probation, and no bit is different meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from fault_lab import Outcome, check_faults_fired, run

from r2ccl.lab import Fabric, available

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(90),
    pytest.mark.skipif(available() is not None, reason=f"the lab cannot run: {available()}"),
]
BACK = {"R2CCL_RECOVERY": "1"}


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=2, rails=3, rate="200mbit") as made:
        yield made


def came_back(outcome: Outcome, rail: int) -> None:
    """Right results; the rail was lost, proved itself, and is in use again at both ends."""
    assert outcome.result.exit_code == 0, outcome.text
    for fault in outcome.result.faults:
        assert fault.fired_s is not None, outcome.text
    for report in outcome.reports:
        me = report["rank"]
        assert report["wrong"] == 0, outcome.text
        assert report["compared"] >= 4, outcome.text
        assert report["leaked"] == {}, outcome.text
        kinds = outcome.kinds(me, 1 - me, rail)
        assert kinds.index("LINK_DOWN") < kinds.index("LINK_PROBATION") < kinds.index("LINK_UP"), kinds
        states = {name: state for _, name, state, *_ in report["links"]}
        assert states[f"rail{rail}"] == "up", outcome.text
    if any(fault.healed_s is not None for fault in outcome.result.faults):
        carried = carried_after(outcome, rail)
        assert carried > 1 << 20, f"{carried} bytes after its return\n{outcome.text}"


def carried_after(outcome: Outcome, rail: int, host: int = 0) -> int:
    """Bytes over a rail from the last heal to the end, as the kernel counts them."""
    samples = outcome.result.samples
    healed = [s for s in samples if s.label.startswith("before")]
    return samples[-1].rails[host, rail].nic.total_bytes - healed[-1].rails[host, rail].nic.total_bytes


@pytest.mark.parametrize("kind", ["blackhole", "down", "port-down", "tx-drop", "removed"])
def test_case_03_a_rail_comes_back(fabric: Fabric, kind: str) -> None:
    outcome = run(fabric, [f"on='inside 3' host=0 rail=1 {kind} for=600ms"], "--seconds", 4, env=BACK)
    came_back(outcome, 1)


def test_all_rails_are_lost_for_a_while(fabric: Fabric) -> None:
    """The call stalls and goes on; nobody raises."""
    faults = [f"on='inside 3' host=0 rail={rail} blackhole for=900ms" for rail in range(3)]
    outcome = run(fabric, faults, "--seconds", 5, env=BACK)
    for rail in range(3):
        came_back(outcome, rail)
    kinds = [kind for report in outcome.reports for kind, *_ in report["events"]]
    assert "OUTAGE_BEGIN" in kinds
    assert "OUTAGE_END" in kinds


def test_case_39_cut_off_from_everything_is_not_dead(fabric: Fabric) -> None:
    """Every rail and the control network are gone for a while: nobody takes the other for lost."""
    faults = [f"on='inside 3' host=0 rail={rail} blackhole for=1500ms" for rail in (0, 1, 2, "mgmt")]
    outcome = run(fabric, faults, "--seconds", 6, env=BACK)
    assert outcome.result.exit_code == 0, outcome.text
    assert all(fault.fired_s is not None for fault in outcome.result.faults), outcome.text
    for report in outcome.reports:
        assert report["wrong"] == 0, outcome.text
        assert report["slowest_s"] > 1.0, outcome.text  # nothing got through meanwhile
        kinds = [kind for kind, *_ in report["events"]]
        assert "LINK_DOWN" in kinds or "LINK_SUSPECT" in kinds, outcome.text
        assert "PEER_LOST" not in kinds, outcome.text


def test_case_02_a_rail_that_flaps_is_let_in_once_it_is_steady(fabric: Fabric) -> None:
    outcome = run(fabric, ["on='inside 3' host=0 rail=1 flap 200ms 8"], "--seconds", 7, env=BACK)
    came_back(outcome, 1)
    for report in outcome.reports:
        ups = outcome.kinds(report["rank"], 1 - report["rank"], 1).count("LINK_UP")
        assert ups <= 3, outcome.text  # 8 times down and up


def test_the_same_rail_fails_again_during_probation(fabric: Fabric) -> None:
    """It is up too shortly to prove itself, some of the times at least; at last it stays."""
    outcome = run(fabric, ["on='inside 3' host=0 rail=1 flap 120ms 8"], "--seconds", 7, env=BACK)
    came_back(outcome, 1)
    stories = [outcome.kinds(rank, 1 - rank, 1) for rank in range(2)]
    assert any(kinds.count("LINK_PROBATION") > kinds.count("LINK_UP") for kinds in stories), stories


def test_recovery_while_another_rail_is_failing(fabric: Fabric) -> None:
    """Rail 1 of one host returns at the moment when rail 2 of the other is lost for good."""
    faults = [
        "on='inside 3' host=0 rail=1 blackhole for=600ms",
        "on='inside 3' after=650ms host=1 rail=2 down",
    ]
    outcome = run(fabric, faults, "--seconds", 5, env=BACK)
    came_back(outcome, 1)
    for report in outcome.reports:
        assert {rail: state for _, rail, state, *_ in report["links"]}["rail2"] == "down", outcome.text


def test_a_rail_that_returns_at_a_tenth_of_its_speed(fabric: Fabric) -> None:
    """It is used again, for what it can carry: the others carry the rest."""
    faults = [
        "on='inside 3' host=0 rail=1 blackhole for=600ms",
        "on='inside 3' host=1 rail=1 rate 20mbit",
    ]
    outcome = run(fabric, faults, "--seconds", 6, env=BACK)
    check_faults_fired(outcome)
    assert outcome.result.exit_code == 0, outcome.text
    for report in outcome.reports:
        assert report["wrong"] == 0, outcome.text
        assert report["leaked"] == {}, outcome.text
        kinds = outcome.kinds(report["rank"], 1 - report["rank"], 1)
        assert kinds.index("LINK_DOWN") < kinds.index("LINK_PROBATION") < kinds.index("LINK_UP"), kinds
    slow, fast = carried_after(outcome, 1), carried_after(outcome, 0)
    assert 1 << 20 < slow < fast / 2, (slow, fast, outcome.text)


def test_a_rail_that_was_dead_at_the_start_joins_later(fabric: Fabric) -> None:
    fabric.fault("port-down", 0, 2)
    env = {**BACK, "R2CCL_INIT_TIMEOUT_S": "10", "R2CCL_RAILS": "rail0,rail1,rail2"}
    outcome = run(fabric, ["on='inside 3' heal"], "--seconds", 4, env=env)
    assert outcome.result.exit_code == 0, outcome.text
    for report in outcome.reports:
        assert report["wrong"] == 0, outcome.text
        assert {state for *_, state, _, _ in report["links"]} == {"up"}, outcome.text
        assert "LINK_UP" in outcome.kinds(report["rank"], 1 - report["rank"], 2), outcome.text


@pytest.mark.parametrize("host", [0, 1], ids=["the one that listens", "the one that dials"])
def test_a_rail_that_gets_another_address_is_used_at_that(host: int) -> None:
    """A fabric of its own: rails keep their new addresses."""
    with Fabric(hosts=2, rails=2, rate="200mbit") as fabric:
        before, after = fabric.address(host, 1), f"10.101.0.{77 + host}"

        def readdress() -> None:
            fabric.run(host, ["ip", "addr", "del", f"{before}/24", "dev", "rail1"])
            fabric.run(host, ["ip", "addr", "add", f"{after}/24", "dev", "rail1"])

        change = threading.Timer(2.5, readdress)
        change.start()
        try:
            outcome = run(fabric, [], "--seconds", 6, "--cut-at", 3, env=BACK)
        finally:
            change.join()
        assert outcome.result.exit_code == 0, outcome.text
        for report in outcome.reports:
            assert report["wrong"] == 0, outcome.text
            me = report["rank"]
            kinds = outcome.kinds(me, 1 - me, 1)
            assert kinds.index("LINK_SUSPECT") < kinds.index("LINK_UP"), outcome.text
            assert {state for *_, state, _, _ in report["links"]} == {"up"}, outcome.text
        assert "has address " + after in outcome.text
