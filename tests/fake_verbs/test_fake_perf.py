"""The command line over queue pairs: measuring, and the fault drill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2ccl.perf.cli import main

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("op", ["all_reduce", "sendrecv"])
def test_measuring(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_TRANSPORT", "tcp")  # the flag wins
    out = tmp_path / "out.jsonl"
    flags = f"{op} -b 64K -e 1M -f 16 -n 3 -w 1 --hosts 2 --rails 2 --transport verbs --json {out}"
    assert main(flags.split()) == 0
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(results) >= 2


def test_the_drill(capfd: pytest.CaptureFixture[str]) -> None:
    """Every rail fails by its device, is repaired, and comes back."""
    assert main("--selftest verbs -g 2 --rails 2".split()) == 0
    text = capfd.readouterr().out
    rows = [line.split() for line in text.splitlines() if line.startswith("127.0.0.")]
    assert [row[0] for row in rows] == ["127.0.0.1", "127.0.0.2"], text
    assert all(row[-1] == "passed" for row in rows), text
    assert "0 wrong elements" in text


def test_the_drill_over_tcp(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rails without a port are reset."""
    monkeypatch.setenv("R2CCL_TRANSPORT", "tcp")
    assert main("--selftest verbs -g 2 --rails 1".split()) == 0
    assert "passed" in capfd.readouterr().out


def test_the_drill_without_rails(capfd: pytest.CaptureFixture[str]) -> None:
    assert main("--selftest verbs -g 2 --hosts 1 --rails 0".split()) == 1
    assert "no rail is in use" in capfd.readouterr().err
