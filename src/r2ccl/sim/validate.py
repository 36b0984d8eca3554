"""The model against measurement: lines of plans.jsonl, which the benchmark of plans writes on the emulated cluster.

A line has ``scenario``, ``algorithm``, ``measured`` (relative to healthy), ``bound`` and ``predicted``; and, for this
simulator to time it too, ``hosts``, ``rails`` and ``lost`` (rails lost by each host) or a scenario named ``3x2x3 lost 1,0,0``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ..errors import InvalidArgument
from ..plan.algorithms import ALGORITHMS
from ..types import Collective
from .collective import locals_of
from .fluid import Net, simulate
from .messages import gather
from .tables import Cell, Table

NEEDED = ("scenario", "algorithm", "measured")
NBYTES, RAIL_GBS, ALPHA_US = 64 << 20, 0.0375, 200.0  # of the emulated cluster: 300 Mbit/s a rail


def validate(path: Path) -> Table:
    """Error of the planner's prediction and of the simulation, for every line. Raises InvalidArgument naming a bad line."""
    rows: list[tuple[Cell, ...]] = []
    for line in read(path):
        measured, predicted = float(line["measured"]), line.get("predicted")
        simulated = simulated_ratio(line)
        rows.append(
            (
                str(line["scenario"]),
                str(line["algorithm"]),
                measured,
                None if predicted is None else float(predicted),
                None if predicted is None else 100 * (float(predicted) / measured - 1),
                simulated,
                None if simulated is None else 100 * (simulated / measured - 1),
                None if line.get("bound") is None else float(line["bound"]),
            )
        )
    notes = tuple(
        f"{what}: mean error {mean(map(abs, errors)):.1f} %, largest {max(map(abs, errors)):.1f} %, {len(errors)} lines"
        for what, at in (("planner", 4), ("simulator", 6))
        if (errors := [cell for row in rows if isinstance(cell := row[at], float)])
    )
    columns = ("scenario", "algorithm", "measured", "predicted", "error %", "simulated", "error of it %", "bound")
    return Table("validate", f"T / T_healthy, measured in {path}", columns, tuple(rows), "simulated", notes)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of the file."""
    if not path.is_file():
        raise InvalidArgument(f"{path}: no such file; run the benchmark of plans first, or name another with --results")
    lines = []
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            missing = [key for key in NEEDED if key not in line]
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"{path}:{number}: {error}") from None
        if missing or not isinstance(line["measured"], (int, float)) or line["measured"] <= 0:
            raise InvalidArgument(f"{path}:{number}: needs {', '.join(NEEDED)}, measured above 0: {text[:80]}")
        lines.append(line)
    if not lines:
        raise InvalidArgument(f"{path}: no line in it")
    return lines


def simulated_ratio(line: dict[str, Any]) -> float | None:
    """T / T_healthy by simulation of the host-level plans; None where the line does not say what was lost."""
    hosts, rails, lost = line.get("hosts"), line.get("rails"), line.get("lost")
    if lost is None:
        found = re.match(r"(\d+)x\d+x(\d+) lost ([\d,]+)$", str(line["scenario"]))
        if not found:
            return None
        hosts, rails, lost = int(found[1]), int(found[2]), [int(k) for k in found[3].split(",")]
    algorithms = {a.name: a for a in ALGORITHMS[Collective.ALL_REDUCE]}
    algorithm = algorithms.get(line["algorithm"])
    if algorithm is None or not isinstance(lost, Sequence) or not hosts or not rails or len(lost) != hosts:
        return None
    return _seconds(algorithm.name, hosts, rails, lost) / _seconds("ring", hosts, rails, [0] * hosts)


def _seconds(name: str, hosts: int, rails: int, lost: Sequence[int]) -> float:
    algorithm = next(a for a in ALGORITHMS[Collective.ALL_REDUCE] if a.name == name)
    gbs = tuple(RAIL_GBS * (rails - k) for k in lost)
    net = Net(tuple(range(hosts)), gbs, 3.0, ALPHA_US, 256 << 10)
    return simulate(gather(locals_of(algorithm, gbs, NBYTES)), net).seconds
