"""Every collective against NumPy, on one host, between hosts and mixed; and several calls, groups, threads at once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from mp_checks import Checks, assert_equal, data, every_collective

import r2ccl
from r2ccl import Config, ReduceOp
from r2ccl.plan.algorithms import ALGORITHMS
from r2ccl.testing import RankError, run_ranks
from r2ccl.types import Collective

pytestmark = pytest.mark.timeout(60)

SMALL = (0, 1, 3, 1000, 100_003)
LARGE = 3_000_017


def battery(comm: r2ccl.Communicator, large: int) -> int:
    """Arrays compared."""
    checks = Checks(comm)
    for count in SMALL:
        every_collective(checks, count, range(comm.size))
        checks.all_reduce(count, ReduceOp.MIN)
        checks.all_reduce(count, ReduceOp.MAX, in_place=True)
        checks.all_reduce(count, ReduceOp.PROD)
        checks.reduce(count, comm.size - 1, ReduceOp.MAX)
        checks.reduce_scatter(count // comm.size, ReduceOp.MIN)
    if large:
        every_collective(checks, large, (comm.size - 1,))
    return checks.compared


@pytest.mark.parametrize(
    ("n", "hosts", "rails", "large"),
    [
        (1, 1, 0, 0),
        (2, 1, 0, LARGE),
        (3, 1, 0, LARGE),
        (4, 1, 0, 0),
        (5, 1, 0, 0),
        (6, 1, 0, 0),
        (2, 2, 1, 0),
        (2, 2, 3, LARGE),
        (3, 3, 2, 0),
        (3, 2, 1, 0),
        (4, 2, 2, 0),
        (5, 2, 3, LARGE),
        (6, 3, 2, 0),
    ],
)
def test_every_collective(n: int, hosts: int, rails: int, large: int) -> None:
    compared = run_ranks(battery, n, hosts=hosts, rails=rails, args=(large,), timeout_s=50)
    assert min(compared) > 20 * len(SMALL)


def test_tcp_between_ranks_of_one_host() -> None:
    """Without shared memory the ranks of one host use the rails, too."""

    def work(comm: r2ccl.Communicator) -> set[str]:
        every_collective(Checks(comm), 100_003, (0,))
        return {link["rail"] for link in comm.stats()["links"]}

    rails = run_ranks(work, 3, rails=2, config=Config(shm=False), timeout_s=30)
    assert all("shm" not in names and len(names) == 2 for names in rails), rails


def test_a_wrong_element_is_seen() -> None:
    """Negative control: the comparison would notice one flipped bit, and one byte beyond the array."""

    class Liar:
        def __init__(self, comm: r2ccl.Communicator, beyond: bool) -> None:
            self.comm, self.rank, self.size, self.beyond = comm, comm.rank, comm.size, beyond

        def all_reduce(self, send: Any, recv: Any, op: ReduceOp) -> r2ccl.Work:
            work = self.comm.all_reduce(send, recv, op)
            if self.rank == 1:
                target = recv.base if self.beyond else recv
                target[-1] ^= 1 << 20
            return work

    def work(comm: r2ccl.Communicator, beyond: bool) -> None:
        Checks(Liar(comm, beyond)).all_reduce(1000)  # type: ignore[arg-type]

    for beyond, words in ((False, "1 of 1000 differ"), (True, "wrote beyond")):
        with pytest.raises(RankError, match=words) as caught:
            run_ranks(work, 2, args=(beyond,), timeout_s=20)
        assert caught.value.rank == 1


# -- algorithms ------------------------------------------------------------------------------------------------------


def forced(n: int, hosts: int) -> list[dict[str, str]]:
    """Collective -> algorithm, as many dictionaries as it takes to meet every algorithm that applies."""
    names = {
        c.name.lower(): [a.name for a in algorithms if a.applies(n, hosts, False)]
        for c, algorithms in ALGORITHMS.items()
        if c not in (Collective.SEND, Collective.RECV, Collective.BARRIER)
    }
    longest = max(map(len, names.values()))
    return [{c: able[i % len(able)] for c, able in names.items()} for i in range(longest)]


@pytest.mark.parametrize(("n", "hosts", "rails"), [(2, 1, 0), (4, 1, 0), (2, 2, 2), (5, 2, 2), (5, 3, 2)])
def test_every_algorithm_when_forced(n: int, hosts: int, rails: int) -> None:
    def work(comm: r2ccl.Communicator) -> dict[str, set[str]]:
        checks = Checks(comm)
        for count in (0, 3, 1000, 200_003):
            every_collective(checks, count, range(comm.size) if count == 1000 else (comm.size - 1,))
        return checks.plans

    for choice in forced(n, hosts):
        config = Config(algorithm=",".join(f"{c}={name}" for c, name in choice.items()))
        for plans in run_ranks(work, n, hosts=hosts, rails=rails, config=config, timeout_s=30):
            assert plans == {c: {name} for c, name in choice.items()}


def test_an_algorithm_that_does_not_apply_is_refused() -> None:
    def work(comm: r2ccl.Communicator) -> str:
        with pytest.raises(r2ccl.InvalidArgument) as caught:
            comm.all_reduce(np.zeros(3))
        return str(caught.value)

    for text in run_ranks(work, 3, config=Config(algorithm="all_reduce=exchange"), timeout_s=20):
        assert "exchange" in text
        assert "ring" in text


# -- several at once -------------------------------------------------------------------------------------------------


def outstanding(comm: r2ccl.Communicator) -> None:
    counts = (100_003, 1, 0, 5000, 300_001, 17, 64 << 10, 999)
    sends = [data(comm.rank, n, i) for i, n in enumerate(counts)]
    outs = [np.zeros(n, np.int32) for n in counts]
    works = [comm.all_reduce(s, o, async_op=True) for s, o in zip(sends, outs, strict=True)]
    gathered = np.zeros(77 * comm.size, np.int32)
    works.append(comm.all_gather(data(comm.rank, 77, 50), gathered, async_op=True))
    token = data(1, 4001, 60) if comm.rank == 1 else np.zeros(4001, np.int32)
    works.append(comm.broadcast(token, root=1, async_op=True))
    for work in reversed(works):
        work.wait()
        assert work.done()
        work.wait()  # a second time is harmless
    assert [w.seq for w in works] == list(range(works[0].seq, works[0].seq + len(works)))
    for i, (n, out) in enumerate(zip(counts, outs, strict=True)):
        assert_equal(out, sum(data(r, n, i) for r in range(comm.size)), f"outstanding call {i}")
    assert_equal(gathered, np.concatenate([data(r, 77, 50) for r in range(comm.size)]), "all_gather")
    assert_equal(token, data(1, 4001, 60), "broadcast")


def groups(comm: r2ccl.Communicator) -> None:
    """Everybody with everybody, both directions, together with a collective."""
    others = [p for p in range(comm.size) if p != comm.rank]
    for count in (1, 1000, 200_003):
        inbox = {p: np.zeros(count + p, np.int32) for p in others}
        total = np.zeros(count, np.int32)
        with comm.group():
            for p in others:
                comm.send(data(comm.rank, count + comm.rank, p), p)
                comm.recv(inbox[p], p)
            comm.all_reduce(data(comm.rank, count, 9), total)
        for p in others:
            assert_equal(inbox[p], data(p, count + p, comm.rank), f"from rank {p}")
        assert_equal(total, sum(data(r, count, 9) for r in range(comm.size)), "all_reduce in the group")


def message_order(comm: r2ccl.Communicator) -> None:
    """Messages between two ranks match in order, whatever their sizes; small sends do not wait for their receiver."""
    counts = (3, 70_001, 0, 1, 5000, 33)
    if comm.rank == 0:
        comm.send(data(0, 5, 99), 1)
        works = [comm.send(data(0, n, i), 1, async_op=True) for i, n in enumerate(counts)]
        comm.barrier()
        for work in works:
            work.wait()
    else:
        comm.barrier()
        if comm.rank == 1:
            for i, n in ((99, 5), *enumerate(counts)):
                out = np.zeros(n, np.int32)
                comm.recv(out, 0)
                assert_equal(out, data(0, n, i), f"message {i}")


def threads(comm: r2ccl.Communicator) -> None:
    """Two threads share one communicator: each its own messages, and collectives that look alike."""
    errors: list[BaseException] = []
    size, rank = comm.size, comm.rank

    def collectives(times: int) -> None:
        try:
            want = sum(data(r, 3001) for r in range(size))
            for _ in range(times):
                out = np.zeros(3001, np.int32)
                comm.all_reduce(data(rank, 3001), out)
                assert_equal(out, want, "all_reduce of one of two threads")
        except BaseException as error:
            errors.append(error)

    def messages() -> None:
        try:
            right, left = (rank + 1) % size, (rank - 1) % size
            for i in range(30):
                out = np.zeros(500 + i, np.int32)
                work = comm.recv(out, left, async_op=True)
                comm.send(data(rank, 500 + i, i), right)
                work.wait()
                assert_equal(out, data(left, 500 + i, i), "message of one of two threads")
        except BaseException as error:
            errors.append(error)

    for bodies in ((collectives, collectives), (collectives, messages)):
        running = [threading.Thread(target=body, args=(30,) if body is collectives else ()) for body in bodies]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(20)
            assert not thread.is_alive(), "a thread hangs"
        assert not errors, errors


def a_group_is_of_its_thread(comm: r2ccl.Communicator) -> None:
    """Another thread's call waits as ever while this one has a group open."""
    mine, other = np.ones(300_001, np.int32), np.ones(300_001, np.int32)
    ends: list[int] = []

    def call() -> None:
        comm.all_reduce(other)
        ends.extend((int(other[0]), int(other[-1])))

    with comm.group():
        comm.all_reduce(mine)
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(20)
        assert ends == [comm.size] * 2
    assert_equal(mine, np.full(300_001, comm.size, np.int32), "all_reduce in the group")


def several_communicators(comm: r2ccl.Communicator) -> None:
    """Three communicators of one process, used in turn and at the same time, do not see each other."""
    second, third = (r2ccl.init(config=comm.config) for _ in range(2))
    group = (comm, second, third)
    outs = [np.zeros(50_001, np.int32) for _ in group]
    works = [
        c.all_reduce(data(c.rank, 50_001, i), o, async_op=True)
        for i, (c, o) in enumerate(zip(group, outs, strict=True))
    ]
    for i in (2, 0, 1):
        works[i].wait()
        assert_equal(outs[i], sum(data(r, 50_001, i) for r in range(comm.size)), f"communicator {i}")
    second.close()
    every_collective(Checks(third), 1000, (0,))
    third.close()
    every_collective(Checks(comm), 1000, (0,))


@pytest.mark.parametrize(
    "body", [outstanding, groups, message_order, threads, a_group_is_of_its_thread, several_communicators]
)
@pytest.mark.parametrize(("n", "hosts", "rails"), [(2, 1, 0), (4, 1, 0), (3, 3, 2), (5, 2, 2)])
def test_at_once(body: Any, n: int, hosts: int, rails: int) -> None:
    run_ranks(body, n, hosts=hosts, rails=rails, timeout_s=40)
