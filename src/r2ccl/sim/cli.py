"""``r2ccl-sim``: modelled clusters of any size, on the library's own plans, beside the published figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import R2cclError
from .run import run
from .scale import SIZES, scale
from .scenario import load, shipped
from .tables import Table, as_text, plot, write_csv
from .validate import validate

RESULTS = Path("perf/results/plans.jsonl")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 for a scenario or file that cannot be used; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="r2ccl-sim", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the scenarios that come with the package")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    one = commands.add_parser("run", help="simulate one scenario")
    one.add_argument("scenario", metavar="SCENARIO", help="a name of --list, or a TOML file")
    every = commands.add_parser("all", help="simulate every scenario that comes with the package")
    grow = commands.add_parser("scale", help="how the time to simulate grows with the number of servers")
    grow.add_argument("--servers", metavar="N", type=int, nargs="+", default=list(SIZES))
    check = commands.add_parser("validate", help="compare with what was measured on the emulated cluster")
    check.add_argument("--results", metavar="FILE", type=Path, default=RESULTS, help=f"default: {RESULTS}")
    for command in (one, every, grow, check):
        command.add_argument("--csv", metavar="FILE", type=Path, help="write the rows here")
        command.add_argument("--plot", metavar="FILE", type=Path, help="draw a picture (needs matplotlib)")
    options = parser.parse_args(argv)
    if options.list:
        for name in shipped():
            print(f"{name:<24} {load(name).title}")
        return 0
    if options.command is None:
        parser.error("a command is needed: run, all, scale or validate (or --list)")
    try:
        tables = _show(options)
        if options.csv:
            write_csv(tables, options.csv)
        if options.plot:
            plot(tables, options.plot)
    except (R2cclError, OSError, ImportError) as error:
        print(f"r2ccl-sim: {error}", file=sys.stderr)
        return 1
    return 0


def _show(options: argparse.Namespace) -> list[Table]:
    tables = []
    for table in _tables(options):
        tables.append(table)
        print(as_text(table) + "\n", flush=True)
    return tables


def _tables(options: argparse.Namespace) -> Iterator[Table]:
    if options.command == "scale":
        yield scale(tuple(options.servers))
    elif options.command == "validate":
        yield validate(options.results)
    else:
        for name in shipped() if options.command == "all" else [options.scenario]:
            yield run(load(name))


if __name__ == "__main__":
    sys.exit(main())
