"""The test helpers themselves: ranks that fail, die, freeze or hang; fault scripts that round-trip."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import r2ccl
from r2ccl.config import Config
from r2ccl.errors import InvalidArgument, PeerLost, Timeout
from r2ccl.testing import KINDS, Fault, FaultScript, RankError, RankGroup, RankTimeout, run_ranks

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class NoComm:
    """Stands in for a communicator: these tests are about processes."""

    def __init__(self, config: Config | None) -> None:
        self.config = config
        self.rank = int(os.environ["RANK"])

    def close(self) -> None:
        self.config = None


@pytest.fixture(autouse=True)
def _no_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r2ccl, "init", lambda device=None, config=None: NoComm(config), raising=False)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_results_come_in_order_of_rank() -> None:
    def work(comm: NoComm, factor: int) -> int:
        time.sleep(0.02 * (3 - comm.rank))
        return comm.rank * factor

    assert run_ranks(work, 3, args=(10,)) == [0, 10, 20]


def test_a_result_larger_than_a_pipe_arrives() -> None:
    assert [len(r) for r in run_ranks(lambda comm: b"x" * (1 << 22), 2)] == [1 << 22] * 2


def test_variables_and_config_of_emulated_hosts() -> None:
    def work(comm: NoComm) -> tuple[dict[str, str], str, str]:
        assert comm.config is not None
        return {v: os.environ[v] for v in VARIABLES}, comm.config.host_id, comm.config.rails

    results = run_ranks(work, 5, hosts=2, rails=3, config=Config(shm=False))
    assert [host for _, host, _ in results] == ["host0", "host0", "host0", "host1", "host1"]
    assert {rails for _, _, rails in results} == {"127.0.0.1,127.0.0.2,127.0.0.3"}
    assert [v["LOCAL_RANK"] for v, _, _ in results] == ["0", "1", "2", "0", "1"]
    assert [v["LOCAL_WORLD_SIZE"] for v, _, _ in results] == ["3", "3", "3", "2", "2"]
    assert [v["RANK"] for v, _, _ in results] == list("01234")
    assert len({v["MASTER_PORT"] for v, _, _ in results}) == 1


def test_config_may_differ_between_ranks_and_env_is_passed_on() -> None:
    def settings(rank: int) -> Config:
        return Config(fault_script=str(FaultScript().reset(rail=0)) if rank == 1 else "")

    def work(comm: NoComm) -> tuple[bool, str]:
        assert comm.config is not None
        return bool(comm.config.fault_script), os.environ["COLOUR"]

    assert run_ranks(work, 2, config=settings, env={"COLOUR": "green"}) == [(False, "green"), (True, "green")]


def test_an_exception_ends_the_others_and_is_told(tmp_path: Path) -> None:
    def work(comm: NoComm, folder: Path) -> None:
        (folder / str(comm.rank)).write_text(str(os.getpid()))
        if comm.rank == 1:
            while len(list(folder.iterdir())) < 3:
                time.sleep(0.005)
            raise PeerLost("rank 2 is gone")
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1: (?s:.*)rank 2 is gone") as caught:
        run_ranks(work, 3, args=(tmp_path,))
    pids = [int((tmp_path / str(r)).read_text()) for r in range(3)]
    assert time.monotonic() - start < 10
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, PeerLost)
    assert "raise PeerLost" in caught.value.text
    assert all(gone(pid) for pid in pids)


def test_return_exceptions_lets_every_rank_end() -> None:
    def work(comm: NoComm) -> int:
        if comm.rank == 0:
            raise PeerLost("rank 1 is gone")
        return comm.rank

    results = run_ranks(work, 3, return_exceptions=True)
    assert isinstance(results[0], PeerLost)
    assert "raise PeerLost" in str(results[0].__cause__)
    assert results[1:] == [1, 2]


def test_an_exception_that_cannot_travel_is_told_as_text() -> None:
    class Local(Exception):
        pass

    def work(comm: NoComm) -> None:
        raise Local("of no module")

    with pytest.raises(RankError, match="of no module"):
        run_ranks(work, 1)


def test_a_result_that_cannot_travel_is_an_error() -> None:
    with pytest.raises(RankError, match=r"(?i)pickle"):
        run_ranks(lambda comm: lambda: None, 1)


def test_a_hang_ends_at_the_deadline_and_shows_where() -> None:
    def sleeps_for_ever(comm: NoComm) -> None:
        if comm.rank == 1:
            time.sleep(60)

    with pytest.raises(RankTimeout, match=r"rank 1: had not ended after 0.5 s; (?s:.*)sleeps_for_ever") as caught:
        run_ranks(sleeps_for_ever, 3, timeout_s=0.5)
    assert isinstance(caught.value, Timeout)


def test_the_deadline_names_all_who_hang() -> None:
    with pytest.raises(RankTimeout, match=r"rank 0: .and ranks 1, 2 likewise"):
        run_ranks(lambda comm: time.sleep(60), 3, timeout_s=0.3)


def test_a_killed_rank_is_reported_and_the_others_go_on() -> None:
    def work(comm: NoComm) -> int:
        time.sleep(60 if comm.rank == 1 else 0.1)
        return comm.rank

    with RankGroup(work, 3) as group:
        assert len(set(group.pids)) == 3
        group.kill(1)
        results = group.join(timeout_s=10, return_exceptions=True)
    assert results[::2] == [0, 2]
    assert isinstance(results[1], RankError)
    assert "SIGKILL" in str(results[1])


def test_an_exit_without_report_is_an_error() -> None:
    with pytest.raises(RankError, match="exit status 7"):
        run_ranks(lambda comm: os._exit(7), 2)


def test_a_frozen_rank_is_not_waited_for_until_it_is_continued() -> None:
    def work(comm: NoComm) -> int:
        time.sleep(0.3)
        return comm.rank

    with RankGroup(work, 2) as group:
        group.stop(1)
        results = group.join(timeout_s=10, return_exceptions=True)
        assert results[0] == 0
        assert "SIGSTOP" in str(results[1])
        assert all(gone(pid) for pid in group.pids)
    with RankGroup(work, 2) as group:
        group.stop(1)
        time.sleep(0.05)
        group.cont(1)
        assert group.join(timeout_s=10) == [0, 1]


def test_leaving_the_group_ends_the_ranks() -> None:
    with RankGroup(lambda comm: time.sleep(60), 2) as group:
        pids = group.pids
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 2, "hosts": 3}, {"n": 2, "hosts": 0}, {"n": 2, "rails": -1}])
def test_impossible_groups_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        run_ranks(lambda comm: None, **wrong)  # type: ignore[arg-type]


def test_errors_of_ranks_survive_pickling() -> None:
    for error in (RankError(3, "broke"), RankTimeout(2, "slept")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.rank, copy.text, str(copy)) == (type(error), error.rank, error.text, str(error))


# ---------------------------------------------------------------------------------------------- fault scripts

number = st.none() | st.integers(0, 1 << 40)


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    when = draw(st.sampled_from(["after_bytes", "after_ms"]))
    fields: dict[str, Any] = {when: draw(st.integers(0, 1 << 40))}
    return Fault(draw(st.sampled_from(KINDS)), draw(number), draw(number), **fields)


@given(st.lists(faults(), max_size=5))
def test_a_script_is_read_as_it_was_written(script: list[Fault]) -> None:
    written = FaultScript(tuple(script))
    assert FaultScript.parse(str(written)) == written


def test_the_builder_writes_the_documented_form() -> None:
    script = FaultScript().blackhole(rail=1, after_bytes=4096).tx_drop(peer=2, after_ms=5).rx_drop(0, 1).reset()
    assert str(script).splitlines() == [
        "rail=1 peer=* kind=blackhole after_bytes=4096",
        "rail=* peer=2 kind=tx-drop after_ms=5",
        "rail=0 peer=1 kind=rx-drop after_bytes=0",
        "rail=* peer=* kind=reset after_bytes=0",
    ]
    assert [f.kind for f in script] == ["blackhole", "tx-drop", "rx-drop", "reset"]
    assert len(FaultScript.parse("# nothing\n\n  kind=reset   rail=0 # the first\n")) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rail=1", "kind="),
        ("kind=melt", "melt"),
        ("kind=reset rail=x", "'x'"),
        ("kind=reset rail=-1", "'-1'"),
        ("kind=reset after_ms=*", r"'\*'"),
        ("kind=reset rail=1 rail=2", "twice"),
        ("kind=reset colour=red", "colour"),
        ("kind=reset rail", "'rail'"),
        ("kind=reset after_ms=1 after_bytes=1", "one of the two"),
        ("kind=reset rail=\u0661", "whole number"),
    ],
)
def test_a_wrong_line_is_refused_with_its_reason(line: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        FaultScript.parse(line)


@pytest.mark.parametrize("fields", [{"rail": -1}, {"after_ms": 1.5}, {"peer": True}])
def test_wrong_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Fault("reset", **fields)
