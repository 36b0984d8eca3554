"""Memory of one process, reduced by another one on the same GPU; and descriptors for NICs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from results import LIBRARY, Results, finish, pinned

from r2ccl._native import core
from r2ccl.types import DType, ReduceOp

COUNT = 100_003
OFFSET = 4096  # of the range in its allocation


def serve(exported: str) -> int:
    """The other process: adds one to each number of the range."""
    device = core.CudaDevice(0, LIBRARY)
    theirs = device.import_memory(bytes.fromhex(exported))
    if theirs is None:
        print("refused")
        return 3
    address, memory = pinned(device, COUNT * 4)
    memory.view(np.int32)[:] = 1
    device.reduce(theirs, [theirs, address], COUNT, int(DType.INT32), int(ReduceOp.SUM))
    finish(device)
    device.close_imported(theirs)
    device.release(address, staging=True)
    device.close()
    return 0


def main() -> int:
    results = Results("ipc")
    device = core.CudaDevice(0, LIBRARY)
    address, memory = pinned(device, COUNT * 4)
    numbers = memory.view(np.int32)
    numbers[:] = np.arange(COUNT)
    on_gpu = device.allocate(OFFSET + COUNT * 4)
    device.copy(on_gpu + OFFSET, address, COUNT, int(DType.INT32))
    finish(device)
    exported = device.export(on_gpu + OFFSET, COUNT * 4)
    if results.check("memory is exported", exported is not None):
        command = [sys.executable, str(Path(__file__)), "--serve", exported.hex()]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        results.check("another process opens it", ended.returncode == 0, (ended.stdout + ended.stderr)[-200:].strip())
        device.copy(address, on_gpu + OFFSET, COUNT, int(DType.INT32))
        finish(device)
        results.check("and what it adds is there", bool((numbers == np.arange(COUNT) + 1).all()))
    whole = device.allocate(2 << 20)
    descriptor = device.dma_buf(whole, 2 << 20)
    results.check("a DMA-BUF descriptor of GPU memory", True, "offered" if descriptor >= 0 else "not offered here")
    device.release(whole)
    device.release(on_gpu)
    device.release(address, staging=True)
    device.close()
    return results.close()


if __name__ == "__main__":
    sys.exit(serve(sys.argv[2]) if sys.argv[1:2] == ["--serve"] else main())
