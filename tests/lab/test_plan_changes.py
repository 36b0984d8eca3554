"""After a failure another plan, after the recovery the healthy one again, and events that say so on every rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from r2ccl.lab import Fabric, available, run_ranks_on

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(90),
    pytest.mark.skipif(available() is not None, reason=f"the lab cannot run: {available()}"),
]
PROGRAM = str(Path(__file__).with_name("plan_rank.py"))


def test_the_plan_follows_the_loss_and_the_return_of_a_nic() -> None:
    with Fabric(hosts=3, rails=3, rate="200mbit") as fabric:
        result = run_ranks_on(
            fabric,
            [sys.executable, PROGRAM],
            1,
            {"R2CCL_RECOVERY": "1", "R2CCL_LOG_LEVEL": "warning"},
            faults=["on='call 4' host=1 rail=0 blackhole for=3s"],
            timeout_s=60,
        )
    text = "\n".join(f"[{r.rank}] {r.stdout[-2000:]}{r.stderr[-2000:]}" for r in result.ranks)
    assert result.exit_code == 0, text
    assert all(fault.fired_s is not None and fault.healed_s is not None for fault in result.faults), text
    for rank in result.ranks:
        report = json.loads(rank.stdout.splitlines()[-1])
        assert report["wrong"] == 0, text
        healthy = report["plans"][0]
        assert report["plans"] == [healthy, "tree_packing", healthy], text
        story = [
            (kind, evidence.split()[0] if evidence else down, value) for kind, evidence, value, down in report["events"]
        ]
        loss = next(i for i, (kind, down, _) in enumerate(story) if kind == "EPOCH" and down)
        back = next(i for i, (kind, down, _) in enumerate(story) if i > loss and kind == "EPOCH" and not down)
        new = [(name, ns) for kind, name, ns in story[loss:back] if kind == "PLAN"]
        assert ("tree_packing", True) in [(name, ns > 0) for name, ns in new], text
        assert (healthy, True) in [(name, ns > 0) for kind, name, ns in story[back:] if kind == "PLAN"], text
