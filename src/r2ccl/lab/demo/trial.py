"""What one run of the training leaves behind, as plain values. All times are seconds of the monotonic clock."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import R2cclError
from ..wiring import Place
from .settings import Settings


class DemoError(R2cclError):
    """A run of the demonstration did not come to its end. The message says which rank failed and how."""


@dataclass(frozen=True)
class Step:
    """One step of one rank: begun, all_reduce begun, all_reduce ended, weights updated.

    ``rails``: bytes (sent, received) since the start over each of the rank's rails.
    """

    step: int
    loss: float
    begin_s: float
    reduce_s: float
    end_s: float
    done_s: float
    replayed: int
    rails: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Sample:
    """Bytes (sent, received) since the start by the NIC of every (host, rail)."""

    at_s: float
    nics: Mapping[Place, tuple[int, int]]


@dataclass(frozen=True)
class Cut:
    """When the NIC was cut: between ``called_s`` and ``acted_s``. ``evidence``: what the kernel showed afterwards.

    Where the transport injects the fault, the time is that of the first suspicion and there is no evidence.
    """

    called_s: float
    acted_s: float
    exact: bool
    evidence: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One run: ``steps[rank]``, ``reports[rank]`` as the ranks wrote them, ``samples`` in order of time."""

    name: str
    steps: list[list[Step]]
    reports: list[dict[str, Any]]
    samples: list[Sample]
    cut: Cut | None = None

    @property
    def start_s(self) -> float:
        """When the first rank began its first step."""
        return min(steps[0].begin_s for steps in self.steps)

    def step_s(self, step: int) -> float:
        """Duration of a step, of the rank that took longest."""
        return max(s[step].done_s - s[step].begin_s for s in self.steps)

    def call_hit(self, step: int) -> Step | None:
        """The all_reduce of a step on a rank where it was under way at the cut and sent chunks again; None: on none."""
        calls = [steps[step] for steps in self.steps if steps[step].replayed and self.cut is not None]
        return next((c for c in calls if self.cut and c.reduce_s <= self.cut.acted_s <= c.end_s), None)

    def reduce_span_s(self, step: int) -> tuple[float, float]:
        """From when all ranks are in the all_reduce of a step to when the first has left it."""
        return max(s[step].reduce_s for s in self.steps), min(s[step].end_s for s in self.steps)

    def losses(self) -> list[float]:
        """Loss of every step, the mean over the ranks."""
        return [sum(s.loss for s in step) / len(step) for step in zip(*self.steps, strict=True)]

    def replayed_in(self, step: int) -> int:
        """Chunks that the all_reduce of a step sent again, of all ranks."""
        return sum(s[step].replayed for s in self.steps)

    def usual_step_s(self, steps: range) -> float:
        """Median duration of some steps."""
        return statistics.median(self.step_s(step) for step in steps)

    def nic_bytes(self) -> dict[Place, tuple[int, int]]:
        """Bytes (sent, received) of every (host, rail) over the run."""
        first, last = self.samples[0].nics, self.samples[-1].nics
        return {place: (last[place][0] - first[place][0], last[place][1] - first[place][1]) for place in last}

    def suspicions_s(self) -> list[float]:
        """When ranks took a link for dead, in order."""
        offset_s = time.time() - time.monotonic()
        events = [e for report in self.reports for e in report["events"] if e["kind"] == "LINK_SUSPECT"]
        return sorted(e["time_ns"] * 1e-9 - offset_s for e in events)


class Logs:
    """The ranks' lines, read as they are written. ``steps[rank]`` grows with every ``read``."""

    def __init__(self, folder: Path, size: int) -> None:
        self._paths = [folder / f"rank{rank}.jsonl" for rank in range(size)]
        self._offsets = [0] * size
        self.steps: list[list[Step]] = [[] for _ in range(size)]

    def read(self) -> None:
        """Takes in what was written since the last time; a line that has no end yet is left for the next."""
        for rank, path in enumerate(self._paths):
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[rank])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[rank] += len(whole)
            self.steps[rank] += [_step(json.loads(line)) for line in whole.splitlines()]

    def nics(self, settings: Settings) -> dict[Place, tuple[int, int]]:
        """Bytes (sent, received) by host and rail as the ranks counted them up to their latest step."""
        total = {(h, r): (0, 0) for h in range(settings.hosts) for r in range(settings.rails)}
        for rank, steps in enumerate(self.steps):
            for rail, (sent, received) in enumerate(steps[-1].rails if steps else ()):
                place = rank // settings.ranks_per_host, rail
                total[place] = total[place][0] + sent, total[place][1] + received
        return total


def collect(name: str, folder: Path, settings: Settings, samples: list[Sample], cut: Cut | None) -> Trial:
    """The finished trial from the ranks' files. Raises ``DemoError`` when one is missing or short."""
    logs = Logs(folder, settings.size)
    logs.read()
    reports = []
    for rank, steps in enumerate(logs.steps):
        path = folder / f"rank{rank}.json"
        if len(steps) != settings.steps or not path.exists():
            raise DemoError(
                f"the {name} run: rank {rank} ended after {len(steps)} of {settings.steps} steps, no report"
            )
        reports.append(json.loads(path.read_text()))
    return Trial(name, logs.steps, reports, samples, cut)


def _step(line: dict[str, Any]) -> Step:
    return Step(**{**line, "rails": tuple((sent, received) for sent, received in line["rails"])})
