"""What the failure bench leaves behind: a table on the terminal and JSON lines."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from faults_cuts import Series
from faults_kinds import ACROSS_MS, FAULTS, FROZEN_TIMEOUT_S, LABS, LOST_RANKS, SAME_HOST_MS, Asked, Lab
from faults_ranks import Lost

Row = dict[str, Any]


def middle(values: Iterable[float | None], digits: int = 1) -> float | None:
    """The median of what there is."""
    known = [v for v in values if v is not None]
    return round(statistics.median(known), digits) if known else None


def row_of(lab: Lab, name: str, wrong: int, cuts: int, **fields: Any) -> Row:
    """One JSON line; what is not known is null."""
    empty = dict.fromkeys(("detect_ms", "first_replay_ms", "extra_ms", "bw_after"))
    place = {"fault": name, "hosts": lab.hosts, "ranks": lab.ranks, "rails": lab.rails}
    return {**place, **empty, "wrong": wrong, "cuts": cuts, "rail_mbit": lab.rail_mbit, **fields}


def row_of_series(lab: Lab, series: Series, wrong: int) -> Row:
    """The medians of the cuts of one fault."""
    cuts = series.cuts
    return row_of(
        lab,
        series.fault.name,
        wrong,
        len(cuts),
        detect_ms=middle(c.detect_ms for c in cuts),
        first_replay_ms=middle(c.replay_ms for c in cuts),
        extra_ms=middle(c.extra_ms for c in cuts),
        bw_after=middle(series.bandwidths(), 3),
        detect_max_ms=max((round(c.detect_ms, 1) for c in cuts if c.detect_ms is not None), default=None),
        undetected=sum(c.detect_ms is None for c in cuts),
        gap_ms=middle(c.gap_ms for c in cuts),
        carries=round(series.carries, 3),
        healthy_ms=round(series.healthy_s() * 1e3, 2),
        elsewhere=sum(c.elsewhere for c in cuts),
        not_back=series.not_back,
    )


def row_of_lost(lab: Lab, fault: str, lost: Lost, cuts: int) -> Row:
    """Time until the survivors had their error."""
    fields = {"detect_ms": middle(lost.across_ms), "same_host_ms": middle(lost.same_host_ms)}
    return row_of(lab, fault, lost.wrong, cuts, **fields)


HEAD = (
    f"{'fault':<11}{'detect':>9}{'(max)':>8}{'replay':>9}{'extra':>9}{'bw/ideal':>10}{'gap':>8}"
    f"{'wrong':>7}{'cuts':>6}   ms; medians"
)


def print_row(row: Row) -> None:
    """One line of the table, with what was asked and missed."""
    values = [row.get(k) for k in ("detect_ms", "detect_max_ms", "first_replay_ms", "extra_ms", "bw_after", "gap_ms")]
    texts = ["-" if v is None else f"{v:.3f}" if i == 4 else f"{v:.1f}" for i, v in enumerate(values)]
    line = f"{row['fault']:<11}" + "".join(t.rjust(w) for t, w in zip(texts, (9, 8, 9, 9, 10, 8), strict=True))
    print(f"{line}{row['wrong']:>7}{row['cuts']:>6}   {'; '.join(verdicts(row))}", flush=True)


def verdicts(row: Row) -> list[str]:
    """What was asked and missed, in words; whatever else a reader must know of the row."""
    fault = row["fault"]
    if fault in LOST_RANKS:
        return _verdicts_of_lost(row)
    asked: Asked = FAULTS[fault].asked
    words = []
    for key, bound in (("detect_ms", asked.detect_ms), ("first_replay_ms", asked.replay_ms)):
        if bound is not None and (row[key] is None or row[key] > bound):
            words.append(f"MISSED {key} <= {bound:g}")
    if asked.bandwidth is not None and (row["bw_after"] is None or row["bw_after"] < asked.bandwidth):
        words.append(f"MISSED bw/ideal >= {asked.bandwidth:g}")
    odd = ("undetected", "elsewhere", "not_back")
    words += [f"{key.replace('_', ' ')}: {row[key]}" for key in odd if row.get(key)]
    return words or ["ok"]


def _verdicts_of_lost(row: Row) -> list[str]:
    words = []
    bound = ACROSS_MS if row["fault"] == "killed" else FROZEN_TIMEOUT_S * 1e3
    same = row.get("same_host_ms")
    if same is not None:
        words.append(f"same host {same:.1f} ms")
    # A deadline is the call's own: it runs from the call's beginning, and wakes up no earlier.
    slack = 0.0 if row["fault"] == "killed" else 0.05 * bound
    if row["detect_ms"] is None or row["detect_ms"] > bound + slack:
        words.append(f"MISSED <= {bound:g}")
    if row["fault"] == "killed" and same is not None and same > SAME_HOST_MS:
        words.append(f"MISSED same host <= {SAME_HOST_MS:g}")
    return words or ["ok"]


def save(path: Path, rows: Sequence[Row]) -> None:
    """Writes the rows; lines of faults, labs and libraries that were not measured now are kept."""

    def key(row: Row) -> tuple[Any, ...]:
        return row.get("peer", ""), row["hosts"], row["ranks"], row["rails"], row["fault"]

    merged: dict[tuple[Any, ...], Row] = {}
    if path.exists():
        merged = {key(old): old for old in map(json.loads, path.read_text().splitlines())}
    merged.update({key(row): row for row in rows})
    order = [*FAULTS, *LOST_RANKS]
    labs = [(lab.hosts, lab.ranks, lab.rails) for lab in LABS.values()]

    def place(row: Row) -> tuple[Any, ...]:
        lab = (row["hosts"], row["ranks"], row["rails"])
        fault = row["fault"]
        return (
            row.get("peer", ""),
            labs.index(lab) if lab in labs else len(labs),
            order.index(fault) if fault in order else len(order),
        )

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in sorted(merged.values(), key=place)))


def markdown(path: Path) -> str:
    """The saved lines as the tables of docs/failover.md."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ours = [
        "| lab | fault | detected ms | first replay ms | extra ms | bandwidth / ideal | wrong | cuts |",
        "| --- " * 8 + "|",
    ]
    peers = ["| library | fault | gap ms | bandwidth / ideal | what it does |", "| --- " * 5 + "|"]
    others = []
    for row in rows:
        lab = f"{row['hosts']} × {row['ranks']} × {row['rails']}"
        keys = ("detect_ms", "first_replay_ms", "extra_ms", "bw_after")
        values = ["–" if row[key] is None else f"{row[key]:g}" for key in keys]
        if "peer" in row:
            peers.append(f"| {row['peer']} | {row['fault']} | {row['gap_ms']:g} | {values[3]} | {row['outcome']} |")
        elif "false_alarms" in row:
            others.append(
                f"{lab}: {row['false_alarms']} false alarms in {row['seconds']:g} s of busy, healthy traffic."
            )
        else:
            if row.get("same_host_ms") is not None:
                values[0] += f" (same host {row['same_host_ms']:g})"
            ours.append(f"| {lab} | {row['fault']} | {' | '.join(values)} | {row['wrong']} | {row['cuts']} |")
    return "\n\n".join(["\n".join(ours), *others, "\n".join(peers)])
