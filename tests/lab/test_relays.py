"""Two hosts that lost different rails share none: chunks between them go through ranks of a third, and nobody waits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fault_lab import check, run

from r2ccl.lab import Fabric, available, run_ranks_on

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(150),
    pytest.mark.skipif(available() is not None, reason=f"the lab cannot run: {available()}"),
]

PROGRAM = str(Path(__file__).with_name("relay_rank.py"))
LOST = [(0, 0), (1, 1)]  # host, rail


@pytest.mark.parametrize("ranks", [1, 2])
def test_blocks_and_messages_go_round(ranks: int) -> None:
    """Otherwise the first all_to_all would wait for outage_s and end with PeerUnreachable."""
    faults = [f"on='under way' host={host} rail={rail} down" for host, rail in LOST]
    env = {"R2CCL_RECOVERY": "0", "R2CCL_OUTAGE_S": "20"}
    with Fabric(hosts=3, rails=2, rate="400mbit") as fabric:
        result = run_ranks_on(fabric, [sys.executable, PROGRAM], ranks, env, faults=faults, timeout_s=120)
    text = "\n".join(r.stdout[-2000:] + r.stderr[-2000:] for r in result.ranks)
    assert result.exit_code == 0, text
    assert all(fault.fired_s is not None for fault in result.faults), text
    reports = [json.loads(rank.stdout.splitlines()[-1]) for rank in result.ranks]
    for rank, report in enumerate(reports):
        assert report["down"] >= len(LOST), text
        assert report["wrong"] == 0, text
        assert report["taken_s"] < 40, text
        on_third = rank >= 2 * ranks
        assert (report["relayed_chunks"] > 0) == (not on_third), text
    assert sum(report["forwarded_chunks"] for report in reports[2 * ranks :]) > 0, text


@pytest.mark.parametrize("control", [True, False], ids=["", "without control"])
@pytest.mark.parametrize("kind", ["down", "blackhole"])
def test_the_call_under_way_goes_on(kind: str, control: bool) -> None:
    """The plan stays what it was (fault_lab's environment), so the two go on as neighbours in its rings to the end."""
    faults = [f"on='inside 3' host={host} rail={rail} {kind}" for host, rail in LOST]
    if not control:
        faults.insert(0, "on='iteration 2' host=0 rail=mgmt blackhole")
    with Fabric(hosts=3, rails=2, rate="400mbit") as fabric:
        outcome = run(fabric, faults, env={"R2CCL_OUTAGE_S": "20"})
        check(fabric, outcome, LOST)
    reports = {report["rank"]: report for report in outcome.reports}
    assert reports[0]["relayed"] + reports[1]["relayed"] > 0, outcome.text
    assert reports[2]["forwarded"] > 0, outcome.text
    for me, peer in ((0, 1), (1, 0)):
        assert ["RELAY", peer] in [event[:2] for event in reports[me]["events"]], outcome.text
