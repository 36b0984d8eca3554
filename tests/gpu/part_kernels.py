"""Every kernel against NumPy and ml_dtypes: tests/cuda/test_cuda_oracle.py on this driver, and large unaligned arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from results import LIBRARY, ROOT, Results, finish, pinned

from r2ccl._native import core
from r2ccl.types import DType, ReduceOp

COUNT = 3_000_017  # elements; no power of two, so that heads and tails are there


def large_arrays(results: Results, device: core.CudaDevice) -> None:
    rng = np.random.default_rng(5)
    nbytes = COUNT * 4 + 64
    (left, a), (right, b), (out, c) = (pinned(device, nbytes) for _ in range(3))
    on_gpu = device.allocate(nbytes)
    for offset in (0, 4, 1):
        x = rng.standard_normal(COUNT, np.float32)
        y = rng.standard_normal(COUNT, np.float32)
        a[offset : offset + x.nbytes] = x.view(np.uint8)
        b[: y.nbytes] = y.view(np.uint8)
        c[:] = 0
        device.copy(on_gpu + offset, left + offset, x.nbytes, int(DType.UINT8))
        device.reduce(on_gpu + offset, [on_gpu + offset, right], COUNT, int(DType.FLOAT32), int(ReduceOp.SUM))
        device.copy(out, on_gpu + offset, x.nbytes, int(DType.UINT8))
        finish(device)
        equal = np.array_equal(c[: x.nbytes].view(np.float32), x + y)
        results.check(f"{COUNT} float32 at an address that is {offset} modulo 16", equal)
    device.release(on_gpu)
    for address in (left, right, out):
        device.release(address, staging=True)


def main() -> int:
    results = Results("kernels")
    oracle = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/cuda/test_cuda_oracle.py"]
    ended = subprocess.run(oracle, cwd=ROOT, capture_output=True, text=True, check=False)
    results.check(
        "every type and operator against NumPy and ml_dtypes",
        ended.returncode == 0,
        ended.stdout.strip().splitlines()[-1][:60],
    )
    if ended.returncode != 0:
        print(ended.stdout[-4000:], ended.stderr[-2000:])
    device = core.CudaDevice(0, LIBRARY)
    large_arrays(results, device)
    device.close()
    return results.close()


if __name__ == "__main__":
    sys.exit(main())
