"""The user's streams: what a signal follows, what a hold holds, capture, and how long they take."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from results import FAKE, LIBRARY, Results, finish, pinned, wait_until

from r2ccl._native import core
from r2ccl.types import DType

BYTES = 64 << 20 if not FAKE else 64 << 10
TURNS = 200 if not FAKE else 5


class Streams:
    """Streams of a program: CuPy's on a GPU, the tests' driver's own where CuPy cannot make any."""

    def __init__(self) -> None:
        if FAKE:
            sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cuda"))
            from fake_driver import FakeDriver, UserStream

            driver = FakeDriver(LIBRARY)
            self.make: Any = lambda: UserStream(driver)
        else:
            import cupy

            self.make = lambda: cupy.cuda.Stream(non_blocking=True)

    @staticmethod
    def copy(stream: Any, to: int, source: int, nbytes: int) -> None:
        """Work on the stream that takes a while."""
        if FAKE:
            stream.delay(0.005)
            stream.copy(to, source, nbytes)
        else:
            import cupy

            cupy.cuda.runtime.memcpyAsync(to, source, nbytes, 4, stream.ptr)

    @staticmethod
    def capture(stream: Any, on: bool) -> None:
        """Begins or ends recording a graph."""
        if FAKE:
            stream.capture(on)
        elif on:
            stream.begin_capture(0)  # the strictest mode: no thread of the process may do what could spoil the graph
        else:
            stream.end_capture()


def words_of(device: core.CudaDevice) -> tuple[int, Any]:
    address, memory = pinned(device, 4096)
    words = memory.view(np.uint64)
    words[:] = 0
    return address, words


def order(results: Results, device: core.CudaDevice, streams: Streams) -> None:
    address, words = words_of(device)
    stream = streams.make()
    source, memory = pinned(device, BYTES)
    target, seen = pinned(device, BYTES)
    memory[:], seen[:] = 7, 0
    streams.copy(stream, target, source, BYTES)
    start = time.perf_counter()
    signalled = device.signal(stream.ptr, address, 3)
    took = time.perf_counter() - start
    early = int(words[0])
    wait_until(lambda: int(words[0]) == 3, "the signal")
    results.check("a signal comes after what the stream held", signalled and early == 0 and bool((seen == 7).all()))
    results.measure("to enqueue a signal", took * 1e6, "us")

    held = device.hold(stream.ptr, address + 64, 5) and device.signal(stream.ptr, address + 128, 1)
    time.sleep(0.02)
    waiting = int(words[16]) == 0
    words[8] = np.iinfo(np.int64).max
    wait_until(lambda: int(words[16]) == 1, "the held stream")
    results.check("a held stream waits, and the largest word releases it", held and waiting)

    streams.capture(stream, True)
    capturing = device.capturing(stream.ptr)
    meanwhile = device.allocate(7 << 20)
    finish(device)
    device.release(meanwhile)
    streams.capture(stream, False)
    results.check("a stream that records a graph is known as such", capturing and not device.capturing(stream.ptr))
    stream.synchronize()
    results.check("the GPU is well after all that", device.failure() is None)
    for block in (address, source, target):
        device.release(block, staging=True)


def memory_while_held(results: Results, device: core.CudaDevice, streams: Streams) -> None:
    """A call's memory may be taken while the user's stream is held already: the driver must not wait for it."""
    address, words = words_of(device)
    stream = streams.make()
    device.hold(stream.ptr, address, 1)
    taken: list[tuple[int, bool]] = []

    def take() -> None:
        # Of no size that was used before.
        taken.extend(
            (device.allocate(n, staging=staging), staging) for n in (5 << 20, 11 << 20) for staging in (False, True)
        )
        device.copy(taken[1][0], taken[0][0], 5 << 20, int(DType.UINT8), queue=core.QUEUE_OUT)
        finish(device, core.QUEUE_OUT)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(10)
    in_time = not thread.is_alive()
    words[0] = 1
    thread.join()
    results.check("memory is to be had, and copied, while a stream is held", in_time)
    stream.synchronize()
    for memory, staging in [*taken, (address, True)]:
        device.release(memory, staging=staging)


def latency(results: Results, device: core.CudaDevice, streams: Streams) -> None:
    address, words = words_of(device)
    stream = streams.make()
    there_and_back, marks = [], []
    for turn in range(1, TURNS + 1):
        device.hold(stream.ptr, address, turn)
        device.signal(stream.ptr, address + 64, turn)
        start = time.perf_counter()
        words[0] = turn
        wait_until(lambda turn=turn: int(words[8]) >= turn, "the answer")  # type: ignore[misc]
        there_and_back.append(time.perf_counter() - start)
        start = time.perf_counter()
        device.copy(address + 256, address + 512, 64, int(DType.UINT8))
        finish(device)
        marks.append(time.perf_counter() - start)
    results.measure("a word to a held stream and one back", statistics.median(there_and_back) * 1e6, "us")
    results.measure("a copy of 64 bytes, until its mark has passed", statistics.median(marks) * 1e6, "us")
    stream.synchronize()
    device.release(address, staging=True)


def main() -> int:
    results = Results("streams")
    device = core.CudaDevice(0, LIBRARY)
    streams = Streams()
    results.check("streams wait by memory operations", True, "yes" if device.memory_operations else "no: by kernels")
    order(results, device, streams)
    memory_while_held(results, device, streams)
    latency(results, device, streams)
    device.close()
    return results.close()


if __name__ == "__main__":
    sys.exit(main())
