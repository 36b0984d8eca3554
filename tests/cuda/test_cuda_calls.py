"""Calls on streams: nobody waits on the host, failures let every stream go, graphs are refused, inputs are kept."""

from __future__ import annotations

import time

import numpy as np
import pytest
from fake_driver import CupyOnFake, UserStream
from mp_checks import assert_equal, data
from on_device import on_gpus

import r2ccl
from r2ccl import Aborted, Config, InvalidArgument, PeerLost, Timeout

pytestmark = pytest.mark.timeout(60)


def the_host_goes_on(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    stream, other = UserStream(arrays.driver), UserStream(arrays.driver)
    source, place = arrays.asarray(data(comm.rank, 50_000)), arrays.empty(50_000, np.int32)
    results = [arrays.empty(50_000, np.int32) for _ in range(3)]
    comm.barrier()
    stream.delay(0.4)
    begin = time.monotonic()
    stream.copy(place.data.ptr, source.data.ptr, place.nbytes)
    work = comm.all_reduce(place, stream=stream)
    work.wait(other)
    other.copy(results[0].data.ptr, place.data.ptr, place.nbytes)
    held = comm.all_gather(
        arrays.asarray(np.ones(1, np.int8)), arrays.empty(comm.size, np.int8), async_op=True, stream=stream
    )
    comm.barrier(stream=stream)
    assert time.monotonic() - begin < 0.3
    assert not work.done() and not held.done() and not other.idle()
    stream.synchronize()
    other.synchronize()
    assert work.done()
    want = np.asarray(sum(data(r, 50_000) for r in range(comm.size)), np.int32)
    assert_equal(arrays.asnumpy(results[0]), want, "what the other stream saw")
    work.synchronize()
    held.synchronize()
    work.wait(other)  # done: nothing is put on it
    assert other.idle()


def test_the_host_goes_on_and_streams_wait(cuda_library: str) -> None:
    on_gpus(the_host_goes_on, 2, cuda_library, hosts=2, rails=1)


def async_holds_nothing(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    stream = UserStream(arrays.driver)
    x = arrays.asarray(data(comm.rank, 1000))
    if comm.rank == 1:
        time.sleep(0.3)
    work = comm.all_reduce(x, stream=stream, async_op=True)
    if comm.rank == 0:
        time.sleep(0.1)
        assert stream.idle() and not work.done()
    result = arrays.empty(1000, np.int32)
    work.wait(stream)
    stream.copy(result.data.ptr, x.data.ptr, x.nbytes)
    stream.synchronize()
    assert_equal(arrays.asnumpy(result), np.asarray(data(0, 1000) + data(1, 1000), np.int32), "after wait")


def test_an_asynchronous_call_holds_its_stream_only_when_asked(cuda_library: str) -> None:
    on_gpus(async_holds_nothing, 2, cuda_library)


def released(stream: UserStream, within_s: float = 2.0) -> bool:
    end = time.monotonic() + within_s
    while not stream.idle() and time.monotonic() < end:
        time.sleep(0.005)
    return stream.idle()


def abort_releases(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    streams = [UserStream(arrays.driver) for _ in range(3)]
    x = [arrays.asarray(data(comm.rank, 1000)) for _ in streams]
    if comm.rank == 1:  # never calls
        time.sleep(1.0)
        return
    works = [comm.all_reduce(a, stream=s) for a, s in zip(x, streams, strict=True)]
    other = UserStream(arrays.driver)
    works[2].wait(other)
    time.sleep(0.1)
    assert not any(s.idle() for s in (*streams, other))
    comm.abort("enough")
    assert all(released(s) for s in (*streams, other))
    for work in works:
        with pytest.raises(Aborted, match="enough"):
            work.synchronize()
    with pytest.raises(Aborted):
        comm.all_reduce(x[0], stream=streams[0])
    assert streams[0].idle()


def test_abort_lets_every_waiting_stream_go(cuda_library: str) -> None:
    for memory_ops in ("1", "0"):
        on_gpus(abort_releases, 2, cuda_library, env={"FAKE_CUDA_MEMORY_OPS": memory_ops})


def timeout_releases(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    stream = UserStream(arrays.driver)
    x = arrays.asarray(data(comm.rank, 1000))
    if comm.rank == 1:
        time.sleep(1.0)
        return
    work = comm.all_reduce(x, stream=stream, timeout_s=0.3)
    assert released(stream)
    with pytest.raises(Timeout, match="waits for rank 1"):
        work.synchronize()
    with pytest.raises(Timeout):
        comm.check()


def test_a_call_that_nobody_waits_for_keeps_its_time(cuda_library: str) -> None:
    on_gpus(timeout_releases, 2, cuda_library)


def a_lost_rank(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    import os

    stream = UserStream(arrays.driver)
    x = arrays.asarray(data(comm.rank, 1000))
    comm.all_reduce(x, stream=stream)
    stream.synchronize()
    if comm.rank == 1:
        os._exit(3)
    work = comm.all_reduce(x, stream=stream)
    assert released(stream, 5.0)
    with pytest.raises(PeerLost):
        work.synchronize()


def test_the_loss_of_a_rank_lets_streams_go(cuda_library: str) -> None:
    first, second = on_gpus(a_lost_rank, 2, cuda_library, return_exceptions=True)
    assert first is None and isinstance(second, Exception)


def capture(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    stream = UserStream(arrays.driver)
    x = arrays.asarray(np.ones(100, np.float32))
    stream.capture(True)
    with pytest.raises(InvalidArgument, match="graph"):
        comm.all_reduce(x, stream=stream)
    stream.capture(False)
    comm.all_reduce(x, stream=stream).synchronize()
    assert_equal(arrays.asnumpy(x), np.full(100, 2, np.float32), "after the capture")
    work = comm.all_reduce(x, stream=stream, async_op=True)
    other = UserStream(arrays.driver)
    other.delay(0.0)
    work.synchronize()


def test_a_call_during_a_graphs_capture_is_refused(cuda_library: str) -> None:
    on_gpus(capture, 2, cuda_library)


def kept(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    mine = np.random.default_rng(comm.rank).random(400_000).astype(np.float32)
    x = arrays.asarray(mine)
    comm.all_reduce(x, keep_input=True).synchronize()
    total = arrays.asnumpy(x)
    for i in range(1000):
        arrays.view(x)[:] = mine
        if comm.rank == 1 and i == 3:
            comm.abort("enough")
        try:
            comm.all_reduce(x, keep_input=True).synchronize()
        except (Aborted, PeerLost):
            assert_equal(arrays.asnumpy(x), mine, f"input of call {i}, which failed")
            return
        assert_equal(arrays.asnumpy(x), total, f"call {i}")
    raise AssertionError("no call failed")


def test_a_failed_call_leaves_a_kept_input(cuda_library: str) -> None:
    on_gpus(kept, 2, cuda_library, hosts=2, rails=1)


def broken(comm: r2ccl.Communicator, arrays: CupyOnFake) -> str:
    x = arrays.asarray(data(comm.rank, 100_000))
    stream = UserStream(arrays.driver)
    if comm.rank == 0:
        arrays.driver.set("FAIL_LAUNCH", arrays.driver.launches() + 5)
    for _ in range(20):
        try:
            comm.all_reduce(x, stream=stream).synchronize()
        except r2ccl.R2cclError as error:
            assert comm.rank == 0 or released(stream)  # nothing moves on a broken GPU
            return f"{type(error).__name__}: {error}"
    return "no call failed"


def test_a_gpu_that_breaks_ends_the_calls_of_all_ranks(cuda_library: str) -> None:
    mine, theirs = on_gpus(broken, 2, cuda_library)
    assert mine.startswith("InternalError: the device failed: ") and "CUDA_ERROR" in mine
    assert theirs.startswith("PeerLost: ") and "CUDA_ERROR" in theirs


def test_config_of_the_library_is_the_only_way_in(cuda_library: str) -> None:
    assert Config.from_env({"R2CCL_CUDA_LIBRARY": cuda_library}).cuda_library == cuda_library
