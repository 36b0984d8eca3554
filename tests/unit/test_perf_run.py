"""r2ccl-perf without a network: flags, sizes, and the measurement over a communicator of threads."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from r2ccl.config import Config
from r2ccl.perf import flags as flags_module
from r2ccl.perf.flags import Flags, parse
from r2ccl.perf.launcher import launcher
from r2ccl.perf.ops import OPS
from r2ccl.perf.run import run
from r2ccl.perf.sizes import ladder, parse_size
from r2ccl.types import DType, ReduceOp


class Work:
    plan = "threads"

    def wait(self) -> None: ...


class World:
    """What the ranks of one ThreadComm world share."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.table: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=20)


class ThreadComm:
    """The communicator's API between threads: every call swaps whole arrays through a table."""

    def __init__(self, world: World, rank: int, spoil: Callable[[ThreadComm, str, np.ndarray], None]) -> None:
        self.world, self.rank, self.size, self.device = world, rank, world.ranks, "cpu"
        self.spoil = spoil
        self.calls = 0
        self.mail: Any = None

    def stats(self) -> dict[str, Any]:
        return {"replayed_chunks": self.calls, "repairs": 0, "repair_ms": 0.5 * self.calls, "rails": [{}], "hosts": 1}

    def swap(self, mine: Any) -> list[Any]:
        self.world.table[self.rank] = None if mine is None else mine.copy()
        self.world.barrier.wait()
        table = list(self.world.table)
        self.world.barrier.wait()
        return table

    def done(self, name: str, out: np.ndarray | None, values: np.ndarray | None) -> Work:
        if out is not None and values is not None:
            out[...] = values
            self.spoil(self, name, out)
        self.calls += 1
        return Work()

    def combine(self, parts: list[np.ndarray], op: ReduceOp) -> np.ndarray:
        wide = [p.astype(np.float64) for p in parts]
        total = {
            ReduceOp.SUM: np.sum, ReduceOp.AVG: np.mean, ReduceOp.MIN: np.min, ReduceOp.MAX: np.max,
            ReduceOp.PROD: np.prod,
        }[op](wide, axis=0)  # fmt: skip
        return total.astype(parts[0].dtype)

    def all_reduce(self, send: Any, recv: Any = None, op: ReduceOp = ReduceOp.SUM) -> Work:
        return self.done("all_reduce", send if recv is None else recv, self.combine(self.swap(send), op))

    def reduce(self, send: Any, recv: Any = None, op: ReduceOp = ReduceOp.SUM, root: int = 0) -> Work:
        total = self.combine(self.swap(send), op)
        if self.rank != root:
            assert recv is None
            return self.done("reduce", None, None)
        return self.done("reduce", send if recv is None else recv, total)

    def broadcast(self, send: Any, recv: Any = None, root: int = 0) -> Work:
        return self.done("broadcast", send if recv is None else recv, self.swap(send)[root])

    def all_gather(self, send: Any, recv: Any) -> Work:
        return self.done("all_gather", recv, np.concatenate(self.swap(send)))

    def reduce_scatter(self, send: Any, recv: Any, op: ReduceOp) -> Work:
        total = self.combine(self.swap(send), op)
        return self.done("reduce_scatter", recv, total.reshape(self.size, -1)[self.rank])

    def all_to_all(self, send: Any, recv: Any) -> Work:
        blocks = [part.reshape(self.size, -1)[self.rank] for part in self.swap(send)]
        return self.done("all_to_all", recv, np.concatenate(blocks))

    def gather(self, send: Any, recv: Any = None, root: int = 0) -> Work:
        assert (recv is not None) == (self.rank == root)
        return self.done("gather", recv, np.concatenate(self.swap(send)))

    def scatter(self, send: Any = None, recv: Any = None, root: int = 0) -> Work:
        assert (send is not None) == (self.rank == root)
        return self.done("scatter", recv, self.swap(send)[root].reshape(self.size, -1)[self.rank])

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        yield
        send, target, recv, source = self.mail
        arrived = self.swap(send)[source]
        assert target == (self.rank + 1) % self.size
        self.done("sendrecv", recv, arrived)

    def send(self, buf: Any, peer: int) -> None:
        self.mail = (buf, peer)

    def recv(self, buf: Any, peer: int) -> None:
        self.mail = (*self.mail, buf, peer)

    def barrier(self) -> Work:
        self.world.barrier.wait()
        return Work()


def nothing(comm: ThreadComm, name: str, out: np.ndarray) -> None: ...


def measure(flags: Flags, ranks: int, spoil: Callable[..., None] = nothing) -> list[int]:
    world = World(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(lambda r: run(ThreadComm(world, r, spoil), flags), range(ranks)))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective_is_measured_and_checked(
    op: str, ranks: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = tmp_path / "results.jsonl"
    argv = f"{op} -b 8 -e 512K -f 256 -n 2 -w 1 -r 1 -d float64 --json {lines}".split()
    assert measure(parse(argv), ranks) == [0] * ranks
    results = [json.loads(line) for line in lines.read_text().splitlines()]
    sizes = 1 if op == "barrier" else 3
    assert len(results) == sizes * (2 if OPS[op].call_in_place else 1)
    for r in results:
        assert (r["wrong"], r["ranks"], r["hosts"], r["rails"]) == (0, ranks, 1, 1)
        assert r["root"] == (1 if OPS[op].rooted else -1)
        assert r["bytes"] == r["count"] * 8 * (ranks if OPS[op].divided else 1)
        assert r["busbw_GBps"] == pytest.approx(r["algbw_GBps"] * OPS[op].factor(ranks))
        assert r["time_us"] > 0
        if r["bytes"]:
            assert r["algbw_GBps"] == pytest.approx(r["bytes"] / r["time_us"] / 1e3)
        assert op in ("barrier", "sendrecv") or r["plan"] == "threads"
        assert op == "barrier" or r["replayed"] == 3 * ranks
        assert op == "barrier" or r["repair_ms"] == 1.5
    out = capsys.readouterr().out
    assert "# Out of bounds values : 0 OK" in out
    assert "# Avg bus bandwidth" in out
    rows = [line for line in out.splitlines() if not line.startswith("#")]
    assert len(rows) == sizes
    assert {len(row.split()) for row in rows} == {15}


@pytest.mark.parametrize("op", [name for name in OPS if name != "barrier"])
def test_one_corrupted_element_is_counted_once(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The negative control: one element, one rank (the root), one iteration, in and out of place."""

    def spoil(comm: ThreadComm, name: str, out: np.ndarray) -> None:
        if name == op and comm.rank == 1 and comm.calls % 16 == 1:
            out[-1] += 1

    argv = f"{op} -b 48K -e 48K -n 2 -w 0 -r 1 -d int32".split()
    assert measure(parse(argv), 3, spoil) == [1, 1, 1]
    assert "# Out of bounds values : 1 FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "uint64"])
def test_all_operators_on_other_types(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(parse(f"all_reduce -b 1K -e 1K -n 1 -w 0 -d {dtype} -o all".split()), 3) == [0] * 3
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [row[3] for row in rows] == ["sum", "prod", "min", "max", "avg"]


def test_without_check_nothing_is_called_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    def spoil(comm: ThreadComm, name: str, out: np.ndarray) -> None:
        if name == "all_gather":
            out[...] = 0

    assert measure(parse("all_gather -b 1K -e 1K -n 3 -c 0".split()), 2, spoil) == [0, 0]
    out = capsys.readouterr().out
    assert "not checked" in out
    assert "N/A" in out


def test_every_root_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure(parse("broadcast -b 1K -e 1K -n 1 -r -1".split()), 3) == [0] * 3
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [row[4] for row in rows] == ["0", "1", "2"]


# ------------------------------------------------------------------------------------------------------ flags


def test_sizes() -> None:
    assert [parse_size(t) for t in ("8", "64K", "1m", "1.5G")] == [8, 65536, 1 << 20, 3 << 29]
    assert list(ladder(8, 64, factor=2)) == [8, 16, 32, 64]
    assert list(ladder(8, 60, factor=2)) == [8, 16, 32]
    assert list(ladder(8, 30, step=10)) == [8, 18, 28]
    assert list(ladder(8, 30)) == [8]
    assert list(ladder(0, 30, factor=2)) == [0]


def test_names_of_nccl_tests_are_understood() -> None:
    flags = parse(["alltoall_perf", "--minbytes", "1K", "--maxbytes", "1M", "-f", "2", "-d", "half", "-o", "max"])
    assert (flags.op, flags.min_bytes, flags.max_bytes, flags.factor) == ("all_to_all", 1024, 1 << 20, 2)
    assert flags.dtypes == (DType.FLOAT16,)
    assert len(parse(["reduce", "-d", "all"]).dtypes) == 14


def test_settings_reach_the_config_of_the_rank_they_are_for() -> None:
    argv = ["all_reduce", "--config", "chunk_bytes=64K", "--config", "algorithm=ring", "--timeout-s", "9"]
    flags = parse([*argv, "--fault", "rank=1 rail=0 kind=reset after_ms=5", "--fault", "rail=1 kind=tx-drop"])
    zero, one = flags.config(0, {}), flags.config(1, {"R2CCL_SHM": "0"})
    assert zero == Config(
        chunk_bytes=65536, algorithm="ring", timeout_s=9, fault_script="rail=1 peer=* kind=tx-drop after_bytes=0"
    )
    assert one.fault_script.splitlines()[0] == "rail=0 peer=* kind=reset after_ms=5"
    assert not one.shm


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["all_red"], "all_reduce"),
        (["all_reduce", "-b", "8X"], "8X"),
        (["all_reduce", "-b", "2M", "-e", "1M"], "more than -e"),
        (["all_reduce", "-f", "2", "-i", "8"], "one of the two"),
        (["all_reduce", "-f", "1"], "never ends"),
        (["all_reduce", "-n", "0"], "at least 1"),
        (["all_reduce", "-d", "float31"], "bfloat16"),
        (["all_reduce", "-d", "complex64", "-o", "max"], "no order"),
        (["all_reduce", "-d", "bool"], "min and max"),
        (["reduce", "-g", "3", "-r", "3"], "0 to 2"),
        (["reduce", "--hosts", "4", "-g", "3"], "--hosts 4"),
        (["all_reduce", "--config", "chunk_byte=1"], "R2CCL_CHUNK_BYTES"),
        (["all_reduce", "--config", "chunk_bytes=1"], "at least 4096"),
        (["all_reduce", "--config", "chunk_bytes"], "KEY=VALUE"),
        (["all_reduce", "--fault", "kind=melt"], "melt"),
        (["all_reduce", "--fault", "rank=x kind=reset"], "'x'"),
        (["all_reduce", "--timeout-s", "0"], "more than 0"),
    ],
)
def test_wrong_flags_are_refused_with_their_value(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_launcher_is_told_by_its_variables() -> None:
    ranked = {"RANK": "0", "WORLD_SIZE": "2"}
    assert launcher({}) == "alone"
    assert launcher({"RANK": "0"}) == "alone"
    assert launcher(ranked) == "env"
    assert launcher({"PMI_RANK": "0", "PMI_SIZE": "2"}) == "mpi"
    assert launcher({**ranked, "OMPI_COMM_WORLD_SIZE": "2"}) == "mpi"
    assert launcher({**ranked, "OMPI_COMM_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}) == "env"


def test_help_names_every_collective(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        flags_module.parse(["--help"])
    assert ended.value.code == 0
    assert "reduce_scatter" in capsys.readouterr().out
