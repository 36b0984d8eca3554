"""The command line and environment of a rank, the same on both grounds."""

from __future__ import annotations

import sys
from pathlib import Path

from .settings import Settings
from .trial import Trial

ENV = {
    # One thread of BLAS: the ranks share few cores, and sums are then added up in the same order in both runs.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # A new epoch may choose other plans, which add in another order; this keeps the order and repairs by Shares only.
    "R2CCL_DETERMINISTIC": "1",
    "R2CCL_TIMEOUT_S": "30",
    "R2CCL_INIT_TIMEOUT_S": "30",
}
AIM = 0.5
"""The cut is to fall at this part of the all_reduce."""
TAIL = 1500
"""Characters of a failed rank's standard error to show."""


def name_of(calm: Trial | None) -> str:
    """What a run is called: the second one is given the calm first one to aim by."""
    return "undisturbed" if calm is None else "disturbed"


def command(settings: Settings, data: Path, folder: Path, calm: Trial | None) -> list[str]:
    """The command line of a rank."""
    words = [sys.executable, "-m", f"{__package__}.train", "--data", str(data), "--folder", str(folder)]
    for name in ("steps", "width", "batch", "seed"):
        words += [f"--{name}", str(getattr(settings, name))]
    if calm is not None and settings.corrupt_rank is not None:
        words += ["--corrupt-rank", str(settings.corrupt_rank)]
    return words
