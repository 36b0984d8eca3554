"""Every kind of fault in every collective: the same bits as without, over the links that are left."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from fault_checks import REPAIR, Array, assert_same, is_under_fault, run_case
from fault_scenarios import STEPS, all_reduce, broadcast, repeat

from r2ccl import Cause, Communicator, EventKind
from r2ccl.testing import KINDS, Fault, FaultScript, RankError

# Shared memory has no links that could fail, so fault scripts do not apply to it: every case here has a host a rank.
# What can happen there, the death of a peer, is in tests/mp.
pytestmark = pytest.mark.timeout(90)
MIB = 1 << 20
COUNT = MIB // 2  # elements: 2 MiB


def script(kind: str, rail: int | None = 1, peer: int | None = None, after_bytes: int = 0) -> FaultScript:
    return FaultScript().add(Fault(kind, rail, peer, after_bytes))


@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize("after_bytes", [0, MIB // 2, 3 * MIB // 2])
@pytest.mark.parametrize("kind", KINDS)
def test_all_reduce(kind: str, after_bytes: int, faulty: int) -> None:
    """A fault with the first chunk, in the middle of the first call, and in a later one."""
    run_case(repeat(all_reduce, COUNT, 2), {faulty: script(kind, after_bytes=after_bytes)}, [(0, 1, 1)])


@pytest.mark.parametrize("kind", ["blackhole", "tx-drop"])
def test_chunks_that_vanished_are_sent_again(kind: str) -> None:
    """Rank 0 goes on writing to the link for a while after the fault: those chunks were lost for certain."""
    outcomes = run_case(repeat(broadcast, COUNT), {0: script(kind, after_bytes=MIB // 4)}, [(0, 1, 1)])
    assert outcomes[0].replayed > 0
    replays = [e.value for e in outcomes[0].events if e.kind == EventKind.REPLAY]
    assert replays == [outcomes[0].replayed]
    assert outcomes[1].replayed == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(STEPS.keys() - {"all_reduce"}))
def test_collective(name: str, kind: str) -> None:
    """Three calls of each, so that every rank is a root once; the link fails in the second or so."""
    faulty = KINDS.index(kind) % 2
    run_case(repeat(STEPS[name], COUNT, 3), {faulty: script(kind, after_bytes=MIB // 2)}, [(0, 1, 1)])


@pytest.mark.parametrize("kind", KINDS)
def test_case_09_causes_of_suspicion(kind: str) -> None:
    """The end that notices names why; the other end was told."""
    outcomes = run_case(repeat(all_reduce, COUNT), {0: script(kind, after_bytes=MIB // 2)}, [(0, 1, 1)])
    causes = [o.events[o.first(EventKind.LINK_SUSPECT, 1)].cause for o in outcomes]
    if kind == "reset":
        assert causes[0] == Cause.SOCKET
        assert causes[1] in (Cause.SOCKET, Cause.PEER)
    else:
        assert Cause.STALL in causes
        assert set(causes) <= {Cause.STALL, Cause.PEER, Cause.SOCKET}


@pytest.mark.parametrize("kind", KINDS)
def test_three_hosts_lose_a_rail_of_one(kind: str) -> None:
    """All links of rank 1's rail 0 fail, those of the others do not; all-to-all uses every pair of hosts."""
    run_case(
        repeat(STEPS["all_to_all"], COUNT, 3),
        {1: script(kind, rail=0, after_bytes=MIB // 8)},
        [(0, 1, 0), (1, 2, 0)],
        n=3,
        rails=3,
    )


def test_two_ranks_a_host() -> None:
    """A rail of one rank fails, the ranks beside it keep theirs. Within the host shared memory goes on."""
    outcomes = run_case(
        repeat(all_reduce, COUNT, 2), {0: script("blackhole", rail=1, peer=2)}, [(0, 2, 1)], n=4, hosts=2, rails=2
    )
    assert [bool(o.events) for o in outcomes] == [True, False, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_every_chunk_is_the_one_that_fails(kind: str) -> None:
    """The fault strikes after each chunk of a broadcast in turn, so once in the first and once in the last of them."""
    chunk, chunks = 64 << 10, 6
    for k in range(chunks // 2 + 1):
        outcomes = run_case(
            repeat(broadcast, chunk * chunks // 4, 2),
            {k % 2: script(kind, after_bytes=k * chunk)},
            [(0, 1, 1)],
            settings={"chunk_bytes": chunk, "staging_bytes": 16 * chunk},
        )
        assert outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_idle_between_two_collectives(kind: str) -> None:
    """The link dies while nothing moves; the next call finds out (a reset tells at once)."""

    def scenario(comm: Communicator) -> list[Array]:
        first = all_reduce(comm, COUNT, 0)
        if is_under_fault(comm):
            comm.barrier()
            time.sleep(0.6)
        return first + all_reduce(comm, COUNT, 1)

    run_case(scenario, {0: FaultScript().add(Fault(kind, 1, after_ms=500))}, [(0, 1, 1)])


def test_a_corrupted_element_is_noticed() -> None:
    """The negative control of every comparison here: one bit of one element of one rank."""

    def scenario(comm: Communicator) -> list[Array]:
        (out,) = all_reduce(comm, COUNT, 0)
        if is_under_fault(comm) and comm.rank == 1:
            out.view("u4")[12345] ^= 1
        return [out]

    with pytest.raises(RankError, match=r"1 of 524288 elements differ from the run without failure, first \[12345\]"):
        run_case(scenario, {1: script("reset", after_bytes=MIB // 2)}, [(0, 1, 1)])


def test_a_fault_that_never_strikes_is_noticed() -> None:
    """The negative control of the proof that the fault fired."""
    with pytest.raises(AssertionError, match="no events"):
        run_case(repeat(all_reduce, COUNT), {0: script("blackhole", after_bytes=1 << 40)}, [(0, 1, 1)])


def test_a_leak_is_noticed() -> None:
    """The negative control of the count of descriptors."""

    def scenario(comm: Communicator) -> list[Array]:
        if is_under_fault(comm):
            os.open("/dev/null", os.O_RDONLY)
        return all_reduce(comm, COUNT, 0)

    with pytest.raises(RankError, match="descriptors: leaked .*/dev/null"):
        run_case(scenario, {0: script("reset", after_bytes=MIB // 2)}, [(0, 1, 1)])


def test_comparison_is_bitwise() -> None:
    """0.0 and -0.0 are equal numbers and different bits; a NaN equals itself."""
    nan = np.array([np.nan], np.float32)
    assert_same(nan, nan.copy(), "")
    with pytest.raises(AssertionError):
        assert_same(np.array([0.0], np.float32), np.array([-0.0], np.float32), "")


def test_order_of_repair_is_what_is_checked() -> None:
    assert [k.name for k in REPAIR] == ["LINK_SUSPECT", "LINK_DOWN", "REPLAY", "REPAIRED"]
