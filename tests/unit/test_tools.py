"""The project's own checks find what they are for."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.mark.parametrize(
    ("source", "include", "allowed"),
    [
        ("exec/engine.cc", "flow/ledger.h", True),
        ("exec/engine.cc", "memory/cache.h", True),
        ("exec/engine.cc", "engine.h", True),
        ("c_abi.cc", "exec/engine.h", True),
        ("flow/ledger.h", "../base/ring.h", True),
        ("memory/cache.h", "device/device.h", True),
        ("flow/ledger.h", "transport/tcp.h", False),
        ("transport/tcp.h", "oob/control.h", False),
        ("base/ring.h", "flow/ledger.h", False),
        ("memory/cache.h", "exec/engine.h", False),
        ("exec/engine.cc", "nowhere.h", False),
        ("novel/thing.cc", "base/ring.h", False),
        ("base/ring.h", "r2ccl/r2ccl.h", True),
    ],
)
def test_layers_of_the_native_core(source: str, include: str, allowed: bool, tmp_path: Path) -> None:
    for name in ("exec/engine.h", "flow/ledger.h", "memory/cache.h", "base/ring.h", "device/device.h", "oob/control.h",
                 "transport/tcp.h"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#pragma once\n#include <vector>\n")
    (tmp_path / source).parent.mkdir(exist_ok=True)
    (tmp_path / source).write_text(f'#pragma once\n  # include "{include}"\n')
    main = runpy.run_path(str(TOOLS / "check_includes.py"))["main"]
    assert main([str(tmp_path)]) == (0 if allowed else 1)


def test_requirements_include_those_of_nested_extras() -> None:
    run = subprocess.run(
        [sys.executable, TOOLS / "requirements.py", "dev"], capture_output=True, text=True, check=True, timeout=60
    )
    names = run.stdout.split()
    assert any(line.startswith("pytest") for line in names)
    assert any(line.startswith("rich") for line in names)
    assert not any(line.startswith(("r2ccl", "torch")) for line in names)
    wrong = subprocess.run(
        [sys.executable, TOOLS / "requirements.py", "none"], capture_output=True, text=True, check=False, timeout=60
    )
    assert wrong.returncode != 0
    assert "'none'" in wrong.stderr
