"""Compiles the fake libibverbs and says how a communicator finds it. See fake.h and script.h."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = ROOT / "src" / "r2ccl" / "_native"
RAILS = 4


def build_library() -> Path:
    """The shared library, made anew when a source is newer."""
    library = ROOT / "build" / "fake_verbs" / "libfakeverbs.so"
    sources = sorted(HERE.glob("*.cc"))
    watched = [*sources, *HERE.glob("*.h"), NATIVE / "transport" / "verbs_abi.h"]
    if library.exists() and library.stat().st_mtime > max(path.stat().st_mtime for path in watched):
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    fresh = library.with_suffix(f".{os.getpid()}")
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-fPIC", "-shared", "-pthread", f"-I{NATIVE}"]
    subprocess.run([*compiler, "-o", str(fresh), *map(str, sources)], check=True, timeout=100)
    fresh.rename(library)
    return library


def environment(library: Path, log: Path) -> dict[str, str]:
    """Variables for ranks that run over the fake devices."""
    devices = ",".join(f"127.0.0.{rail + 1}=fake{rail}:1:0" for rail in range(RAILS))
    return {
        "R2CCL_TRANSPORT": "verbs",
        "R2CCL_VERBS_LIBRARY": str(library),
        "R2CCL_RDMA_DEVICES": devices,
        "FAKE_VERBS_LOG": str(log),
        # A fake NIC is a thread: on a busy machine it falls silent for longer than any real one would.
        "R2CCL_STALL_FLOOR_MS": "400",
    }


def borrowed_bytes(log: Path, rank: int | None = None) -> int:
    """Bytes that devices (of one rank) read outside of the library's own slots, as they tell when they are closed."""
    return _counted(log, rank, "of other memory")


def bytes_to_gpus(log: Path) -> int:
    """Bytes that devices wrote to the memory of other devices."""
    return _counted(log, None, "to other devices")


def _counted(log: Path, rank: int | None, what: str) -> int:
    closed = [line for line in log.read_text().splitlines() if rank is None or f"rank={rank} " in line]
    return sum(int(n) for line in closed for n in re.findall(rf"(\d+) bytes {what}", line))
