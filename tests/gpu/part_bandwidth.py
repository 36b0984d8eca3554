"""How fast the kernels move memory, beside what a copy inside the GPU reaches in the same run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from results import FAKE, LIBRARY, Results, finish

from r2ccl._native import core
from r2ccl.types import DType, ReduceOp

BYTES = (256 << 20) if not FAKE else (64 << 10)  # of an operand: beyond any cache
ROUNDS, REPEATS = (5, 20) if not FAKE else (1, 1)
SHARE = 0.85  # of the copy's rate


def best_seconds(device: core.CudaDevice, work: Callable[[], None]) -> float:
    """Of one piece of work, the best of several rounds of many."""
    work()
    finish(device)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(REPEATS):
            work()
        finish(device)
        best = min(best, (time.perf_counter() - start) / REPEATS)
    return best


def reduction(
    device: core.CudaDevice, dst: int, sources: Sequence[int], dtype: DType, op: ReduceOp
) -> Callable[[], None]:
    """A reduction of operands of BYTES."""
    count, ranks = BYTES // dtype.itemsize, 8 if op is ReduceOp.AVG else 0
    return lambda: device.reduce(dst, sources, count, int(dtype), int(op), ranks)


def main() -> int:
    results = Results("bandwidth")
    device = core.CudaDevice(0, LIBRARY)
    operands = [device.allocate(BYTES + 64) for _ in range(9)]
    dst, a, b = operands[:3]
    for operand in operands:  # zeros, so that no number is slow
        device.copy(operand, operands[0], BYTES, int(DType.UINT8))
    copy_rate = 2 * BYTES / best_seconds(device, lambda: device.copy(a, b, BYTES, int(DType.UINT8))) / 1e9
    results.measure("copy inside the GPU, read and written", copy_rate, "GB/s")

    def report(name: str, moved: int, work: Callable[[], None], judged: bool = True) -> None:
        rate = moved / best_seconds(device, work) / 1e9
        results.measure(f"{name}: GB/s", rate, "GB/s")
        results.measure(f"{name}: share of the copy", rate / copy_rate, "", at_least=SHARE if judged else None)

    for dtype in (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, DType.INT32, DType.COMPLEX64):
        report(f"sum of {dtype.name.lower()}", 3 * BYTES, reduction(device, dst, [a, b], dtype, ReduceOp.SUM))
    report("in place, sum of float32", 3 * BYTES, reduction(device, a, [a, b], DType.FLOAT32, ReduceOp.SUM))
    for dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.INT8):
        report(
            f"sum of {dtype.name.lower()}", 3 * BYTES, reduction(device, dst, [a, b], dtype, ReduceOp.SUM), judged=False
        )
    for op in (ReduceOp.AVG, ReduceOp.MAX):
        report(f"{op.name.lower()} of float16", 3 * BYTES, reduction(device, dst, [a, b], DType.FLOAT16, op))
    for n in (4, 8):
        work = reduction(device, dst, operands[1 : 1 + n], DType.BFLOAT16, ReduceOp.SUM)
        report(f"{n} operands, sum of bfloat16", (n + 1) * BYTES, work)
    half = BYTES // 4
    report(
        "bfloat16 to float32", 6 * half, lambda: device.copy(dst, a, half, int(DType.BFLOAT16), wide=1), judged=False
    )
    for offset in (2, 4):
        work = reduction(device, dst, [a + offset, b], DType.BFLOAT16, ReduceOp.SUM)
        report(f"sum of bfloat16, one operand {offset} bytes off", 3 * BYTES, work, judged=False)
    chunk = min(256 << 10, BYTES)
    seconds = best_seconds(
        device, lambda: device.reduce(dst, [a, b], chunk // 4, int(DType.FLOAT32), int(ReduceOp.SUM))
    )
    results.measure("a reduction of 256 KiB, one after the other", seconds * 1e6, "us")
    for operand in operands:
        device.release(operand)
    device.close()
    return results.close()


if __name__ == "__main__":
    sys.exit(main())
