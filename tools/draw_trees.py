"""Draws docs/planner_trees.png: the classes of tree packing for four servers of which one lost a quarter of its NICs.

    python tools/draw_trees.py [FILE]

Above: the tree of each class; sums go to its owner, results come back. Below: what each server sends.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from r2ccl.plan.bounds import connected_bound
from r2ccl.plan.packing import Kind, packing

GBS = (0.75, 1.0, 1.0, 1.0)
DAMAGED, HEALTHY, LINE = "#c44e52", "#4c72b0", "#888888"


def main(path: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    packed = packing(GBS, Kind.STAR)
    total = sum(packed.weights)
    shares = [w / total for w in packed.weights]
    owners = [int(np.argmax(row)) for row in packed.inner]
    colors = [DAMAGED if b < 1 else HEALTHY for b in GBS]
    figure = plt.figure(figsize=(11, 4.6), layout="constrained")
    grid = figure.add_gridspec(2, len(owners), height_ratios=(1.5, 1))
    for k, (owner, share) in enumerate(zip(owners, shares, strict=True)):
        draw_star(figure.add_subplot(grid[0, k]), owner, share, colors)
    bound = connected_bound(GBS) / connected_bound((1.0,) * len(GBS))
    axes = figure.add_subplot(grid[1, :])
    names = [f"server {h}\n({b:.0%} of its NICs)" for h, b in enumerate(GBS)]
    busy = [d / b / connected_bound(GBS) for d, b in zip(packed.degrees, GBS, strict=True)]
    axes.barh(names, packed.degrees, color=colors)
    for h, (degree, part) in enumerate(zip(packed.degrees, busy, strict=True)):
        axes.text(degree, h, f" {degree:.2f} D, busy {part:.0%} of the time", va="center", fontsize=9)
    axes.set_xlim(0, 2.3)
    axes.invert_yaxis()
    axes.set_xlabel(f"sent, and as much received, in units of the data D; all done at {bound:.3f} of the healthy time")
    figure.suptitle("all_reduce by tree packing: the damaged server owns 10 % of the data, the others 30 % each")
    figure.savefig(path, dpi=110)


def draw_star(axes: Any, owner: int, share: float, colors: list[str]) -> None:
    """One class: its owner in the middle, the others around it."""
    others = [h for h in range(len(colors)) if h != owner]
    places = {owner: (0.0, 0.0)}
    for i, host in enumerate(others):
        angle = np.pi / 2 + 2 * np.pi * i / len(others)
        places[host] = (float(np.cos(angle)), float(np.sin(angle)))
    for host in others:
        x, y = places[host]
        axes.annotate(
            "",
            (0, 0),
            (x, y),
            arrowprops={"arrowstyle": "<->", "color": LINE, "lw": 1 + 6 * share, "shrinkA": 15, "shrinkB": 15},
        )
    for host, (x, y) in places.items():
        axes.scatter([x], [y], s=620, color=colors[host], zorder=3)
        axes.text(x, y, str(host), color="white", ha="center", va="center", fontsize=12, zorder=4)
    axes.set_title(f"class of server {owner}: {share:.0%} of D", fontsize=10)
    axes.set_xlim(-1.4, 1.4)
    axes.set_ylim(-1.1, 1.4)
    axes.set_aspect("equal")
    axes.axis("off")


if __name__ == "__main__":
    main(
        Path(sys.argv[1])
        if len(sys.argv) > 1
        else Path(__file__).resolve().parent.parent / "docs" / "planner_trees.png"
    )
