"""What failed: every rank names its own rail, the peer's, or the path, and the rail is given up for all peers at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_lab import Outcome, run

from r2ccl.lab import Fabric, available

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(90),
    pytest.mark.skipif(available() is not None, reason=f"the lab cannot run: {available()}"),
]


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=3, rails=2, rate="200mbit") as made:
        yield made


def verdicts(outcome: Outcome, rank: int) -> dict[int, str]:
    """By peer: the verdict about the link over rail 1."""
    found = {}
    for kind, peer, rail, *rest in outcome.reports[rank]["events"]:
        if kind == "VERDICT":
            assert rail == 1, outcome.text
            found[peer] = rest[-1]
    return found


def repaired(outcome: Outcome) -> None:
    assert outcome.result.exit_code == 0, outcome.text
    assert all(fault.fired_s is not None for fault in outcome.result.faults), outcome.text
    assert all(report["wrong"] == 0 for report in outcome.reports), outcome.text


@pytest.mark.parametrize("kind", ["blackhole", "port-down", "tx-drop", "rx-drop", "down"])
def test_a_dead_nic_is_local_to_its_owner_and_remote_to_all_others(fabric: Fabric, kind: str) -> None:
    outcome = run(fabric, [f"on='inside 3' host=1 rail=1 {kind}"], "--seconds", 3)
    repaired(outcome)
    assert verdicts(outcome, 1) == {0: "LOCAL_RAIL", 2: "LOCAL_RAIL"}, outcome.text
    for rank in (0, 2):
        assert verdicts(outcome, rank) == {1: "REMOTE_RAIL"}, outcome.text


def epochs(outcome: Outcome, rank: int) -> list[int]:
    return [value for kind, _, _, _, value, *_ in outcome.reports[rank]["events"] if kind == "EPOCH"]


def test_all_ranks_agree_on_a_loss_and_on_the_return(fabric: Fabric) -> None:
    outcome = run(
        fabric, ["on='inside 3' host=1 rail=1 blackhole for=800ms"], "--seconds", 4, env={"R2CCL_RECOVERY": "1"}
    )
    repaired(outcome)
    for rank in range(3):
        # The loss of a rail of host 1; with two hosts left its peers' rails still serve each other.
        assert epochs(outcome, rank)[:1] == [1], outcome.text
        assert epochs(outcome, rank) == epochs(outcome, 0), outcome.text
        assert outcome.reports[rank]["epoch"] == len(epochs(outcome, 0)) >= 2, outcome.text
