"""``r2ccl-topo``: what was found on this machine, which rails are chosen, and why every other candidate is left out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import R2cclError
from .discover import choose_rails
from .identity import Identity, read_identity
from .interface import SYSFS, find_interfaces
from .model import RailInfo
from .sysfs import numa_nodes


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 when the selection leaves no rail; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="r2ccl-topo", description=__doc__)
    parser.add_argument("--rails", metavar="LIST", help="names, globs or addresses, comma-separated (R2CCL_RAILS)")
    parser.add_argument("--exclude-rails", metavar="LIST", help="the same form, never to be used (R2CCL_EXCLUDE_RAILS)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--sysfs", type=Path, default=SYSFS, help=argparse.SUPPRESS)  # a recorded tree
    options = parser.parse_args(argv)
    given = {"rails": options.rails, "exclude_rails": options.exclude_rails}
    try:
        config = Config.from_env(**{name: value for name, value in given.items() if value is not None})
        report = collect(config, options.sysfs)
    except R2cclError as error:
        print(f"r2ccl-topo: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2) if options.json else as_text(report))
    return 0 if report["rails"] else 1


def collect(config: Config, sysfs: Path = SYSFS) -> dict[str, Any]:
    """Everything that is printed, as plain values."""
    choice = choose_rails(find_interfaces(sysfs), config)
    identity = read_identity(config)
    return {
        "host": {"host_id": identity.host_id, **asdict(identity)},
        "numa": {str(node): cpus for node, cpus in numa_nodes(sysfs).items()},
        "rails": [asdict(rail) for rail in choice.rails],
        "left_out": [asdict(entry) for entry in choice.left_out],
    }


def as_text(report: dict[str, Any]) -> str:
    """The report as a table."""
    host = report["host"]
    identity = Identity(host["boot_id"], host["netns"], host["shm_device"], host["override"])
    lines = [f"host   {identity.host_id}" + (" (host_id)" if identity.override else "")]
    lines += [f"       boot {identity.boot_id}, network namespace {identity.netns}, /dev/shm {identity.shm_device}"]
    lines += [f"numa   node {node}: CPUs {cpus}" for node, cpus in report["numa"].items()]
    lines += ["", "rails"]
    rows: list[tuple[str, ...]] = [("#", "name", "address", "network", "Mb/s", "numa", "pci", "state")]
    rows += [_row(RailInfo(**{**rail, "others": tuple(rail["others"])})) for rail in report["rails"]]
    lines += _table(rows) if report["rails"] else ["  none"]
    lines += ["", "left out"]
    left = [(entry["name"], entry["reason"]) for entry in report["left_out"]]
    lines += _table(left) if left else ["  none"]
    return "\n".join(lines)


def _row(rail: RailInfo) -> tuple[str, ...]:
    known = (rail.speed_mbps, rail.numa, rail.pci_path)
    speed, numa, pci = ("?" if value is None else str(value) for value in known)
    return str(rail.index), rail.name, f"{rail.address}/{rail.prefix_len}", rail.fabric, speed, numa, pci, rail.state


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


if __name__ == "__main__":
    sys.exit(main())
