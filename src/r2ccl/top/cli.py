"""r2ccl-top: a live view of the running ranks of this user on this host."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ..observe import place
from .attach import Ranks

_SHORTEST_S = 0.1
_PLAIN_WIDTH = 120  # where the output is no terminal


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0; 1 with --once where no rank was found; 2 for a mistake of the caller."""
    args = _parser().parse_args(argv)
    try:
        with Ranks(Path(args.dir) if args.dir else place.directory()) as ranks:
            if args.json:
                return _print_json(ranks, args.once, args.interval)
            return _show(ranks, args.once, args.interval)
    except PermissionError as error:
        print(f"r2ccl-top: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("r2ccl-top", description=__doc__)
    parser.add_argument("--once", action="store_true", help="show the present state and leave")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of tables, for scripts")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default 1)")
    parser.add_argument("--dir", default="", help=f"where the ranks' sockets are (default {place.directory()})")
    return parser


def _print_json(ranks: Ranks, once: bool, interval_s: float) -> int:
    while True:
        picture = ranks.look()
        print(picture.to_json(), flush=True)
        if once:
            return 0 if picture.comms else 1
        time.sleep(max(interval_s, _SHORTEST_S))


def _show(ranks: Ranks, once: bool, interval_s: float) -> int:
    try:
        from rich.console import Console
        from rich.live import Live

        from .screen import render
    except ImportError:
        print("r2ccl-top: tables need rich: pip install r2ccl[top]; --json does without", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    before, now = None, ranks.look()
    if once:
        if now.comms:  # two looks make a rate
            time.sleep(max(interval_s, _SHORTEST_S))
            before, now = now, ranks.look()
        console.print(render(now, before))
        return 0 if now.comms else 1
    with Live(render(now, None), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(max(interval_s, _SHORTEST_S))
            before, now = now, ranks.look()
            live.update(render(now, before), refresh=True)
