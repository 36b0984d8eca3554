"""Results as tables: plain text for the terminal, CSV for programs, a picture for people."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COLORS = {"r2ccl": "#228833", "lower bound": "#bbbbbb"}  # this library, and what nothing can beat

Cell = str | float | int | None


@dataclass(frozen=True)
class Table:
    """columns: names, with units. rows: None where there is nothing to say. shown: the column that ``plot`` draws.

    notes: assumptions, printed below.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    shown: str
    notes: tuple[str, ...] = ()


def as_text(table: Table) -> str:
    """The table in columns, with its notes."""
    grid = [table.columns, *(tuple(_cell(c) for c in row) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    right = [all(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.columns))]
    lines = [f"{table.name}: {table.title}"]
    for row in grid:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join([*lines, *(f"  - {note}" for note in table.notes)])


def write_csv(tables: Sequence[Table], path: Path) -> None:
    """All rows, the scenario's name in the first column; a line of names wherever the columns change."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns: tuple[str, ...] = ()
        for table in tables:
            if table.columns != columns:
                columns = table.columns
                writer.writerow(["scenario", *columns])
            writer.writerows([table.name, *("" if c is None else c for c in row)] for row in table.rows)


def plot(tables: Sequence[Table], path: Path) -> None:
    """One panel of bars a table; what was published as a mark beside."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(tables), 1, figsize=(9, 1 + sum(0.8 + 0.28 * len(t.rows) for t in tables)), squeeze=False
    )
    for axis, table in zip(axes[:, 0], tables, strict=True):
        shown = table.columns.index(table.shown)
        rows = [row for row in table.rows if isinstance(row[shown], (int, float)) and row[shown] != float("inf")]
        names = [": ".join(str(c) for c in row[:2]) for row in rows]
        colors = [COLORS.get(str(row[1]), "#4477aa") for row in rows]
        axis.barh(range(len(rows)), [float(row[shown] or 0) for row in rows], color=colors)
        if "published" in table.columns:
            at = table.columns.index("published")
            marks = [(row[at], y) for y, row in enumerate(rows) if isinstance(row[at], (int, float))]
            axis.plot([x for x, _ in marks], [y for _, y in marks], "o", color="#ee6677", label="published")
            if marks:
                axis.legend(loc="lower right")
        axis.set_yticks(range(len(rows)), names, fontsize=7)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_xlabel(table.shown)
        axis.set_title(table.title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        if value == float("inf"):
            return "stops"
        return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else value
