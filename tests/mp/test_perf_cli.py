"""The command r2ccl-perf over the real library: alone, under mpiexec, and with torchrun's variables."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from r2ccl.costs import Costs
from r2ccl.perf.ops import OPS
from r2ccl.testing.placement import free_port

PERF = [sys.executable, "-m", "r2ccl.perf.cli"]
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "R2CCL_LAB")


def clean_environment(**more: str) -> dict[str, str]:
    """This environment without what would make r2ccl-perf believe that somebody else started it."""
    kept = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES and not k.startswith(("PMI_", "OMPI_"))}
    return {**kept, **more}


def perf(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*PERF, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=100, check=False)


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("op", list(OPS))
def test_alone_it_starts_its_own_ranks(op: str, tmp_path: Path) -> None:
    lines = tmp_path / "out.jsonl"
    done = perf(op, *"-g 3 -b 8 -e 2M -f 512 -n 3 -w 1 -r 1 --timeout-s 30 --json".split(), lines)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    found = results(lines)
    assert len(found) == (1 if op == "barrier" else 3) * (2 if OPS[op].call_in_place else 1)
    assert all(r["wrong"] == 0 and r["ranks"] == 3 and r["hosts"] == 1 and r["time_us"] > 0 for r in found)
    assert all(r["replayed"] == 0 for r in found)


def test_types_and_operators(tmp_path: Path) -> None:
    lines = tmp_path / "out.jsonl"
    done = perf("all_reduce", *"-g 3 -b 10K -e 10K -n 2 -w 0 -d all -o all --json".split(), lines)
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(lines)
    assert len({(r["dtype"], r["redop"]) for r in found}) == 14 * 5
    assert sum(r["wrong"] for r in found) == 0


def test_emulated_hosts_use_their_rails(tmp_path: Path) -> None:
    lines = tmp_path / "out.jsonl"
    done = perf("all_reduce", *"-g 4 --hosts 2 --rails 2 -b 4M -e 4M -n 5 -w 1 --json".split(), lines)
    assert done.returncode == 0, done.stdout + done.stderr
    for r in results(lines):
        assert (r["wrong"], r["hosts"], r["rails"]) == (0, 2, 2)


def test_a_rail_that_dies_is_repaired_and_reported(tmp_path: Path) -> None:
    lines = tmp_path / "out.jsonl"
    # A black hole amid the first call: a reset, or the end of a call, may find nothing on its way to be replayed.
    arguments = "-g 2 --hosts 2 --rails 2 -b 32M -e 32M -n 2 -w 0 --timeout-s 60 --json".split()
    done = perf("all_reduce", *arguments, lines, "--fault", "rank=0 rail=1 kind=blackhole after_bytes=6000000")
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(lines)
    assert sum(r["wrong"] for r in found) == 0
    assert sum(r["replayed"] for r in found) > 0
    assert sum(r["repair_ms"] for r in found) > 0


def test_without_check(tmp_path: Path) -> None:
    lines = tmp_path / "out.jsonl"
    done = perf("all_gather", *"-g 2 -b 64K -e 64K -n 20 -c 0 --json".split(), lines)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [r["wrong"] for r in results(lines)] == [None, None]


@pytest.mark.mpi
def test_under_mpiexec(tmp_path: Path) -> None:
    mpiexec = shutil.which("mpiexec") or shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpiexec or mpi4py is missing: pip install 'r2ccl[mpi]'")
    lines = tmp_path / "out.jsonl"
    command = [mpiexec, "-n", "3", *PERF, *"all_reduce -b 1K -e 1M -f 32 -n 3 --json".split(), str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("# Out of bounds values : 0 OK") == 1
    assert [(r["ranks"], r["wrong"]) for r in results(lines)] == [(3, 0)] * 6


def test_with_the_variables_of_torchrun(tmp_path: Path) -> None:
    lines = tmp_path / "out.jsonl"
    command = [*PERF, *"all_to_all -b 1K -e 1M -f 32 -n 3 --json".split(), str(lines)]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(**common, RANK=str(r), LOCAL_RANK=str(r)),
        )
        for r in range(2)
    ]
    try:
        out = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(out)
    assert "# Out of bounds values : 0 OK" in out[0]
    assert "#" not in out[1]
    assert [r["wrong"] for r in results(lines)] == [0, 0, 0]


def test_wrong_flags_end_with_two() -> None:
    done = perf("all_reduce", "-b", "8X")
    assert done.returncode == 2
    assert "8X" in done.stderr


def test_calibrate_writes_costs_that_plans_go_by(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    done = perf("--calibrate", file, *"-g 3 --hosts 2 --rails 2 --timeout-s 30".split())
    assert done.returncode == 0, done.stdout + done.stderr
    costs = json.loads(file.read_text())
    assert set(costs) == {f.name for f in fields(Costs)}
    assert costs["alpha_shm_us"] != Costs().alpha_shm_us
    assert costs["alpha_net_us"] != Costs().alpha_net_us
    assert costs["wire_share"] != 1.0
    # A much dearer network changes what is predicted; so does not a file that nobody named.
    file.write_text(json.dumps({**costs, "alpha_net_us": 1e6}))
    arguments = "all_reduce -g 2 --hosts 2 --rails 1 -b 8 -e 8 -n 1 -w 0 --explain".split()
    dear = perf(*arguments, "--config", f"costs={file}")
    assert dear.returncode == 0, dear.stdout + dear.stderr
    assert "exchange 1000000 us" in dear.stdout
    plain = perf(*arguments)
    assert "all_reduce of 8 bytes" in plain.stdout
    assert "1000000 us" not in plain.stdout


def test_costs_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    missing = perf(*"all_reduce -g 2 -b 8 -e 8 --config".split(), f"costs={tmp_path / 'no.json'}")
    assert missing.returncode == 1
    assert "cannot be read" in missing.stderr
    assert "r2ccl-perf --calibrate writes such files" in missing.stderr
    alone = perf("--calibrate", tmp_path / "c.json", "-g", "1")
    assert alone.returncode == 1
    assert "measures between ranks" in alone.stderr
    nothing = perf()
    assert nothing.returncode == 2
    assert "OP is missing" in nothing.stderr
