"""``r2ccl-lab demo``: both grounds, the lines and files it leaves, and that a wrong bit is not overlooked."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="the demonstration needs scikit-learn: pip install 'r2ccl[demo]'")
pytest.importorskip("matplotlib", reason="the demonstration needs matplotlib: pip install 'r2ccl[demo]'")

from r2ccl.lab import available

WHY_NOT = available()
LAB = [pytest.mark.lab, pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}")]
COMMAND = [sys.executable, "-m", "r2ccl.lab.demo"]
SMALL = ["--steps", "12", "--width", "800", "--rate", "100mbit"]
GROUNDS = [pytest.param([], marks=LAB, id="lab"), pytest.param(["--loopback"], id="loopback")]


def demo(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *SMALL, "--out", str(out), *options], capture_output=True, text=True, timeout=90)


def record_of(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "demo.json").read_text())
    return record


@pytest.mark.slow
@pytest.mark.parametrize("ground", GROUNDS)
def test_the_weights_are_equal_though_a_nic_was_cut(tmp_path: Path, ground: list[str]) -> None:
    got = demo(tmp_path, *ground)
    assert got.returncode == 0, got.stdout + got.stderr
    lines = got.stdout.splitlines()
    assert ("NO network namespaces" in lines[0]) == bool(ground)
    assert "bitwise equal: yes" in lines
    repair = [m for m in (re.fullmatch(r"repair: ([\d.]+) ms, replayed (\d+) chunks", line) for line in lines) if m]
    assert len(repair) == 1
    assert int(repair[0][2]) > 0
    assert float(repair[0][1]) > 0
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    record = record_of(tmp_path)
    calm, disturbed = record["runs"]
    assert record["passed"]
    assert record["verdict"]["in_call"]  # the call whose chunks were replayed was under way when the NIC was cut
    assert record["verdict"]["replayed_in_call"] > 0
    # Not only the end: every loss of every rank on the way, too.
    losses = [[[step[4] for step in steps] for steps in run["steps"]] for run in (calm, disturbed)]
    assert losses[0] == losses[1]
    assert len({rank["sha256"] for run in (calm, disturbed) for rank in run["ranks"]}) == 1
    assert all(rank["stats"]["replayed_chunks"] == 0 for rank in calm["ranks"])


@pytest.mark.slow
def test_one_wrong_bit_in_one_rank_is_seen(tmp_path: Path) -> None:
    got = demo(tmp_path, "--corrupt-rank", "4")
    assert got.returncode == 1, got.stdout + got.stderr
    assert "bitwise equal: no" in got.stdout.splitlines()
    record = record_of(tmp_path)
    assert not record["passed"]
    assert record["verdict"]["replayed"] > 0  # it failed for that bit alone
    sums = [rank["sha256"] for run in record["runs"] for rank in run["ranks"]]
    assert [i for i, s in enumerate(sums) if s != sums[0]] == [6 + 4]


@pytest.mark.lab
@pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}")
@pytest.mark.slow
def test_the_cut_rail_carries_nothing_afterwards(tmp_path: Path) -> None:
    got = demo(tmp_path, "--fault", "port-down", "--steps", "16", "--cut-step", "4")
    assert got.returncode == 0, got.stdout + got.stderr
    disturbed = record_of(tmp_path)["runs"][1]
    assert disturbed["cut"]["evidence"]["port"] == "down"
    nics = [sample["nics"] for sample in disturbed["samples"] if sample["at_s"] > disturbed["cut"]["acted_s"] + 0.3]
    sent = {nic: nics[-1][nic][0] - nics[0][nic][0] for nic in nics[0]}
    assert sent["host0/rail1"] <= 4096
    assert min(sent["host0/rail0"], sent["host0/rail2"]) > 1_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fault", "loss"], "--fault loss: one that cuts"),
        (["--fault", "blackhol"], "did you mean 'blackhole'?"),
        (["--loopback", "--fault", "port-down"], "--fault port-down needs network namespaces"),
        (["--cut-step", "12"], "--cut-step 12: 1 to 10"),
        (["--rate", "fast"], "'fast' is no rate"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    got = demo(tmp_path, *options)
    assert got.returncode == 2
    assert message in got.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_it_draws_live_on_a_terminal(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="live drawing needs rich: pip install 'r2ccl[perf]'")
    ours, theirs = pty.openpty()
    command = [*COMMAND, *SMALL, "--loopback", "--out", str(tmp_path)]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=env) as child:
        os.close(theirs)
        screen = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
            while select.select([ours], [], [], 60)[0]:
                screen += os.read(ours, 1 << 16)
        assert child.wait(10) == 0
    os.close(ours)
    text = screen.decode()
    assert "host 0 rail 1" in text
    assert "▁" in text or "█" in text
    assert "bitwise equal: yes" in text


@pytest.mark.parametrize("ground", GROUNDS)
def test_it_ends_on_sigterm_and_leaves_no_process(tmp_path: Path, ground: list[str]) -> None:
    mark = str(tmp_path / "tmp")
    os.mkdir(mark)
    command = [*COMMAND, "--out", str(tmp_path), *ground]
    child = subprocess.Popen(command, env={**os.environ, "TMPDIR": mark}, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while not list(Path(mark).glob("*/undisturbed/rank0.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes_with(mark)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=20)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 128 + signal.SIGTERM
    assert not processes_with(mark)
    assert not list(Path(mark).iterdir())


def processes_with(text: str) -> list[int]:
    """Processes that have the text in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found
