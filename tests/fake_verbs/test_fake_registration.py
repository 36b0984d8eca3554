"""Arrays that devices read where they lie: Communicator.register."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_verbs import borrowed_bytes

import r2ccl
from r2ccl import Config
from r2ccl.testing import run_ranks

pytestmark = pytest.mark.timeout(60)
COUNT = 1_000_003


def sums(comm: r2ccl.Communicator, array: np.ndarray, calls: int) -> None:
    """All-reduces into another array; the input is registered or not."""
    out = np.empty_like(array)
    for call in range(calls):
        array[:] = np.arange(array.size, dtype=array.dtype) % 1000 + comm.rank + call
        comm.all_reduce(array, out)
        want = (np.arange(array.size, dtype=array.dtype) % 1000 + call) * comm.size + sum(range(comm.size))
        assert out.tobytes() == want.astype(array.dtype).tobytes()


def test_registered_arrays_are_not_copied(over_fake_verbs: Path) -> None:
    def rank(comm: r2ccl.Communicator) -> None:
        array = np.empty(COUNT, np.int32)
        if comm.rank == 0:
            with comm.register(array) as registration:
                assert registration.nbytes == array.nbytes
                sums(comm, array, 3)
            assert registration.nbytes == 0
        else:
            sums(comm, array, 3)
        comm.barrier()

    run_ranks(rank, 2, hosts=2, rails=2, config=Config.from_env(algorithm="ring"))
    # A ring of two sends half of its own array each time.
    assert borrowed_bytes(over_fake_verbs, 0) >= 3 * COUNT * 4 // 2 * 9 // 10
    assert borrowed_bytes(over_fake_verbs, 1) == 0


def test_taken_back_arrays_are_copied_again(over_fake_verbs: Path) -> None:
    def rank(comm: r2ccl.Communicator) -> None:
        array = np.empty(COUNT, np.int32)
        comm.register(array).release()
        sums(comm, array, 2)
        comm.register(array)  # nobody refers to the result
        sums(comm, array, 2)
        comm.barrier()

    run_ranks(rank, 2, hosts=2, rails=2)
    assert borrowed_bytes(over_fake_verbs, 0) == borrowed_bytes(over_fake_verbs, 1) == 0


def test_twice_and_in_part(over_fake_verbs: Path) -> None:
    """The same array twice, and a slice of it: each lasts until its own end."""

    def rank(comm: r2ccl.Communicator) -> None:
        array = np.empty(COUNT, np.int32)
        first, second, part = comm.register(array), comm.register(array), comm.register(array[: COUNT // 2])
        first.release()
        first.release()
        sums(comm, array, 1)
        second.release()
        sums(comm, array, 1)
        part.release()
        comm.barrier()

    run_ranks(rank, 2, hosts=2, rails=2)
    assert borrowed_bytes(over_fake_verbs, 0) > 0


def test_under_faults(over_fake_verbs: Path) -> None:
    """A link that dies while its device reads the array; the device is opened again and learns the array anew."""

    def rank(comm: r2ccl.Communicator) -> None:
        array = np.empty(COUNT, np.int32)
        with comm.register(array):
            sums(comm, array, 40)
        assert comm.stats()["repairs"] == 2
        comm.barrier()

    script = (
        "device=fake1 rank=0 kind=fatal min_bytes=10000 after_writes=9;"
        "device=fake0 rank=1 kind=error min_bytes=10000 after_writes=30"
    )
    run_ranks(rank, 2, hosts=2, rails=2, env={"FAKE_VERBS_SCRIPT": script})
    assert borrowed_bytes(over_fake_verbs, 0) > 0


def test_freed_while_registered() -> None:
    """The registration keeps the memory: it cannot be resized or vanish."""

    def rank(comm: r2ccl.Communicator) -> None:
        kept = bytearray(8 << 20)
        registration = comm.register(kept)
        with pytest.raises(BufferError):
            kept.extend(b"more")
        registration.release()
        kept.extend(b"more")
        comm.barrier()

    run_ranks(rank, 2, hosts=2, rails=1)


def test_beyond_the_budget(over_fake_verbs: Path) -> None:
    """The least recently used one makes room; what does not fit at all is copied."""

    def rank(comm: r2ccl.Communicator) -> None:
        arrays = [np.empty(COUNT, np.int32) for _ in range(3)]
        huge = np.empty(8 * COUNT, np.int32)
        registrations = [comm.register(a) for a in [*arrays, huge]]
        for array in [*arrays, arrays[0], huge]:
            sums(comm, array, 1)
        for registration in registrations:
            registration.release()
        comm.barrier()

    run_ranks(rank, 2, hosts=2, rails=2, config=Config.from_env(register_bytes=4 * COUNT * 4 + 100))
    assert borrowed_bytes(over_fake_verbs, 0) > 0


def test_without_rdma() -> None:
    def rank(comm: r2ccl.Communicator) -> None:
        array = np.empty(COUNT, np.int32)
        with comm.register(array):
            sums(comm, array, 1)

    run_ranks(rank, 2, hosts=2, rails=2, config=Config.from_env(transport="tcp"))
