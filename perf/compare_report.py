"""What the comparison leaves behind: a table on the terminal, JSON lines and a picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from compare_peers import OURS, OURS_WITHOUT_FAILOVER
from compare_scenarios import SCENARIOS, Scenario, format_size

Record = dict[str, Any]


def make_record(scenario: Scenario, size: int, seconds: Mapping[str, float], others_cores: float) -> Record:
    """One line of the results: times in microseconds; ``speedup`` above 1 means that r2ccl is the fastest.

    ``others_cores``: cores that were busy just before, while every library slept; the nearer that is to all cores, the
    less the times say.
    """
    others = {n: s for n, s in seconds.items() if n not in (OURS, OURS_WITHOUT_FAILOVER)}
    best = min(others, key=others.__getitem__, default=None)
    ours = seconds.get(OURS)
    return {
        "scenario": scenario.name,
        "bytes": size,
        "ours_us": _us(ours),
        "best_peer": best,
        "best_peer_us": _us(others[best]) if best else None,
        "speedup": round(others[best] / ours, 3) if best and ours else None,
        "peers": {name: _us(s) for name, s in seconds.items()},
        "others_cores": round(others_cores, 2),
    }


def verdict(scenario: Scenario, record: Record) -> str:
    """``speedup`` against the target, in words; empty where there is none or r2ccl was not measured."""
    words = []
    target = scenario.target(record["bytes"])
    if target and record["speedup"] is not None:
        words.append(f"{'ok' if record['speedup'] >= target.speedup else 'MISSED'} (target {target.speedup:g})")
    if scenario.line_share and record["ours_us"]:
        share = record["bytes"] / (record["ours_us"] * 1e-6) / scenario.raw_bytes_per_s
        word = "ok" if share >= scenario.line_share else "MISSED"
        words.append(f"{share:.1%} of the line {word} (target {scenario.line_share:.0%})")
    return ", ".join(words)


def print_header(scenario: Scenario, names: Iterable[str]) -> None:
    """Title and column heads."""
    print(
        f"\n{scenario.name}: {scenario.title}; float32 sum all_reduce, median µs per call; others: busy cores beside it"
    )
    print(f"{'size':>6}" + "".join(f"{name:>17}" for name in names) + f"{'others':>8}{'speedup':>9}  over best")


def print_record(scenario: Scenario, names: Iterable[str], record: Record) -> None:
    """One row, as soon as it is known."""
    row = f"{format_size(record['bytes']):>6}"
    for name in names:
        us = record["peers"].get(name)
        row += f"{'-' if us is None else f'{us:.1f}':>17}"
    speedup = "-" if record["speedup"] is None else f"{record['speedup']:.2f}"
    row += f"{record['others_cores']:>8.2f}"
    print(f"{row}{speedup:>9}  {record['best_peer'] or '-':<12} {verdict(scenario, record)}", flush=True)


def save(path: Path, records: Iterable[Record]) -> list[Record]:
    """Writes the records; lines of scenarios and sizes that were not measured now are kept. Returns all of them."""
    merged: dict[tuple[str, int], Record] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            old = json.loads(line)
            merged[old["scenario"], old["bytes"]] = old
    for record in records:
        merged[record["scenario"], record["bytes"]] = record
    order = list(SCENARIOS)
    rows = sorted(merged.values(), key=lambda r: (order.index(r["scenario"]), r["bytes"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def plot(path: Path, records: list[Record]) -> None:
    """Message size against speed (bytes per second of one call), one panel per scenario."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [s for s in SCENARIOS.values() if any(r["scenario"] == s.name for r in records)]
    columns = min(2, len(shown))
    lines = -(-len(shown) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(7 * columns, 4.2 * lines), squeeze=False, layout="constrained")
    names = sorted({name for r in records for name in r["peers"]}, key=lambda n: (not n.startswith(OURS), n))
    colours = {name: f"C{i}" for i, name in enumerate(names)}
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, scenario in zip(axes.flat, shown, strict=False):
        rows = [r for r in records if r["scenario"] == scenario.name]
        for name in names:
            points = [(r["bytes"], r["bytes"] / r["peers"][name] * 1e-3) for r in rows if r["peers"].get(name)]
            if points:
                ours = name == OURS
                style = {"linewidth": 2.5 if ours else 1.3, "linestyle": "--" if name == OURS_WITHOUT_FAILOVER else "-"}
                axis.plot(
                    *zip(*points, strict=True), marker="o", markersize=3, label=name, color=colours[name], **style
                )
        if scenario.raw_bytes_per_s:
            axis.axhline(scenario.raw_bytes_per_s * 1e-9, color="grey", linestyle=":", label="raw rate of the rails")
        axis.set(xscale="log", yscale="log", xlabel="bytes", ylabel="GB/s", title=f"{scenario.name}: {scenario.title}")
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 2)
