"""The soak (``make soak``) in short: it runs, it repairs, and it notices what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from r2ccl.lab import available

WHY_NOT = available()
SOAK = Path(__file__).parents[1] / "soak" / "soak.py"
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}"),
    pytest.mark.timeout(180),
]


def soak(*options: str) -> tuple[int, str]:
    """Exit status and everything that was printed."""
    done = subprocess.run(
        [sys.executable, str(SOAK), *options], capture_output=True, text=True, timeout=170, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_twenty_seconds_of_faults() -> None:
    status, printed = soak("--seconds", "20", "--seed", "11")
    assert status == 0, printed
    assert "soak: all is well" in printed
    found = re.search(r"faults (\d+) of (\d+) fired", printed)
    assert found, printed
    assert found[1] == found[2]
    assert int(found[1]) >= 5, printed
    assert re.search(r"REPAIRED [1-9]", printed), printed
    assert re.search(r"LINK_UP [1-9]", printed), printed


def test_a_falsified_element_is_noticed() -> None:
    """The negative control: rank 1 changes one bit of what it received."""
    status, printed = soak("--seconds", "6", "--seed", "12", "--hosts", "2", "--ranks", "1", "--falsify", "20")
    assert status == 1, printed
    assert "WRONG: rank 1: 1 wrong elements, first #" in printed
    assert "--seed 12" in printed
    assert "faults (seconds since the ranks started):" in printed
