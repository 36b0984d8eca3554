"""The record of a demonstration as JSON: everything that was measured, to draw or check anew."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

import r2ccl

from .settings import Settings
from .trial import Step, Trial
from .verdict import Verdict


def save(path: Path, settings: Settings, notes: list[str], verdict: Verdict, trials: list[Trial]) -> None:
    """Writes it. Times of a trial count from its first step, in seconds; bytes are [sent, received]."""
    record = {
        "version": 1,
        "r2ccl": r2ccl.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "settings": {**dataclasses.asdict(settings), "out": None},
        "notes": notes,
        "passed": verdict.passed,
        "verdict": dataclasses.asdict(verdict),
        "runs": [_trial(trial) for trial in trials],
    }
    path.write_text(json.dumps(record) + "\n")


def _trial(trial: Trial) -> dict[str, Any]:
    start_s = trial.start_s
    cut = trial.cut
    return {
        "name": trial.name,
        "cut": cut
        and {
            "called_s": cut.called_s - start_s,
            "acted_s": cut.acted_s - start_s,
            "exact": cut.exact,
            "evidence": cut.evidence,
        },
        "steps": [[_step(step, start_s) for step in steps] for steps in trial.steps],
        "step_fields": ["begin_s", "reduce_s", "end_s", "done_s", "loss", "replayed"],
        "samples": [
            {
                "at_s": round(s.at_s - start_s, 6),
                "nics": {f"host{h}/rail{r}": both for (h, r), both in s.nics.items()},
            }
            for s in trial.samples
        ],
        "ranks": trial.reports,
    }


def _step(step: Step, start_s: float) -> list[float]:
    times_s = step.begin_s, step.reduce_s, step.end_s, step.done_s
    return [*(round(t - start_s, 6) for t in times_s), step.loss, step.replayed]
