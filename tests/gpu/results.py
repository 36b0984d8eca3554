"""What the parts of the GPU run share: the driver, results as JSON lines, and waiting."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from r2ccl._native import core

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("R2CCL_CUDA_LIBRARY", "")
FAKE = "fake_cuda" in LIBRARY  # the tests' driver: everything runs, and no time means anything
PATIENCE_S = 60.0


class Results:
    """Collects what one part found; ``close`` writes it and gives the exit status."""

    def __init__(self, part: str) -> None:
        self.part, self.lines, self.failed = part, [], 0  # type: ignore[var-annotated]
        self._started = time.monotonic()

    def check(self, name: str, passed: bool, note: str = "") -> bool:
        """Something that must hold."""
        self._add(name, "ok" if passed else "FAILED", passed, note)
        return passed

    def measure(
        self, name: str, value: float, unit: str, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """A number, with its bound if it has one. On the tests' driver it is run and not judged."""
        within = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        bound = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}" if at_most is not None else ""
        if FAKE:
            self._add(name, "(not timed)", True, bound)
        else:
            self._add(name, f"{value:.4g} {unit}", within, bound)

    def _add(self, name: str, value: str, passed: bool, note: str) -> None:
        self.failed += not passed
        self.lines.append({"part": self.part, "name": name, "value": value, "passed": passed, "note": note})
        print(f"{'' if passed else '!! '}{self.part:10} {name:58} {value:>16}  {note}", flush=True)

    def close(self) -> int:
        """Appends to the file that the first argument names."""
        self.check("done", True, f"{time.monotonic() - self._started:.1f} s")
        if len(sys.argv) > 1:
            with open(sys.argv[1], "a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in self.lines)
        return 1 if self.failed else 0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Polls; RuntimeError after a minute."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: nothing for {PATIENCE_S:.0f} s")


def finish(device: core.CudaDevice, queue: int = core.QUEUE_LOCAL) -> None:
    """Until all that was given to the queue is complete."""
    mark = device.mark(queue)

    def passed() -> bool:
        why = device.failure()
        if why is not None:
            raise RuntimeError(why)
        return bool(device.passed(queue) >= mark)

    wait_until(passed, "the queue")


def pinned(device: core.CudaDevice, nbytes: int) -> tuple[int, Any]:
    """Staging memory: its address, and its bytes as NumPy sees them."""
    import ctypes

    import numpy as np

    address = device.allocate(nbytes, staging=True)
    return address, np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (nbytes,))
