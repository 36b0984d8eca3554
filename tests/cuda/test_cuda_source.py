"""What can be said of the kernels and of the restated API without a GPU: by the toolkit's header and nvcc's output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "src" / "r2ccl" / "_native" / "device"
OPTIONS = ["-std=c++20", "-O3", "-fmad=false", "-gencode", "arch=compute_90,code=sm_90"]  # as fatbin.cmake has them

pytestmark = pytest.mark.timeout(600)  # a compiler on a busy machine


def toolkit() -> Path | None:
    """Folder of a CUDA toolkit. The nvcc on PATH may be a script that lies elsewhere."""
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", "/opt/cuda"]
    nvcc = shutil.which("nvcc")
    roots.append(str(Path(nvcc).resolve().parents[1]) if nvcc else None)
    return next((Path(r) for r in roots if r and (Path(r) / "bin" / "nvcc").exists()), None)


TOOLKIT = toolkit()
needs_toolkit = pytest.mark.skipif(
    TOOLKIT is None, reason="no CUDA toolkit: CUDA_HOME, PATH and /usr/local/cuda have no nvcc"
)


def compile_abi(api: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "cuda_api.h").write_text(api)
    assert TOOLKIT is not None
    command = [
        "c++",
        "-std=c++20",
        "-fsyntax-only",
        f"-I{TOOLKIT / 'include'}",
        f"-I{folder}",
        str(Path(__file__).with_name("abi.cc")),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_toolkit
def test_the_restated_api_is_the_toolkits(tmp_path: Path) -> None:
    api = (DEVICE / "cuda_api.h").read_text()
    ended = compile_abi(api, tmp_path)
    assert ended.returncode == 0, ended.stderr
    # And it would be noticed if it were not: a number, and a parameter.
    for old, new in (
        ("kAttributeDmaBuf = 124", "kAttributeDmaBuf = 125"),
        ("(Address*, size_t*, Address)", "(Address*, int*, int)"),
    ):
        assert old in api
        assert compile_abi(api.replace(old, new), tmp_path).returncode != 0


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str]:
    """PTX of each kernel, and what the assembler says of their use of registers and memory."""
    folder = tmp_path_factory.mktemp("kernels")
    assert TOOLKIT is not None
    command = [
        str(TOOLKIT / "bin" / "nvcc"),
        *OPTIONS,
        "-Xptxas",
        "-v",
        "--keep",
        "--keep-dir",
        str(folder),
        "-cubin",
        "-o",
        str(folder / "k.cubin"),
    ]
    ended = subprocess.run([*command, str(DEVICE / "kernels" / "all.cu")], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    text = (folder / "all.ptx").read_text()
    kernels = dict(re.findall(r"\.visible \.entry (\w+)\((.*?)\n}\n", text, re.DOTALL))
    return kernels, ended.stderr


@needs_toolkit
@pytest.mark.slow
def test_what_nvcc_makes_of_the_kernels(compiled: tuple[dict[str, str], str]) -> None:
    kernels, report = compiled
    expected = set(re.findall(r"\br2ccl_(?:reduce|mixed|convert)_\w+|\br2ccl_(?:signal|hold)\b", " ".join(kernels)))
    assert len(kernels) == len(expected) > 100
    sixteen = re.compile(r"(ld|st)\.(?:global\.)?(?:v4\.[a-z]32|v2\.[a-z]64)")
    for name, ptx in kernels.items():
        if name in ("r2ccl_signal", "r2ccl_hold"):
            continue
        kinds = {m[1] for m in sixteen.finditer(ptx)}
        assert kinds == {"ld", "st"}, f"{name} has no 16-byte accesses both ways: {kinds}"
        if not name.startswith("r2ccl_convert"):
            assert "ld.acquire.sys.u64" in ptx, f"{name} does not acquire the word it waits for"
            assert "st.release.sys.u64" in ptx, f"{name} does not release the word it publishes"
            assert "atom.acq_rel.gpu.add.u32" in ptx, f"{name} does not order its blocks"
        assert not re.search(r"\b(ld|st)\.local", ptx), f"{name} uses local memory"
        assert "fma." not in ptx, f"{name} rounds once where the host rounds twice"
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report)
    assert len(frames) == len(kernels)
    assert all(frame == ("0", "0") for frame in frames), "kernels use local memory: " + report[-2000:]
    assert "ld.acquire.sys.u64" in kernels["r2ccl_hold"] and "st.release.sys.u64" in kernels["r2ccl_signal"]
