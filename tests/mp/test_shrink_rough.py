"""case_25: what may go wrong while survivors find each other, and what is left behind."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from test_lifetime import belongings
from test_shrink import Survived, all_collectives, check_survivors, die, reduce_until_lost, shrunk

import r2ccl
from r2ccl.testing import RankError, RankGroup, run_ranks

pytestmark = pytest.mark.timeout(90)

Comm = r2ccl.Communicator
LAYOUTS = pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (4, 1)], ids=["shm", "tcp"])

STAGES = {
    "named": "r2ccl.shrink.star_bootstrap",  # the members are known, and it has not said a word to them
    "connecting": "r2ccl.assemble.connect_mesh",  # the others wait for its connections
    "ready": "r2ccl.assemble.Monitor",  # everything is connected but the last step
}


def die_at(stage: str) -> None:
    """This rank ends when its own shrink has come so far."""
    module, name = STAGES[stage].rsplit(".", 1)
    __import__(module)

    def end(*_: Any, **__: Any) -> None:
        die()

    import sys

    setattr(sys.modules[module], name, end)


@pytest.mark.parametrize("second", [1, 2, 4], ids=["leader", "member", "last"])
@pytest.mark.parametrize(
    ("hosts", "rails", "stage"),
    [(1, 0, "named"), (1, 0, "connecting"), (5, 1, "named"), (5, 1, "connecting"), (5, 1, "ready")],
)
def test_case_25_another_rank_dies_in_the_middle_of_it(hosts: int, rails: int, stage: str, second: int) -> None:
    """Those that are left begin again, under the next leader if need be."""

    def work(comm: Comm) -> Survived:
        reduce_until_lost(comm, (0,))
        if comm.rank == second:
            die_at(stage)
        new, took_s = shrunk(comm)
        all_collectives(new)
        return new.rank, new.size, took_s

    with RankGroup(work, 5, hosts=hosts, rails=rails) as group:
        check_survivors(group.join(timeout_s=40, return_exceptions=True), (0, second))


def test_case_25_a_leader_that_freezes_is_left_behind() -> None:
    """It has come, and then names nobody."""

    def work(comm: Comm) -> Any:
        if comm.rank == 2:
            time.sleep(1.5)  # so that the others wait for it
        if comm.rank == 0:
            import r2ccl.bootstrap.survivors as survivors

            def hang(self: Any) -> None:
                time.sleep(10)

            survivors.Meeting._name_members = hang  # type: ignore[method-assign]
        new, took_s = shrunk(comm, timeout_s=3.0)
        all_collectives(new)
        return new.rank, new.size, took_s

    with RankGroup(work, 3) as group:
        time.sleep(0.5)
        deadline = time.monotonic() + 30
        outcomes: list[Any] = []
        with contextlib.suppress(RankError):
            outcomes = group.join(timeout_s=deadline - time.monotonic(), return_exceptions=True)
    assert [o[:2] for o in outcomes[1:]] == [(0, 2), (1, 2)], outcomes
    assert max(o[2] for o in outcomes[1:]) < 15.0
    assert isinstance(outcomes[0], r2ccl.Aborted), outcomes[0]  # it is told when it goes on


@LAYOUTS
def test_case_25_a_forked_child_of_the_lost_rank_does_not_hold_its_door(hosts: int, rails: int) -> None:
    """As when a data loader's workers outlive the rank that forked them: nobody waits for them."""

    def work(comm: Comm) -> Survived:
        if comm.rank == 0 and os.fork() == 0:
            time.sleep(6)
            os._exit(0)
        # Ranks 0 and 1 die at once: whoever learnt of one only must find out about the other.
        reduce_until_lost(comm, (0, 1))
        new, took_s = shrunk(comm)
        all_collectives(new)
        return new.rank, new.size, took_s

    with RankGroup(work, 4, hosts=hosts, rails=rails) as group:
        check_survivors(group.join(timeout_s=40, return_exceptions=True), (0, 1))


def besiege(address: Any, family: int, seconds: float) -> None:
    """Connects and sends junk, nothing, or half a handshake."""
    end = time.monotonic() + seconds
    held = []
    while time.monotonic() < end:
        for junk in (b"", b"GET / HTTP/1.0\r\n\r\n", b"r2ccl\0hs", b"\0" * 100):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.settimeout(0.2)
            with contextlib.suppress(OSError):
                sock.connect(address)
                sock.sendall(junk)
            held.append(sock)
        time.sleep(0.02)
    for sock in held:
        sock.close()


@LAYOUTS
def test_case_25_case_11_strangers_at_the_door(hosts: int, rails: int) -> None:
    """They come in the hundreds while nobody serves the door, and go on while survivors meet there."""

    def work(comm: Comm) -> Survived:
        door = comm._door
        assert door is not None
        places = [(sock.family, sock.getsockname()) for sock in door.sockets]
        comm.barrier()
        children = []
        if comm.rank in (1, 2):
            for family, address in places:
                pid = os.fork()
                if pid == 0:
                    besiege(address, family, 4.0)
                    os._exit(0)
                children.append(pid)
        time.sleep(2.0)
        if comm.rank == 0:
            die()
        reduce_until_lost(comm)
        new, took_s = shrunk(comm)
        all_collectives(new)
        for pid in children:
            os.waitpid(pid, 0)
        return new.rank, new.size, took_s

    with RankGroup(work, 4, hosts=hosts, rails=rails) as group:
        check_survivors(group.join(timeout_s=40, return_exceptions=True), (0,))


@LAYOUTS
def test_nothing_leaks_when_a_communicator_has_shrunk(hosts: int, rails: int) -> None:
    """Compared with before the first ``init``: sockets, threads, shared memory."""

    def work(comm: Comm) -> int:
        config = comm.config
        comm.close()
        before = belongings()
        for victim in (3, 2):
            comm = r2ccl.init(config=config) if victim == 3 else comm
            if comm.rank == victim:
                die()
            reduce_until_lost(comm)
            comm, _ = shrunk(comm)
        all_collectives(comm)
        comm.close()
        settled(before)
        return comm.size

    outcomes = run_ranks(work, 4, hosts=hosts, rails=rails, timeout_s=40, return_exceptions=True)
    assert outcomes[:2] == [2, 2], outcomes


def settled(before: dict[str, Any]) -> None:
    deadline = time.monotonic() + 5.0
    while (after := belongings()) != before:
        assert time.monotonic() < deadline, (before, after)
        time.sleep(0.05)


def test_case_25_a_shrink_that_fails_may_be_tried_again() -> None:
    """Here the first attempt is interrupted."""

    def work(comm: Comm) -> Survived:
        reduce_until_lost(comm, (1,))
        if comm.rank == 2:
            import r2ccl.shrink as module

            good: Callable[..., Any] = module.star_bootstrap

            def interrupted(*args: Any) -> Any:
                raise KeyboardInterrupt

            module.star_bootstrap = interrupted
            with pytest.raises(KeyboardInterrupt):
                comm.shrink()
            module.star_bootstrap = good
        new, took_s = shrunk(comm)
        all_collectives(new)
        return new.rank, new.size, took_s

    with RankGroup(work, 4) as group:
        check_survivors(group.join(timeout_s=40, return_exceptions=True), (1,))
