"""Two ranks on one GPU: collectives on CuPy's streams over shared memory and TCP, a lost rail, latency, capture, abort."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np
from results import FAKE, LIBRARY, Results, wait_until

import r2ccl
from r2ccl import Aborted, Config, InvalidArgument
from r2ccl.testing import run_ranks

RANKS = 2
SMALL, LARGE = 1024, 64 << 18  # elements of float32: 4 KiB, 64 MiB


class CupyHere:
    """CuPy as the ranks use it."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.other: Any = cupy.cuda.Stream(non_blocking=True)

    def put(self, values: np.ndarray[Any, Any]) -> Any:
        with self.stream:
            return self.cupy.asarray(values)

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.cupy.asnumpy(array, stream=self.stream)
        self.stream.synchronize()
        return found

    def compute(self, array: Any) -> Any:
        """Some work on the stream before the call."""
        with self.stream:
            return array * 2 / 2

    def idle(self, stream: Any) -> bool:
        return bool(stream.done)


class FakeHere:
    """The same on the tests' driver, which CuPy does not compute on."""

    def __init__(self) -> None:
        sys.path.insert(0, str(__import__("pathlib").Path(__file__).resolve().parents[1] / "cuda"))
        from fake_driver import CupyOnFake, FakeDriver, UserStream

        self.arrays = CupyOnFake(FakeDriver(LIBRARY))
        self.stream, self.other = UserStream(self.arrays.driver), UserStream(self.arrays.driver)

    def put(self, values: np.ndarray[Any, Any]) -> Any:
        return self.arrays.asarray(values)

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        self.stream.synchronize()
        return self.arrays.asnumpy(array)

    def compute(self, array: Any) -> Any:
        out = self.arrays.empty(array.shape, array.dtype)
        self.stream.copy(out.data.ptr, array.data.ptr, array.nbytes)
        return out

    def idle(self, stream: Any) -> bool:
        return bool(stream.idle())


def here() -> Any:
    return FakeHere() if FAKE else CupyHere()


def values(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).integers(-1000, 1000, count).astype(np.float32)


def sums(comm: r2ccl.Communicator) -> list[int]:
    """Wrong elements by size, of calls on the stream that the input comes from."""
    gpu, wrong = here(), []
    for count in (1, 1000, 300_007, (1 << 20) + 3):
        array = gpu.compute(gpu.put(values(comm.rank, count)))
        comm.all_reduce(array, stream=gpu.stream)
        want = sum(values(r, count) for r in range(comm.size))
        wrong.append(int(np.count_nonzero(gpu.get(array) != want)))
    return wrong


def with_a_fault(comm: r2ccl.Communicator) -> tuple[int, int]:
    """(wrong elements, chunks that were sent again)."""
    gpu, wrong = here(), 0
    for i in range(12):
        array = gpu.put(values(comm.rank + 10 * i, 400_000))
        comm.all_reduce(array, stream=gpu.stream)
        want = sum(values(r + 10 * i, 400_000) for r in range(comm.size))
        wrong += int(np.count_nonzero(gpu.get(array) != want))
    return wrong, int(comm.stats()["replayed_chunks"])


def latency(comm: r2ccl.Communicator) -> tuple[float, float, float]:
    """Microseconds of a small all_reduce with the host waiting, and of its submission alone; GB/s of a large one."""
    gpu, whole, submission = here(), [], []
    array = gpu.put(values(comm.rank, SMALL))
    for i in range(30 if FAKE else 400):
        comm.barrier()
        begin = time.perf_counter()
        work = comm.all_reduce(array, stream=gpu.stream)
        submitted = time.perf_counter()
        work.synchronize()
        if i >= 10:
            whole.append((time.perf_counter() - begin) * 1e6)
            submission.append((submitted - begin) * 1e6)
    large = gpu.put(np.zeros(SMALL if FAKE else LARGE, np.float32))
    rates = []
    for _ in range(8):
        comm.barrier()
        begin = time.perf_counter()
        comm.all_reduce(large, stream=gpu.stream).synchronize()
        rates.append(large.nbytes / (time.perf_counter() - begin) * 1e-9)
    return statistics.median(whole), statistics.median(submission), max(rates)


def refusals(comm: r2ccl.Communicator) -> list[str]:
    """What went otherwise than it should."""
    gpu, odd = here(), []
    array = gpu.put(values(comm.rank, SMALL))
    if FAKE:
        gpu.stream.capture(True)
    else:
        gpu.stream.begin_capture()
    try:
        comm.all_reduce(array, stream=gpu.stream)
        odd.append("a call during a capture was accepted")
    except InvalidArgument as error:
        if "graph" not in str(error):
            odd.append(str(error))
    if FAKE:
        gpu.stream.capture(False)
    else:
        gpu.stream.end_capture()
    comm.all_reduce(array, stream=gpu.stream).synchronize()
    if comm.rank == 1:
        time.sleep(1.0)
        return odd
    work = comm.all_reduce(array, stream=gpu.stream)  # the other rank never calls
    work.wait(gpu.other)
    time.sleep(0.2)
    if gpu.idle(gpu.stream) or gpu.idle(gpu.other):
        odd.append("a stream did not wait for its call")
    comm.abort("enough")
    wait_until(lambda: gpu.idle(gpu.stream) and gpu.idle(gpu.other), "streams after abort")
    try:
        work.synchronize()
        odd.append("an aborted call ended well")
    except Aborted:
        pass
    return odd


def ranks(fn: Any, config: Any = None, **options: Any) -> list[Any]:
    def settings(rank: int) -> Config:
        return (config(rank) if config else Config(top=False)).with_(cuda_library=LIBRARY)

    return run_ranks(fn, RANKS, device="cuda:0", config=settings, timeout_s=100.0, **options)


def main() -> int:
    results = Results("collectives")
    for name, options in (("shared memory", {}), ("two rails of TCP", {"hosts": 2, "rails": 2})):
        wrong = ranks(sums, **options)
        results.check(f"all_reduce on a stream, {name}", not any(map(sum, wrong)), f"wrong by size: {wrong}")
    faulty = Config(top=False, fault_script="rail=1 kind=blackhole after_bytes=2000000", stall_floor_ms=200.0)
    told = ranks(with_a_fault, lambda r: faulty if r == 0 else Config(top=False), hosts=2, rails=2)
    results.check(
        "a lost rail costs no element", sum(t[0] for t in told) == 0 and sum(t[1] for t in told) > 0, f"{told}"
    )
    for name, options in (("shared memory", {}), ("TCP", {"hosts": 2, "rails": 1})):
        small_us, submit_us, rate = ranks(latency, **options)[0]
        results.measure(f"all_reduce of 4 KiB, {name}", small_us, "us")
        results.measure(f"submission of it, {name}", submit_us, "us")
        results.measure(f"all_reduce of 64 MiB, {name}", rate, "GB/s")
    odd = ranks(refusals)
    results.check(
        "a capture is refused, abort lets streams go", not any(odd), "; ".join(note for own in odd for note in own)
    )
    return results.close()


if __name__ == "__main__":
    sys.exit(main())
