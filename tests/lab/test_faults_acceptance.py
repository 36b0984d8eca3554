"""The command that the README promises: a benchmark loses rails in mid-run, ends with 0, and nothing is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from r2ccl.lab import available

WHY_NOT = available()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}"),
    pytest.mark.timeout(110),
]
LAB = [sys.executable, "-m", "r2ccl.lab.cli"]
PERF = [sys.executable, "-m", "r2ccl.perf.cli"]


@pytest.mark.parametrize(
    "faults",
    [
        ("t=2000ms host=0 rail=1 down",),
        ("t=2000ms host=0 rail=1 blackhole",),
        ("t=2000ms host=1 rail=0 port-down",),
        ("t=2000ms host=0 rail=3 rx-drop",),
        ("t=2000ms host=1 rail=2 tx-drop",),
        ("t=2000ms host=0 rail=1 down", "t=3000ms host=1 rail=2 blackhole"),
        ("t=1500ms host=0 rail=0 blackhole", "t=2500ms host=0 rail=1 down", "t=3500ms host=1 rail=2 rx-drop"),
    ],
    ids=lambda faults: "+".join(text.split()[-1] for text in faults),
)
def test_a_benchmark_loses_rails(faults: tuple[str, ...], tmp_path: Path) -> None:
    """A cut that falls between two calls, while the results are compared, replays nothing: then once more, later."""
    for late_ms in (0, 110, 270):
        shifted = [f"t={int(text[2:6]) + late_ms}ms {text.split(' ', 1)[1]}" for text in faults]
        if run_with(shifted, tmp_path / f"late{late_ms}"):
            return
    pytest.fail("every cut fell between two calls")


def run_with(faults: list[str], folder: Path) -> int:
    """Runs the commands, checks what they say, and returns the number of chunks that were sent again."""
    folder.mkdir()
    report_file, lines_file = folder / "R.json", folder / "out.json"
    command = [
        *LAB,
        *"run --hosts 2 --ranks 1 --rails 4 --rate 200mbit --timeout 90 --report".split(),
        str(report_file),
    ]
    for fault in faults:
        command += ["--fault", fault]
    command += ["--", *PERF, *"all_reduce -b 16M -e 16M -n 12 -w 2 -c 1 --json".split(), str(lines_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "# Out of bounds values : 0 OK" in done.stdout

    results = [json.loads(line) for line in lines_file.read_text().splitlines()]
    assert [r["in_place"] for r in results] == [False, True]
    assert sum(r["wrong"] for r in results) == 0
    assert sum(r["repair_ms"] for r in results) > 0, printed

    report = json.loads(report_file.read_text())
    assert report["exit_code"] == 0
    assert not report["timed_out"]
    assert [fault["fired_s"] is not None for fault in report["faults"]] == [True] * len(faults), printed
    assert len(report["cuts"]) == len(faults)
    for cut in report["cuts"]:
        assert cut["permanent"]
        assert cut["silent"] is True, printed
    for fault in report["faults"]:
        (place,) = fault["places"]
        evidence = place["evidence_at_end"]
        assert evidence["nic"] != "up" or evidence["port"] != "up" or evidence["dropped_packets"] > 0
    assert done.stderr.count("silent after the cut: yes") == len(faults), printed
    return sum(r["replayed"] for r in results)
