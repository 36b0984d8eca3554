"""Faults under small messages, calls without waiting, groups, and ranks that are not in the same call."""

from __future__ import annotations

import time

import numpy as np
import pytest
from fault_checks import Array, noise, run_case
from fault_scenarios import STEPS, empty

from r2ccl import Communicator, Config
from r2ccl.testing import KINDS, Fault, FaultScript, run_ranks

pytestmark = pytest.mark.timeout(90)
MIB = 1 << 20
SMALL = 1024  # elements: 4 KiB, below eager_bytes


def script(kind: str, after_bytes: int = 0, rail: int = 1) -> FaultScript:
    return FaultScript().add(Fault(kind, rail, after_bytes=after_bytes))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "all_gather", "all_to_all", "send_recv"])
def test_small_collectives(name: str, kind: str) -> None:
    """Forty calls of one chunk each, which the sender does not wait for. An idle rail 0 is what they prefer."""
    run_case(
        lambda comm: [a for salt in range(40) for a in STEPS[name](comm, SMALL, salt)],
        {1: script(kind, after_bytes=10 * 4096, rail=0)},
        [(0, 1, 0)],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_eager_messages_survive_their_array(kind: str) -> None:
    """The array is overwritten as soon as send returns: what is sent again must be the copy."""

    def scenario(comm: Communicator) -> list[Array]:
        got = []
        for salt in range(30):
            if comm.rank == 0:
                array = noise(0, SMALL, salt)
                comm.send(array, 1)
                array[:] = np.nan
                got.append(noise(0, 4, salt))
            else:
                out = empty(SMALL)
                comm.recv(out, 0)
                got.append(out)
        return got

    outcomes = run_case(scenario, {0: script(kind, after_bytes=3 * 4096, rail=0)}, [(0, 1, 0)])
    if kind in ("blackhole", "tx-drop"):
        assert outcomes[0].replayed > 0


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_in_different_calls(kind: str) -> None:
    """The root of small broadcasts is calls ahead of the receiver when the link fails."""

    def scenario(comm: Communicator) -> list[Array]:
        got = []
        for salt in range(24):
            array = noise(0, SMALL, salt) if comm.rank == 0 else empty(SMALL)
            comm.broadcast(array, root=0)
            got.append(array)
            if comm.rank == 1:
                time.sleep(0.002)
        return got

    run_case(scenario, {1: script(kind, after_bytes=4 * 4096, rail=0)}, [(0, 1, 0)], settings={"timeout_s": 4.0})


@pytest.mark.parametrize("kind", KINDS)
def test_async_calls(kind: str) -> None:
    """Eight calls under way, waited for in another order than they were made."""

    def scenario(comm: Communicator) -> list[Array]:
        arrays = [noise(comm.rank, MIB // 16, salt) for salt in range(8)]
        works = [comm.all_reduce(array, async_op=True) for array in arrays]
        for work in works[::-1]:
            work.wait()
        return arrays

    run_case(scenario, {0: script(kind, after_bytes=MIB // 2)}, [(0, 1, 1)])


@pytest.mark.parametrize("kind", KINDS)
def test_group(kind: str) -> None:
    """Messages to and from every other rank at once, among three hosts."""

    def scenario(comm: Communicator) -> list[Array]:
        others = [r for r in range(comm.size) if r != comm.rank]
        outs = {r: empty(MIB // 8) for r in others}
        for _ in range(2):
            with comm.group():
                for r in others:
                    comm.send(noise(comm.rank, MIB // 8, r), r)
                    comm.recv(outs[r], r)
        return list(outs.values())

    run_case(
        scenario,
        {2: FaultScript().add(Fault(kind, 0, after_bytes=MIB // 4))},
        [(0, 2, 0), (1, 2, 0)],
        n=3,
        rails=2,
    )


def test_a_work_tells_that_it_was_repaired() -> None:
    """Work.replayed counts the chunks of that call that were sent again."""

    def rank(comm: Communicator) -> tuple[int, int]:
        # The rails share each call as they get to run: more than one, so that the cut one has its part for certain.
        works = [comm.broadcast(noise(0, MIB), root=0) for _ in range(5)]
        return sum(work.replayed for work in works), comm.stats()["replayed_chunks"]

    def config(r: int) -> Config:
        return Config(recovery=False, fault_script=str(script("blackhole", MIB // 2)) if r == 0 else "")

    (mine, total), (other, _) = run_ranks(rank, 2, hosts=2, rails=2, config=config, timeout_s=30)
    assert mine == total > 0
    assert other == 0


def test_close_after_an_eager_send_into_a_black_hole() -> None:
    """The sender has nothing left to do: what it sent must arrive all the same before it is gone."""

    def rank(comm: Communicator) -> int:
        if comm.rank == 0:
            comm.send(noise(0, SMALL), 1)
            comm.close()
            return SMALL
        out = empty(SMALL)
        comm.recv(out, 0)
        return int((out == noise(0, SMALL)).sum())

    def config(r: int) -> Config:
        return Config(recovery=False, fault_script=str(script("blackhole", 0, rail=0)) if r == 0 else "")

    assert run_ranks(rank, 2, hosts=2, rails=2, config=config, timeout_s=30) == [SMALL, SMALL]
