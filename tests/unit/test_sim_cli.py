"""The command line, scenario files and comparison with measurements."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from r2ccl.errors import InvalidArgument
from r2ccl.sim.cli import main
from r2ccl.sim.scenario import load, read, shipped
from r2ccl.sim.validate import simulated_ratio

SMALL = """
kind = "collective"
title = "small"
methods = ["balance", "r2ccl"]

[cluster]
servers = 3
gpus = 2
nics = 3
nic_gbs = 1.0
inside_gbs = 100.0

[call]
bytes = 1e7

[[failure]]
name = "one"
lost = { 0 = 1 }

[[published]]
failure = "one"
method = "balance"
value = 1.4
"""


def test_every_shipped_scenario_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    for name in shipped():
        scenario = load(name)
        assert name in listed and scenario.title in listed
        rows = {f.name for f in scenario.failures} | {f"{scenario.draws.failures} at random" if scenario.draws else ""}
        assert all(p.failure in rows for p in scenario.published), name


def test_run_prints_writes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, table, picture = tmp_path / "mine.toml", tmp_path / "rows.csv", tmp_path / "bars.png"
    file.write_text(SMALL)
    assert main(["run", str(file), "--csv", str(table), "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "mine: small" in text and "lower bound" in text and "3 servers x 2 GPUs" in text
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    balance = next(row for row in rows if row["method"] == "balance")
    assert float(balance["T / T_healthy"]) == pytest.approx(1.5, rel=0.01)
    assert float(balance["difference"]) == pytest.approx(float(balance["T / T_healthy"]) - 1.4)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["training_2p7b_16", "training_13b_tp_pp", "serving_70b_tp8_pp2"])
def test_shipped_scenarios_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", name]) == 0
    assert name in capsys.readouterr().out


def test_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--servers", "3", "6"]) == 0
    assert "simulation s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("nics = 3", "nicks = 3"), "unknown key 'nicks'; did you mean nics"),
        (('kind = "collective"', 'kind = "other"'), "kind = 'other' is not one of"),
        (('"balance", ', '"balanced", '), "method 'balanced' is not one of"),
        (("servers = 3", ""), "missing 1 required"),
        (("[call]\nbytes = 1e7", ""), r"needs a table \[call\]"),
        (("bytes = 1e7", 'bytes = 1e7\ncollective = "sum"'), "'sum' is not a collective"),
        (("servers = 3", "servers = "), "scenario bad"),
        (("{ 0 = 1 }", "{ first = 1 }"), "number of a server"),
        (("servers = 3", "servers = 0"), "must be positive"),
        (("nic_gbs = 1.0", 'nic_gbs = "fast"'), r"\[cluster\]"),
    ],
)
def test_a_bad_file_is_refused_with_the_word(change: tuple[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read("bad", SMALL.replace(*change))


def test_an_unknown_scenario_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "training_13b_tp_p"]) == 1
    assert "did you mean training_13b_tp_pp" in capsys.readouterr().err


def test_too_many_failures_are_refused() -> None:
    scenario = read("bad", SMALL.replace("{ 0 = 1 }", "{ 0 = 3 }"))
    from r2ccl.sim.run import run

    with pytest.raises(InvalidArgument, match="must keep one"):
        run(scenario)


def test_validate_reports_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "plans.jsonl"
    line = {"scenario": "3x2x3 lost 1,0,0", "algorithm": "ring", "measured": 1.6, "predicted": 1.5, "bound": 1.125}
    other = {"scenario": "something else", "algorithm": "tree_packing", "measured": 1.2, "predicted": 1.14}
    results.write_text(json.dumps(line) + "\n\n" + json.dumps(other) + "\n")
    assert main(["validate", "--results", str(results)]) == 0
    text = capsys.readouterr().out
    assert "planner: mean error 5.6 %" in text and "2 lines" in text
    assert "simulator: mean error 6." in text and "1 lines" in text
    assert simulated_ratio(line) == pytest.approx(1.5, rel=0.01)
    assert simulated_ratio(other) is None


@pytest.mark.parametrize("text", ["", "{}", "no json", '{"scenario": "a", "algorithm": "b", "measured": 0}'])
def test_validate_refuses_what_is_no_measurement(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "plans.jsonl"
    results.write_text(text)
    assert main(["validate", "--results", str(results)]) == 1
    assert str(results) in capsys.readouterr().err


def test_validate_without_measurements_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--results", str(tmp_path / "none.jsonl")]) == 1
    assert "run the benchmark of plans first" in capsys.readouterr().err
