"""The end of the road: no rail left, or failover off."""

from __future__ import annotations

import time

import numpy as np
import pytest
from fault_checks import BOUND_S, assert_nothing_leaked, holdings, noise, reopen

from r2ccl import Communicator, Config, EventKind, PeerUnreachable, R2cclError, Timeout
from r2ccl.testing import KINDS, Fault, FaultScript, run_ranks

pytestmark = pytest.mark.timeout(90)
MIB = 1 << 20


def rank_that_fails(comm: Communicator, scripts: dict[int, FaultScript], settings: dict) -> tuple:
    """(error, seconds until it came, events, error of the next call) of a rank whose communicator must fail."""
    before = holdings()
    with reopen(comm, fault_script=str(scripts.get(comm.rank, "")), log_level="error", **settings) as faulty:
        begin = time.monotonic()
        error: R2cclError | None = None
        try:
            for salt in range(6):
                faulty.all_to_all(noise(comm.rank, 3 * MIB // 8, salt), noise(comm.rank, 3 * MIB // 8), timeout_s=20)
        except R2cclError as e:
            error = e
        elapsed_s = time.monotonic() - begin
        events = faulty.events()
        again: R2cclError | None = None
        if not isinstance(error, Timeout):
            try:
                faulty.barrier(timeout_s=5)
            except R2cclError as e:
                again = e
    assert_nothing_leaked(before)
    comm.barrier()
    return error, elapsed_s, events, again


def failures(scripts: dict[int, FaultScript], n: int = 2, rails: int = 2, **settings: object) -> list[tuple]:
    return run_ranks(
        rank_that_fails, n, hosts=n, rails=rails, args=(scripts, {"outage_s": 0.5, **settings}), timeout_s=50
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rails", [1, 3])
def test_case_07_all_rails_lost(kind: str, rails: int) -> None:
    """A clear error after outage_s, on both ranks, that names the two; the next call fails at once."""
    script = FaultScript(tuple(Fault(kind, rail, after_bytes=MIB // 4 * (rail + 1)) for rail in range(rails)))
    got = failures({0: script}, rails=rails)
    for rank, (error, elapsed_s, events, again) in enumerate(got):
        assert isinstance(error, PeerUnreachable), repr(error)
        assert "no rail is left between rank" in str(error)
        assert "rank 0" in str(error)
        assert "rank 1" in str(error)
        assert 0.5 <= elapsed_s < BOUND_S
        downs = {e.rail for e in events if e.kind == EventKind.LINK_SUSPECT and e.peer == 1 - rank}
        assert downs == set(range(rails))
        assert type(again) is type(error)
    assert any(e.kind == EventKind.OUTAGE_BEGIN for _, _, events, _ in got for e in events)


def test_all_rails_of_one_of_three() -> None:
    """Rank 2 loses everybody, in the middle of a call: no way leads round."""
    lost = FaultScript((Fault("blackhole", None, peer=2, after_bytes=MIB // 8),))
    got = failures({0: lost, 1: lost}, n=3)
    for error, elapsed_s, _, _ in got:
        assert isinstance(error, PeerUnreachable), repr(error)
        assert "rank 2" in str(error)
        assert elapsed_s < BOUND_S


def rank_that_goes_round(comm: Communicator, scripts: dict[int, FaultScript]) -> tuple:
    """(wrong elements, statistics, events) of a rank after all_to_alls."""
    before = holdings()
    with reopen(comm, fault_script=str(scripts.get(comm.rank, "")), log_level="error", outage_s=10.0) as faulty:
        n, wrong = comm.size, 0
        for salt in range(6):
            block = MIB // 8
            sent = np.concatenate([noise(10 * comm.rank + to, block, salt) for to in range(n)])
            got = np.full_like(sent, np.nan)
            faulty.all_to_all(sent, got, timeout_s=20)
            expected = np.concatenate([noise(10 * frm + comm.rank, block, salt) for frm in range(n)])
            wrong += int(np.count_nonzero(got.view(np.uint8) != expected.view(np.uint8)))
        faulty.barrier()
        stats, events = faulty.stats(), faulty.events()
    assert_nothing_leaked(before)
    comm.barrier()
    return wrong, stats, events


@pytest.mark.parametrize("kind", KINDS)
def test_all_rails_between_two_of_three(kind: str) -> None:
    """Ranks 0 and 2 lose each other; rank 1, which has links to both, passes on what they say."""
    script = FaultScript((Fault(kind, None, peer=2, after_bytes=MIB // 8),))
    got = run_ranks(rank_that_goes_round, 3, hosts=3, rails=2, args=({0: script},), timeout_s=60)
    assert [wrong for wrong, _, _ in got] == [0, 0, 0]
    for rank in (0, 2):
        assert got[rank][1]["relayed_chunks"] > 0
        ways = [(e.peer, e.value, e.begins) for e in got[rank][2] if e.kind == EventKind.RELAY]
        assert ways[0] == (2 - rank, 1, True)
    assert got[1][1]["forwarded_chunks"] > 0
    assert not [e for e in got[1][2] if e.kind == EventKind.LINK_SUSPECT]


def test_without_failover_a_lost_link_raises() -> None:
    got = failures({0: FaultScript().reset(rail=1, after_bytes=MIB // 4)}, failover=False)
    assert any(isinstance(error, PeerUnreachable) and "failover is off" in str(error) for error, *_ in got)
    for error, elapsed_s, _, again in got:
        assert isinstance(error, PeerUnreachable), repr(error)
        assert elapsed_s < BOUND_S
        assert again is not None


def test_without_failover_a_silent_loss_ends_at_the_deadline() -> None:
    """Nothing is acknowledged, so nothing tells a lost chunk from a slow peer: the caller's deadline counts."""

    def rank(comm: Communicator) -> tuple[str, float]:
        begin = time.monotonic()
        try:
            with comm:
                comm.all_reduce(noise(comm.rank, MIB), timeout_s=1.0)
        except R2cclError as error:
            return type(error).__name__, time.monotonic() - begin
        return "no error", 0.0

    def config(r: int) -> Config:
        script = FaultScript().blackhole(rail=1, after_bytes=MIB // 4) if r == 0 else ""
        return Config(failover=False, fault_script=str(script))

    for name, elapsed_s in run_ranks(rank, 2, hosts=2, rails=2, config=config, timeout_s=40):
        assert name in ("Timeout", "PeerLost")  # whoever gives up second sees the other one leave
        assert elapsed_s < BOUND_S
