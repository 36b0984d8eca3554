"""Tests of the CUDA path, on the tests' driver unless R2CCL_CUDA_LIBRARY names another. ``make test-cuda`` builds it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_driver import THINGS, CupyOnFake, FakeDriver

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "unit"), str(ROOT / "tests" / "mp")]  # what host and GPU are compared with
BUILT = ROOT / "build" / "native" / "tests" / "fake_cuda" / "libfake_cuda.so"


@pytest.fixture(scope="session")
def cuda_library() -> str:
    """File of the driver that the tests run on."""
    library = os.environ.get("R2CCL_CUDA_LIBRARY") or str(BUILT)
    assert os.path.sep not in library or Path(library).exists(), f"{library} is missing: make test-cuda builds it"
    return library


@pytest.fixture(scope="session")
def fake_driver(cuda_library: str) -> FakeDriver:
    """The tests' driver."""
    return FakeDriver(cuda_library)


@pytest.fixture
def driver(fake_driver: FakeDriver) -> Iterator[FakeDriver]:
    """The tests' driver; a test that leaves something behind in it fails."""
    before = {thing: fake_driver.count(thing) for thing in THINGS}
    yield fake_driver
    for knob, value in {"LATE_US": 0, "MEMORY_OPS": 1, "IPC": 1, "PEER": 1, "DMA_BUF": 0, "NIC_ACCESS": 0}.items():
        fake_driver.set(knob, value)
    for knob in ("FAIL_LAUNCH", "FAULT_KERNEL", "FAIL_ALLOCATE"):
        fake_driver.set(knob, 0)
    left = {thing: fake_driver.count(thing) - n for thing, n in before.items() if fake_driver.count(thing) != n}
    assert not left, f"left in the driver: {left}"


@pytest.fixture
def gpu_arrays(driver: FakeDriver) -> CupyOnFake:
    """Real CuPy arrays on the tests' driver."""
    return CupyOnFake(driver)
