"""``r2ccl-lab run``: environment, output, exit codes, ends of runs, and the report on faults."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2ccl.errors import InvalidArgument
from r2ccl.lab import Fabric, available, run_ranks_on
from r2ccl.lab.report import cuts, summary

WHY_NOT = available()
pytestmark = [pytest.mark.lab, pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}")]
LAB = [sys.executable, "-m", "r2ccl.lab.cli"]

# Rank 0 sends to rank 1: a TCP stream on rail 0; on rail 1 another ("tcp"), or datagrams that nobody answers ("udp").
SENDER = """
import os, socket, sys, threading, time
rank, seconds, second = int(os.environ["RANK"]), float(sys.argv[1]), sys.argv[2]
end = time.monotonic() + seconds
def serve(rail):
    with socket.create_server((f"10.{100 + rail}.0.2", 7000)) as listener:
        peer, _ = listener.accept()
        peer.settimeout(0.1)
        while time.monotonic() < end:
            try:
                peer.recv(1 << 20)
            except OSError:
                pass
def send(rail):
    out = socket.create_connection((f"10.{100 + rail}.0.2", 7000), 2)
    out.settimeout(0.1)
    try:
        while time.monotonic() < end:
            if rail and second == "udp":
                datagrams.sendto(bytes(1400), (f"10.{100 + rail}.0.2", 7001))
                time.sleep(0.001)
            else:
                out.send(bytes(65536))
    except OSError:
        out.close()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if rank == 0:
    time.sleep(0.3)
threads = [threading.Thread(target=serve if rank == 1 else send, args=(rail,)) for rail in (0, 1)]
[thread.start() for thread in threads]
if rank == 0:
    time.sleep(0.3)
    print("step 1 done", flush=True)
[thread.join() for thread in threads]
"""


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=2, rails=2, rate="100mbit") as built:
        yield built


def test_ranks_get_torchruns_variables_on_their_hosts(fabric: Fabric) -> None:
    result = run_ranks_on(fabric, ["sh", "-c", "hostname; env"], 2, {"EXTRA": "7", "R2CCL_RAILS": "rail1"})
    assert result.exit_code == 0
    secrets, ports = set(), set()
    for rank, got in enumerate(result.ranks):
        hostname, *lines = got.stdout.splitlines()
        env = dict(line.split("=", 1) for line in lines if "=" in line)
        assert (hostname, got.rank, got.host, got.returncode) == (f"host{rank // 2}", rank, rank // 2, 0)
        expected = {
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": str(rank % 2),
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2),
            "MASTER_ADDR": "10.99.0.1",
            "R2CCL_LAB": "1",
            "EXTRA": "7",
            "R2CCL_RAILS": "rail1",
        }
        assert {name: env[name] for name in expected} == expected
        secrets.add(env["R2CCL_SECRET"])
        ports.add(int(env["MASTER_PORT"]))
    assert len(secrets) == len(ports) == 1
    assert len(secrets.pop()) == 32


def test_first_failure_is_the_exit_code_and_the_others_are_ended(fabric: Fabric) -> None:
    script = "trap 'exit 9' TERM; if test $RANK = 1; then exit 5; fi; sleep 60 & wait"
    begin = time.monotonic()
    result = run_ranks_on(fabric, ["sh", "-c", script], grace_s=0.2)
    assert result.exit_code == 5
    assert [rank.returncode for rank in result.ranks] == [9, 5]
    assert 0.2 <= time.monotonic() - begin < 10


def test_a_signal_counts_as_128_more_and_a_deaf_rank_is_killed(fabric: Fabric) -> None:
    script = "if test $RANK = 1; then kill -ABRT $$; fi; trap '' TERM; sleep 60; sleep 60"
    result = run_ranks_on(fabric, ["sh", "-c", script], grace_s=0.1, kill_after_s=0.2)
    assert result.exit_code == 128 + signal.SIGABRT
    assert [rank.returncode for rank in result.ranks] == [-signal.SIGKILL, -signal.SIGABRT]


def test_a_time_out_ends_all(fabric: Fabric) -> None:
    result = run_ranks_on(fabric, ["sleep", "60"], timeout_s=0.2)
    assert result.timed_out
    assert result.exit_code == 124
    assert result.elapsed_s < 10


def test_a_daemon_that_keeps_the_pipes_does_not_keep_the_run(fabric: Fabric) -> None:
    result = run_ranks_on(fabric, ["sh", "-c", "setsid sleep 60 & echo out"], timeout_s=30)
    assert result.exit_code == 0
    assert not result.timed_out
    assert [rank.stdout for rank in result.ranks] == ["out\n", "out\n"]


def test_faults_are_checked_before_a_rank_starts(fabric: Fabric, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="host=5"):
        run_ranks_on(fabric, ["touch", str(tmp_path / "started")], faults=["t=0s host=5 rail=0 down"])
    assert not (tmp_path / "started").exists()


def _lab(*argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LAB, *argv], capture_output=True, text=True, timeout=60, **options)


def _run_with_cut(tmp_path: Path, second_stream: str, fault: str) -> tuple[dict, str]:
    file = tmp_path / "report.json"
    argv = ["run", "--rails", "2", "--rate", "100mbit", "--report", str(file), "--counters", "--fault", fault]
    done = _lab(*argv, "--", sys.executable, "-c", SENDER, "1.8", second_stream)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "step 1 done\n"
    return json.loads(file.read_text()), done.stderr


def test_report_shows_that_a_cut_rail_is_left_alone(tmp_path: Path) -> None:
    report, printed = _run_with_cut(tmp_path, "tcp", "on='step 1' host=0 rail=1 blackhole")
    (fault,) = report["faults"]
    assert 0.3 < fault["called_s"] < fault["fired_s"] < 1.5
    (place,) = fault["places"]
    assert place["evidence_at_end"]["dropped_packets"] > 0
    labels = [sample["label"] for sample in report["samples"]]
    assert labels[0] == "start"
    assert labels[1].startswith("after ")
    assert labels[2].startswith("0.5 s after ")
    assert labels[-1] == "end"
    carried = {
        (rail["host"], rail["rail"]): rail["nic"]["tx_bytes"] - begin["nic"]["tx_bytes"]
        for begin, rail in zip(report["samples"][2]["rails"], report["samples"][-1]["rails"], strict=True)
    }
    assert carried[0, 0] > 1_000_000  # the living rail goes on
    (cut,) = report["cuts"]
    assert cut["silent"] is True
    assert cut["permanent"] is True
    assert cut["payload_bytes_after"] <= cut["bytes_after"] < 65536
    assert "silent after the cut: yes" in printed
    assert re.search(r"fired at \d\.\d+ s: on='step 1' host=0 rail=1 blackhole \(\d+ frames dropped\)", printed)


def test_report_tells_when_a_cut_rail_is_still_used(tmp_path: Path) -> None:
    report, printed = _run_with_cut(tmp_path, "udp", "on='step 1' host=0 rail=1 blackhole")
    (cut,) = report["cuts"]
    assert cut["silent"] is False
    assert cut["payload_bytes_after"] > 100_000
    assert report["faults"][0]["places"][0]["evidence_at_end"]["dropped_packets"] > 100
    assert "silent after the cut: no" in printed


def test_a_cut_that_heals_soon_has_no_verdict(fabric: Fabric) -> None:
    result = run_ranks_on(
        fabric, ["sleep", "0.5"], faults=["t=50ms rail=1 switch for=100ms", "t=9s host=0 rail=0 down"]
    )
    assert [(cut.host, cut.rail, cut.permanent, cut.silent) for cut in cuts(result)] == [
        (0, 1, False, None),
        (1, 1, False, None),
    ]
    switch, late = result.faults
    assert switch.healed_s - switch.fired_s == pytest.approx(0.1, abs=0.09)
    assert switch.evidence[0, 1]["switch"] == "down"
    assert fabric.evidence(0, 1)["switch"] == "up"
    assert late.fired_s is None
    assert "NOT FIRED" in "\n".join(summary(fabric, result))


def test_output_of_other_ranks_is_marked_or_left_out() -> None:
    show = ["--rails", "1", "--", "sh", "-c", "echo out; echo err >&2; printf tail"]
    marked = _lab("run", *show)
    assert marked.stdout == "out\ntail"
    assert "[rank 1] out\n" in marked.stderr
    assert "[rank 1] err\n" in marked.stderr
    assert "[rank 1] tail\n" in marked.stderr
    quiet = _lab("run", "--quiet-others", *show)
    assert quiet.stdout == "out\ntail"
    assert "err\n" in quiet.stderr
    assert "rank 1" not in quiet.stderr


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["run", "--rails", "1"], 2, "no command"),
        (["run", "--rails", "1", "--fault", "t=1s host=0 rail=0 dwn", "--", "true"], 2, "did you mean 'down'"),
        (["run", "--env", "X", "--", "true"], 2, "NAME=VALUE"),
        (["run", "--ranks", "0", "--", "true"], 2, "--ranks 0"),
        (["run", "--rails", "1", "--", "no-such-program"], 3, "no-such-program"),
        (["run", "--rails", "1", "--", "sh", "-c", "exit $((RANK * 3))"], 3, "exit code 3"),
        (["check"], 0, ""),
    ],
)
def test_exit_codes(argv: list[str], code: int, message: str) -> None:
    done = _lab(*argv)
    assert done.returncode == code, done.stderr
    assert message in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_ranks_and_the_lab(number: signal.Signals, tmp_path: Path) -> None:
    script = f"trap 'echo $RANK >> {tmp_path}/ended; exit 1' TERM; echo ready; sleep 60 & wait"
    argv = [*LAB, "run", "--rails", "1", "--", "sh", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        assert lab.stdout.readline() == "ready\n"
        time.sleep(0.1)  # rank 1 has set its trap too
        os.kill(lab.pid, number)
        lab.communicate(timeout=20)
    assert lab.returncode == 128 + number
    assert sorted((tmp_path / "ended").read_text().split()) == ["0", "1"]
