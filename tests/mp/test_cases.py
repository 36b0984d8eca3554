"""Field reports that no other file here covers: several communicators, buffers in place, other libraries' arrays, limits."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mp_checks import Checks, assert_equal, data
from test_lifetime import BOUND_S, wait_for

import r2ccl
from r2ccl.testing import RankError, RankGroup, run_ranks

pytestmark = pytest.mark.timeout(60)

Comm = r2ccl.Communicator
LAYOUTS = pytest.mark.parametrize(("hosts", "rails"), [(1, 0), (3, 2)], ids=["shm", "tcp"])


# -- several communicators ---------------------------------------------------------------------------------------------


@LAYOUTS
def test_case_23_two_communicators_in_opposite_orders(hosts: int, rails: int) -> None:
    """Two threads, a communicator each; ranks wait for them in different orders. Neither stands in the other's way."""

    def work(first: Comm) -> int:
        with r2ccl.init(config=first.config) as second:
            comms = (first, second) if first.rank % 2 else (second, first)
            right = []

            def reduce_often(comm: Comm, salt: int) -> None:
                for i in range(20):
                    out = np.zeros(70_001, np.int32)
                    comm.all_reduce(data(comm.rank, 70_001, salt + i), out)
                    right.append(np.array_equal(out, sum(data(r, 70_001, salt + i) for r in range(comm.size))))

            threads = [threading.Thread(target=reduce_often, args=(c, 0 if c is first else 50)) for c in comms]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(25)
                assert not thread.is_alive(), "a thread hangs"
            # And from one thread, both under way at once, waited for in another order on every other rank.
            arrays = {c: data(c.rank, 300_001, i) for i, c in enumerate((first, second))}
            works = [c.all_reduce(arrays[c], async_op=True) for c in comms]
            for handle in works[::-1]:
                handle.wait()
            for i, c in enumerate((first, second)):
                assert_equal(arrays[c], sum(data(r, 300_001, i) for r in range(c.size)), f"communicator {i}")
            return sum(right)

    assert run_ranks(work, 3, hosts=hosts, rails=rails, timeout_s=40) == [40] * 3


@LAYOUTS
def test_case_23_a_killed_rank_ends_every_communicator_with_it(tmp_path: Path, hosts: int, rails: int) -> None:
    """Both communicators of the survivors raise, and both close in bounded time; so does the exit."""

    def work(first: Comm, folder: str) -> list[str]:
        second = r2ccl.init(config=first.config)
        (Path(folder) / f"ready{first.rank}").touch()
        texts = []
        for comm in (first, second):
            try:
                for _ in range(1_000_000):
                    comm.all_reduce(np.zeros(50_000, np.float32), timeout_s=10)
            except r2ccl.PeerLost as error:
                texts.append(str(error))
        begin = time.monotonic()
        second.close()
        first.close()
        assert time.monotonic() - begin < 2 * BOUND_S
        return texts

    with RankGroup(work, 3, hosts=hosts, rails=rails, args=(str(tmp_path),)) as group:
        wait_for(tmp_path / "ready", 3)
        time.sleep(0.1)
        group.kill(1)
        outcomes = group.join(timeout_s=30, return_exceptions=True)
    assert isinstance(outcomes[1], RankError)
    for rank in (0, 2):
        assert len(outcomes[rank]) == 2, outcomes
        assert all("rank 1 " in text or "gave up" in text for text in outcomes[rank]), outcomes


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "hosts", "rails"), [(3, 1, 0), (4, 2, 2)])
def test_case_29_in_place_at_offsets_and_at_every_root(n: int, hosts: int, rails: int) -> None:
    """The smaller array is block ``rank`` of the larger one, the root is not 0, counts differ, guards lie around."""

    def work(comm: Comm) -> int:
        checks = Checks(comm)
        for block in (1, 1000, 40_003):
            for root in range(comm.size):
                checks.reduce(block, root, in_place=True)
                checks.broadcast(block, root, in_place=True)
                checks.gather(block, root, in_place=True)
                checks.scatter(block, root, in_place=True)
            checks.all_reduce(block, in_place=True)
            checks.all_gather(block, in_place=True)
            checks.reduce_scatter(block, in_place=True)
            checks.all_to_all(block, in_place=True)
            counts = [block + 3 * r for r in range(comm.size)]
            checks.all_gather_v(counts, in_place=True)
            checks.reduce_scatter_v(counts, in_place=True)
        return checks.compared

    assert min(run_ranks(work, n, hosts=hosts, rails=rails, timeout_s=40)) >= 3 * (3 * n + 6)


class Producer:
    """An array of another library: DLPack with its rules about streams. On the CPU there is no stream to hand over."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.streams: list[Any] = []

    def __dlpack__(self, *, stream: Any = None, **kwargs: Any) -> Any:
        self.streams.append(stream)
        if stream is not None:
            raise BufferError(f"stream = {stream!r}: must be None for an array on the CPU")
        return self.values.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


class OnStream:
    """A GPU array with work of its stream before it."""

    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (8,),
        "typestr": "<f4",
        "data": (0x7F0000000000, False),
        "version": 3,
        "stream": 2,
    }


def test_case_31_a_stream_is_no_stream_of_host_arrays() -> None:
    """Nothing would order the call after the stream's work: refused, instead of sending what is not computed yet."""

    class Stream:
        ptr = 0x1234

    def work(comm: Comm) -> None:
        x = np.ones(8, np.float32)
        for stream in (Stream(), 0, 1, 2, -1):
            for call in (comm.all_reduce, comm.broadcast, lambda a, stream: comm.send(a, 1 - comm.rank, stream=stream)):
                with pytest.raises(r2ccl.InvalidArgument, match="works on host arrays, which have no stream"):
                    call(x, stream=stream)
        comm.all_reduce(x)
        assert_equal(x, np.full(8, 2, np.float32), "the call after the refusals")

    run_ranks(work, 2, timeout_s=20)


def test_case_32_producers_and_their_streams() -> None:
    """The producer is asked with no stream; a read-only array is an input only; one with a stream is on a GPU."""

    def work(comm: Comm) -> None:
        out = np.zeros(8, np.float32)
        producer = Producer(np.full(8, comm.rank + 1, np.float32))
        comm.all_reduce(producer, out)
        assert producer.streams == [None]
        assert_equal(out, np.full(8, 3, np.float32), "DLPack to NumPy")
        immutable = Producer(np.full(8, comm.rank + 1, np.float32))
        immutable.values.flags.writeable = False
        comm.all_reduce(immutable, out)
        with pytest.raises(r2ccl.InvalidArgument, match="read-only"):
            comm.all_reduce(immutable)
        assert_equal(immutable.values, np.full(8, comm.rank + 1, np.float32), "what must not change")
        with pytest.raises(r2ccl.InvalidArgument, match=r"memory of a GPU .*OnStream"):
            comm.all_reduce(OnStream(), out)
        comm.barrier()

    run_ranks(work, 2, timeout_s=20)


def lock(memory: mmap.mmap) -> None:
    """mlock(2); raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(memory))) != 0:
        raise OSError(ctypes.get_errno(), f"cannot lock memory: {os.strerror(ctypes.get_errno())}")


# -- limits ------------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_case_34_nothing_needs_locked_memory(hosts: int, rails: int) -> None:
    """As in a container with ``ulimit -l 0``: host arrays are moved without pinning a page."""

    def work(comm: Comm) -> int:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)  # the limit is none for root
        with pytest.raises(OSError, match="lock"), mmap.mmap(-1, 1 << 20) as memory:
            lock(memory)
        with r2ccl.init(config=comm.config) as small:
            checks = Checks(small)
            checks.all_reduce(1_000_003)
            checks.all_to_all(100_003)
            return checks.compared

    assert min(run_ranks(work, 3, hosts=hosts, rails=rails, timeout_s=30)) == 3
