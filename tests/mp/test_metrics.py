"""Prometheus metrics: what a scrape shows is what stats() shows, and nothing about them can hurt a job."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sight_checks import Comm

import r2ccl
from r2ccl import Config
from r2ccl.testing import FaultScript, run_ranks
from r2ccl.testing.ranks import free_port

pytestmark = pytest.mark.timeout(60)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(port: int, host: str = "127.0.0.1") -> Samples:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    assert all(f.documentation for f in families)
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    """Of the one sample with these labels among its own."""
    (found,) = [v for (n, own), v in samples.items() if n == name and own >= set(labels.items())]
    return found


def free_ports(count: int) -> int:
    """The first of that many free ports in a row."""
    for _ in range(50):
        first = free_port()
        try:
            for port in range(first, first + count):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise AssertionError("no free ports")


def world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


def test_a_scrape_shows_what_stats_shows() -> None:
    port = free_ports(2)

    def work(comm: Comm) -> None:
        x = np.ones(100_000)
        for _ in range(5):
            comm.all_reduce(x)
        comm.barrier()
        # The other rank may be in its next barrier already: what is shown lies between two looks.
        before = comm.stats()
        samples = scrape(port + comm.local_rank)
        after = comm.stats()
        own = {"rank": str(comm.rank), "job": "bench", "comm": "world"}
        assert value(samples, "r2ccl_calls_total", **own) == before["calls"] == 6
        for direction in ("sent", "received"):
            shown, key = value(samples, "r2ccl_chunks_total", direction=direction, **own), f"chunks_{direction}"
            assert 5 < before[key] <= shown <= after[key]
        keys = ("replayed_chunks", "hedged_chunks", "duplicate_chunks", "repairs", "events_dropped")
        for key in (*keys, "relayed_chunks", "forwarded_chunks"):
            assert value(samples, f"r2ccl_{key}_total", **own) == before[key]
        for direction in ("tx", "rx"):
            shown, key = (
                value(samples, "r2ccl_rail_bytes_total", rail="shm", direction=direction, **own),
                f"{direction}_bytes",
            )
            assert 100_000 < before["links"][0][key] <= shown <= after["links"][0][key]
        assert value(samples, "r2ccl_links", rail="shm", state="up", **own) == 1
        assert value(samples, "r2ccl_up", **own) == 1
        assert value(samples, "r2ccl_call_seconds", **own) == 0
        comm.barrier()
        comm.close()
        with pytest.raises(OSError):
            scrape(port + comm.local_rank)
        assert "r2ccl-sight" not in {t.name for t in threading.enumerate()}

    run_ranks(work, 2, config=Config(metrics_port=port, job="bench", top=False), timeout_s=30)


def test_a_repair_and_the_rails_are_seen() -> None:
    port = free_ports(1)
    fault = str(FaultScript().blackhole(rail=1, after_bytes=200_000))

    def config(rank: int) -> Config:
        return Config(metrics_port=port if rank == 0 else 0, recovery=False, fault_script=fault if rank == 0 else "")

    def work(comm: Comm) -> None:
        x = np.ones(50_000)
        deadline = time.monotonic() + 20
        flag = np.ones(1)
        while flag[0]:
            comm.all_reduce(x, op=r2ccl.ReduceOp.MAX)
            flag[0] = comm.stats()["repairs"] == 0
            assert time.monotonic() < deadline, "the fault did not strike"
            comm.broadcast(flag)
        comm.barrier()
        if comm.rank == 0:
            samples, stats = scrape(port), comm.stats()
            dead = stats["rails"][1]["name"]
            assert value(samples, "r2ccl_repairs_total") == stats["repairs"] >= 1
            assert value(samples, "r2ccl_repair_seconds_total") == pytest.approx(stats["repair_ms"] * 1e-3)
            assert value(samples, "r2ccl_replayed_chunks_total") == stats["replayed_chunks"]
            assert value(samples, "r2ccl_rail_state", rail=dead, state="down") == 1
            assert value(samples, "r2ccl_rail_state", rail=dead, state="up") == 0
            assert value(samples, "r2ccl_links", rail=dead, state="down") == 1
            again = [v for (n, _), v in samples.items() if n == "r2ccl_rail_replayed_bytes_total"]
            assert sum(again) == sum(r["replayed_bytes"] for r in stats["rails"])
        comm.barrier()

    run_ranks(work, 2, hosts=2, rails=2, config=config, timeout_s=40)


def test_a_call_that_hangs_is_seen_by_its_age() -> None:
    port = free_ports(2)

    def work(comm: Comm) -> None:
        comm.barrier()
        if comm.rank == 1:
            time.sleep(0.8)
            comm.barrier()
            return
        handle = comm.all_reduce(np.ones(0), async_op=True) if comm.size == 1 else None
        assert handle is None
        thread = threading.Thread(target=comm.barrier)
        thread.start()
        time.sleep(0.5)
        assert 0.2 < value(scrape(port), "r2ccl_call_seconds") < 5
        thread.join()

    run_ranks(work, 2, config=Config(metrics_port=port), timeout_s=30)


def test_a_port_that_is_taken_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    world_of_one(monkeypatch)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with caplog.at_level(logging.WARNING, "r2ccl"), r2ccl.init(config=Config(metrics_port=port)) as comm:
            comm.barrier()
    assert f"no metrics at 127.0.0.1 port {port}: " in caplog.text
    assert "Config.metrics_port" in caplog.text


@pytest.mark.parametrize(
    "settings",
    [{"metrics_port": 9400, "metrics_address": "192.0.2.1"}, {"metrics_port": 9400, "metrics_address": "no such name"}],
)
def test_an_address_of_no_use_is_a_warning(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world_of_one(monkeypatch)
    with caplog.at_level(logging.WARNING, "r2ccl"), r2ccl.init(config=Config(**settings)) as comm:
        comm.barrier()
    assert "Config.metrics_address" in caplog.text


def test_without_the_package_there_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world_of_one(monkeypatch)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # an import of it fails
    monkeypatch.delitem(sys.modules, "r2ccl.observe.metrics", raising=False)
    with caplog.at_level(logging.WARNING, "r2ccl"), r2ccl.init(config=Config(metrics_port=free_ports(1))) as comm:
        comm.barrier()
    assert "pip install r2ccl[metrics]" in caplog.text


def test_clients_that_say_nothing_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world_of_one(monkeypatch)
    port = free_ports(1)
    before = len(os.listdir("/proc/self/fd"))
    silent = socket.socket()
    with r2ccl.init(config=Config(metrics_port=port)) as comm:
        silent.connect(("127.0.0.1", port))
        silent.sendall(b"GET /met")
        comm.barrier()
        begin = time.monotonic()
        comm.close()
        assert time.monotonic() - begin < 3.0
    silent.close()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert "r2ccl-sight" not in {t.name for t in threading.enumerate()}


def test_communicators_made_by_split_are_on_the_same_port(tmp_path: Path) -> None:
    port = free_ports(2)

    def work(comm: Comm) -> None:
        half = comm.split(0)
        assert half is not None
        half.barrier()
        half.barrier()
        comm.barrier()
        samples = scrape(port + comm.local_rank)
        assert value(samples, "r2ccl_calls_total", comm="world.1.0") == 2
        assert value(samples, "r2ccl_up", comm="world") == 1
        half.close()
        assert not [1 for _, labels in scrape(port + comm.local_rank) if ("comm", "world.1.0") in labels]
        comm.barrier()

    run_ranks(work, 2, config=Config(metrics_port=port), timeout_s=30)
