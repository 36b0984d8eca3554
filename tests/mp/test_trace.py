"""Traces: valid JSON, a slice for every chunk that stats() counts, repairs included, and bounded."""

from __future__ import annotations

import collections
import itertools
import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sight_checks import Comm

import r2ccl
from r2ccl import Config
from r2ccl.testing import FaultScript, run_ranks

pytestmark = pytest.mark.timeout(60)

Trace = dict[str, Any]


def load(path: Path | str) -> Trace:
    """The file, checked for what every viewer relies on."""
    trace: Trace = json.loads(Path(path).read_text())
    rows: dict[Any, list[Any]] = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X", "i"), event
        if event["ph"] == "X":
            rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        for a, b in itertools.pairwise(sorted(spans)):
            assert a[1] <= b[0] + 0.25, "slices of a row overlap"  # times are rounded to a quarter of a microsecond
    return trace


def rows_of(trace: Trace) -> dict[int, str]:
    """Titles by row; those of further lines of a row without their number."""
    found = [e for e in trace["traceEvents"] if e["name"] == "thread_name"]
    return {e["tid"]: e["args"]["name"].split(" (")[0] for e in found}


def slices(trace: Trace, *words: str) -> list[dict[str, Any]]:
    """Slices in rows whose title has all these words."""
    titles = rows_of(trace)
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and set(words) <= set(titles[e["tid"]].split())]


@pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (2, 2)], ids=["shm", "tcp"])
def test_slices_are_what_stats_counts(tmp_path: Path, hosts: int, rails: int) -> None:
    def work(comm: Comm) -> dict[str, Any]:
        x = np.ones(300_000)
        for _ in range(4):
            comm.all_reduce(x)
        out = np.zeros(10)
        with comm.group():
            comm.send(x[:10], 1 - comm.rank)
            comm.recv(out, 1 - comm.rank)
        comm.barrier()
        stats = comm.stats()
        comm.dump_trace(tmp_path / f"now-{comm.rank}.json")
        comm.barrier()
        return stats

    config = Config(trace=str(tmp_path / "end-{rank}.json"))
    every = run_ranks(work, 2, hosts=hosts, rails=rails, config=config, timeout_s=30)
    for rank, stats in enumerate(every):
        trace = load(tmp_path / f"now-{rank}.json")
        assert trace["otherData"]["dropped_records"] == 0
        sent, come = slices(trace, "to"), slices(trace, "from")
        assert len(sent) == stats["chunks_sent"]
        assert len(come) == stats["chunks_received"]
        assert sum(e["args"]["bytes"] for e in sent) == 4 * 300_000 * 8 + 80
        for link in stats["links"]:
            mine = slices(trace, link["rail"], "to")
            payload = sum(e["args"]["bytes"] for e in mine)
            # The rest are headers and control frames.
            assert payload <= link["tx_bytes"] < payload + 200 * (len(mine) + 20)
        calls = slices(trace, "calls")
        assert len(calls) == stats["calls"] == 7
        assert [c["name"] for c in calls[:4]] == ["all_reduce"] * 4
        names = {c["name"] for c in calls}
        assert {f"send to rank {1 - rank}", f"recv from rank {1 - rank}", "barrier"} <= names
        for call in calls[:4]:
            inside = [e for e in sent if e["args"]["call"] == call["args"]["number"] and e["args"]["lane"] != 255]
            assert inside
            assert all(call["ts"] <= e["ts"] + 1 for e in inside)
        end = load(tmp_path / f"end-{rank}.json")
        assert len(slices(end, "calls")) == 8, "the file of close() has the last call, too"


def test_a_repair_is_seen(tmp_path: Path) -> None:
    fault = str(FaultScript().tx_drop(rail=1, after_bytes=2_000_000))

    def config(rank: int) -> Config:
        script = fault if rank == 0 else ""
        return Config(trace=str(tmp_path / "t-{rank}.json"), recovery=False, fault_script=script)

    def work(comm: Comm) -> dict[str, Any]:
        x = np.ones(1_000_000)
        for _ in range(6):
            comm.all_reduce(x, op=r2ccl.ReduceOp.MAX)
        assert (x == 1).all()
        comm.barrier()
        return comm.stats()

    stats = run_ranks(work, 2, hosts=2, rails=2, config=config, timeout_s=40)[0]
    assert stats["repairs"] == 1
    trace = load(tmp_path / "t-0.json")
    again = [e for e in slices(trace, "to") if e["args"].get("replay") == "failed link"]
    lost = [e for e in slices(trace, "to") if e["args"].get("fate") == "lost"]
    assert len(again) == len(lost) == stats["replayed_chunks"]
    # Some may have been taken for slow first.
    slow = [e for e in slices(trace, "to") if e["args"].get("replay") == "slow link"]
    assert len(slow) == stats["hedged_chunks"]
    assert again or slow
    titles = rows_of(trace)
    dead, alive = stats["rails"][1]["name"], stats["rails"][0]["name"]
    assert {titles[e["tid"]].split()[0] for e in lost} <= {dead}
    assert {titles[e["tid"]].split()[0] for e in again} <= {alive}
    marks = [e["name"] for e in trace["traceEvents"] if e["ph"] == "i" and titles[e["tid"]].startswith(f"{dead} with")]
    assert marks[:2] == ["link_suspect", "link_down"]
    assert "repaired" in marks
    (repair,) = [e for e in slices(trace, dead) if e["name"] == "repair"]
    assert repair["dur"] / 1e3 == pytest.approx(stats["repair_ms"], abs=0.01)
    assert all(repair["ts"] <= e["ts"] <= repair["ts"] + repair["dur"] for e in again)


def test_the_ring_is_bounded_and_says_what_it_lost(tmp_path: Path) -> None:
    def work(comm: Comm) -> None:
        for _ in range(600):
            comm.all_reduce(np.ones(10))
        comm.dump_trace(tmp_path / f"{comm.rank}.json")
        comm.barrier()

    run_ranks(work, 2, config=Config(trace=str(tmp_path / "t{rank}"), trace_records=1024), timeout_s=30)
    other = load(tmp_path / "0.json")["otherData"]
    assert other["records"] == 1024
    assert other["dropped_records"] > 1000
    last = max(c["args"]["number"] for c in slices(load(tmp_path / "0.json"), "calls"))
    assert last == 599, "the newest are kept"


def test_every_communicator_writes_a_file_of_its_own(tmp_path: Path) -> None:
    def work(comm: Comm, template: str) -> None:
        half = comm.split(comm.rank)
        assert half is not None
        half.barrier()
        half.close()

    for template in ("a-{rank}.json", "b-{rank}-{comm}", "c.d-{rank}"):
        run_ranks(work, 2, config=Config(trace=str(tmp_path / template)), args=(template,), timeout_s=20)
    # Ranks are those of the communicator, which its name tells apart from others.
    assert {p.name for p in tmp_path.iterdir()} == {
        "a-0.json", "a-1.json", "a-0-world.1.0.json", "a-0-world.1.1.json",
        "b-0-world", "b-1-world", "b-0-world.1.0", "b-0-world.1.1",
        "c.d-0", "c.d-1", "c-world.1.0.d-0", "c-world.1.1.d-0",
    }  # fmt: skip


def test_a_file_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    config = Config(trace=str(tmp_path / "absent" / "{rank}.json"))
    with caplog.at_level(logging.WARNING, "r2ccl"), r2ccl.init(config=config) as comm:
        comm.barrier()
    assert f"no trace is written to {tmp_path / 'absent' / '0.json'}" in caplog.text


def test_no_trace_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with (
        r2ccl.init(config=Config()) as comm,
        pytest.raises(r2ccl.InvalidArgument, match=r"R2CCL_TRACE.*trace-\{rank\}"),
    ):
        comm.dump_trace(tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("template", ["{rank", "{host}-{rank}", "{}-{rank}", "{rank.x}", "trace.json", "{rank:z}"])
def test_templates_of_no_use_are_refused(template: str) -> None:
    with pytest.raises(r2ccl.InvalidArgument, match=r"Config.trace = "):
        Config(trace=template)


def test_a_dump_while_calls_run(tmp_path: Path) -> None:
    def work(comm: Comm) -> None:
        stop = threading.Event()

        def dump() -> None:
            for i in range(5):
                comm.dump_trace(tmp_path / f"{comm.rank}-{i}.json")
            stop.set()

        thread = threading.Thread(target=dump)
        thread.start()
        flag = np.ones(1)
        while flag[0]:
            comm.all_reduce(np.ones(5000))
            flag[0] = not stop.is_set()
            comm.all_reduce(flag, op=r2ccl.ReduceOp.MAX)
        thread.join()

    run_ranks(work, 2, config=Config(trace=str(tmp_path / "end-{rank}")), timeout_s=40)
    assert len([load(p) for p in tmp_path.glob("*-*.json")]) == 10
