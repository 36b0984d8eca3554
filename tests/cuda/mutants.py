"""Breaks the synchronisation of the CUDA path in one place at a time and demands that a test notices.

usage: mutants.py TSAN_BUILD [NAME...]      TSAN_BUILD: a build folder of the native tests under -fsanitize=thread

A mutant is a source with one piece of text replaced, compiled beside the original and run by the test that is to catch
it, under ThreadSanitizer. It is caught when that test fails, for whatever reason. The originals must pass first.
Exit status 1 and the names, if mutants live or the text to replace is not found exactly once.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "src" / "r2ccl" / "_native" / "device"
NATIVE = ROOT / "tests" / "native"
FAKE = ROOT / "tests" / "fake_cuda"
FLAGS = ["-std=c++20", "-O1", "-g", "-fsanitize=thread", "-ffp-contract=off", "-w"]
RUN_S = 90
AT_ONCE = 2


@dataclass(frozen=True)
class Mutant:
    """``old`` becomes ``new`` in ``file`` (below device/); ``case`` of ``test`` must notice."""

    name: str
    file: str
    old: str
    new: str
    case: str
    test: str = "test_cuda_gate"


GATE, PORTABLE = "kernels/gate.cuh", "kernels/portable.cuh"
LAND = "chunks_land"
MUTANTS = [
    # These two never end by themselves, so they come first.
    Mutant("an abort does not end the wait", GATE, "load_acquire_system(abort) != 0", "false", "an_abort"),
    Mutant(
        "words are compared as they are",
        GATE,
        "static_cast<int64_t>(load_acquire_system(word) - value) < 0",
        "load_acquire_system(word) < value",
        "cyclically",
    ),
    Mutant("no barrier after the wait", GATE, "__syncthreads();  // what the first", "// what the first", LAND),
    Mutant("no barrier before publishing", GATE, "__syncthreads();  // what the block", "// what the block", LAND),
    Mutant(
        "no wait for the data", GATE, "go = wait_for(gate.ready, gate.ready_value, gate.abort) ? 1 : 0", "go = 1", LAND
    ),
    Mutant("the first block publishes", GATE, "== gridDim.x - 1", "== 0", LAND),
    Mutant("the counter is not reset", GATE, "*gate.arrived = 0;", "", LAND),
    Mutant(
        "the word is read without acquire",
        PORTABLE,
        "load(std::memory_order_acquire)",
        "load(std::memory_order_relaxed)",
        LAND,
    ),
    Mutant(
        "the word is written without release",
        PORTABLE,
        "store(v, std::memory_order_release)",
        "store(v, std::memory_order_relaxed)",
        LAND,
    ),
    Mutant(
        "blocks count without order",
        PORTABLE,
        "fetch_add(1, std::memory_order_acq_rel)",
        "fetch_add(1, std::memory_order_relaxed)",
        LAND,
    ),
    Mutant(
        "marks are read without acquire",
        "cuda.cc",
        ".load(std::memory_order_acquire);",
        ".load(std::memory_order_relaxed);",
        "a_mark_alone",
        "test_cuda_device",
    ),
    Mutant(
        "a mark's number is taken without the lock",
        "cuda.cc",
        "const std::lock_guard lock(q.mutex);\n  const uint64_t number",
        "const uint64_t number",
        "any_thread",
        "test_cuda_device",
    ),
    Mutant(
        "an event counts before it has passed",
        "cuda.cc",
        "if (result == cuda::kNotReady) break;",
        "if (result == cuda::kNotReady) result = cuda::kSuccess;",
        "a_queue_works",
        "test_cuda_device",
    ),
    Mutant(
        "a hold holds nothing",
        "cuda.cc",
        "context_.driver().stream_wait_value(on, address_of(word), value, cuda::kWaitGreaterEqual)",
        "cuda::kSuccess",
        "a_held_stream",
        "test_cuda_device",
    ),
    Mutant(
        "a signal does not wait for the stream",
        "cuda.cc",
        "return accepted(context_.driver().stream_write_value(on,",
        "*word = value;\n    return accepted(context_.driver().stream_write_value(on,",
        "a_signal",
        "test_cuda_device",
    ),
]


def run(command: list[str | Path], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Output and status; a timeout is status 124."""
    try:
        return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(error.cmd, 124, "", f"not done within {timeout_s:.0f} s")


def launcher() -> list[str]:
    """ThreadSanitizer's older libraries cannot bear much randomised addresses."""
    without = ["setarch", platform.machine(), "-R"]
    return without if shutil.which("setarch") and run([*without, "true"], 10).returncode == 0 else []


def build(mutant: Mutant | None, test: str, tsan: Path, folder: Path) -> Path:
    """The test's program, with the mutant's source in place of the original; the unchanged one for None."""
    device = folder / "device"
    shutil.copytree(DEVICE, device)
    if mutant is not None:
        path = device / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise SystemExit(f"mutant {mutant.name!r}: its text stands {text.count(mutant.old)} times in {mutant.file}")
        path.write_text(
            text.replace(mutant.old, mutant.new).replace(
                "const cuda::Result result = driver.event_query", "cuda::Result result = driver.event_query"
            )
        )
    program = folder / test
    sources: list[str | Path] = [NATIVE / f"{test}.cc"]
    if test == "test_cuda_device":
        sources.append(device / "cuda.cc")
    fake = tsan / "tests" / "fake_cuda" / "libfake_cuda.so"
    includes = [f"-I{p}" for p in (device, device / "kernels", folder, NATIVE, FAKE, ROOT / "include")]
    library = tsan / "src" / "r2ccl" / "_native" / "libr2device.a"
    made = run(
        [
            "c++",
            *FLAGS,
            *includes,
            f'-DR2CCL_FAKE_CUDA_LIBRARY="{fake}"',
            *sources,
            library,
            "-ldl",
            "-lpthread",
            "-o",
            program,
        ],
        300,
    )
    if made.returncode != 0:
        raise SystemExit(
            f"{test} with {mutant.name if mutant else 'nothing changed'} does not compile:\n{made.stderr[-3000:]}"
        )
    return program


def judge(mutant: Mutant | None, test: str, case: str, tsan: Path) -> tuple[bool, str]:
    """(whether the test passed, how it ended)."""
    with tempfile.TemporaryDirectory(prefix="r2ccl-mutant-") as name:
        program = build(mutant, test, tsan, Path(name))
        options = "TSAN_OPTIONS=halt_on_error=1:exitcode=66"
        ended = run(["env", options, *launcher(), program, case], RUN_S)
    lines = [line for line in ended.stderr.splitlines() if "failed:" in line or "WARNING: ThreadSanitizer" in line]
    return ended.returncode == 0, (lines or [ended.stderr[-200:] or f"status {ended.returncode}"])[0]


def main(argv: list[str]) -> int:
    if not argv:
        raise SystemExit(__doc__)
    tsan = Path(argv[0]).resolve()
    chosen = [m for m in MUTANTS if len(argv) == 1 or m.name in argv[1:]]
    originals = sorted({(m.test, m.case) for m in chosen})
    with ThreadPoolExecutor(AT_ONCE) as pool:
        healthy = list(pool.map(lambda o: (o, judge(None, *o, tsan)), sorted({(t, "") for t, _ in originals})))
        judged = list(pool.map(lambda m: (m, judge(m, m.test, m.case, tsan)), chosen))
    wrong = 0
    for (test, _), (passed, how) in healthy:
        wrong += not passed
        print(f"{'passes' if passed else 'FAILS '}  {test} as it is{'' if passed else ': ' + how}")
    for mutant, (passed, how) in judged:
        wrong += passed
        print(f"{'LIVES ' if passed else 'caught'}  {mutant.name}{'' if passed else ': ' + how.strip()}")
    print(f"{len(judged)} mutants, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
