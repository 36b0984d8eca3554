"""The README's example for GPUs, as it stands there, on two ranks of the tests' driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from r2ccl.testing.ranks import free_port

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.timeout(60)

# CuPy does not compute on the tests' driver: what the example asks of it is answered here, with real arrays.
STAND_IN = """
import os, sys, types
import numpy as np
import cupy
from fake_driver import CupyOnFake, FakeDriver, UserStream

arrays = CupyOnFake(FakeDriver(os.environ["R2CCL_CUDA_LIBRARY"]))
stream = UserStream(arrays.driver)

def full(n, value, dtype):
    made, source = arrays.empty(n, dtype), arrays.asarray(np.full(n, value), dtype)
    stream.delay(0.05)  # as if it took its time
    stream.copy(made.data.ptr, source.data.ptr, made.nbytes)
    sources.append(source)
    return made

def asnumpy(array):
    stream.synchronize()
    return arrays.asnumpy(array)

sources = []
sys.modules["cupy"] = types.SimpleNamespace(
    full=full, empty=arrays.empty, asnumpy=asnumpy, float32=np.float32,
    cuda=types.SimpleNamespace(Device=cupy.cuda.Device, get_current_stream=lambda: stream),
)
"""


def example() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import cupy" in b]
    return str(block)


def test_the_readmes_cupy_example(cuda_library: str) -> None:
    port = free_port()
    ranks = []
    for rank in range(2):
        own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        env = {**os.environ, **own, "R2CCL_CUDA_LIBRARY": cuda_library, "FAKE_CUDA_CHECK": "0", "PYTHONPATH": str(HERE)}
        command = [sys.executable, "-c", STAND_IN + example()]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for process in ranks:
        out, err = process.communicate(timeout=50)
        assert process.returncode == 0, err
        assert out.split() == ["0.5"], out
