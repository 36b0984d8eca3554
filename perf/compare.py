"""r2ccl beside Gloo and Open MPI: float32 sum all_reduce, the same ranks, in turns.

All libraries' processes are alive together, and one of them works at a time, so that a disturbance of the machine meets
them all alike. Needs nothing but Python: the others are installed into ``.venv-peers-*`` on first use.

    python perf/compare.py --quick
    python perf/compare.py --scenario shm2 --sizes 64K,1M --rounds 7
    python perf/compare.py --peers gloo,openmpi          # without r2ccl
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path

from compare_agent import serve
from compare_peers import Place, Process, peers_of
from compare_report import Record, make_record, plot, print_header, print_record, save
from compare_scenarios import DEFAULT_SIZES, QUICK_SIZES, SCENARIOS, Scenario, parse_size
from compare_session import Pace, PeerFailed, Session, busy_cores

RESULTS = Path(__file__).resolve().parent / "results"
NOT_BY_DEFAULT = {"mpich"}  # spins: with more ranks than cores it takes milliseconds for everything


def build_parser() -> argparse.ArgumentParser:
    """Command line."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--scenario", default=",".join(SCENARIOS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--sizes", help="comma-separated bytes, with K, M or G (default: 8 to 256M)")
    parser.add_argument("--peers", help="comma-separated names; 'all' adds mpich (default: all but mpich)")
    parser.add_argument("--rounds", type=int, help="turns per library and size (default: 5; with --quick 3)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and shorter turns, to 64M")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="deadline of one turn (default: 60)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of compare.jsonl and compare.png")
    return parser


def run_scenario(
    scenario: Scenario, chosen: str | None, sizes: list[int], rounds: int, pace: Pace, timeout_s: float
) -> list[Record]:
    """Starts the libraries, measures every size, prints the table as it grows."""
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="r2ccl-compare-") as text, contextlib.ExitStack() as stack:
        folder = Path(text)
        fabric = None
        if scenario.hosts:
            from r2ccl.lab import Fabric

            rate = f"{scenario.rail_mbit}mbit" if scenario.rail_mbit else "none"
            lab = fabric = stack.enter_context(Fabric(scenario.hosts, scenario.rails, rate))
            stack.enter_context(
                contextlib.closing(
                    serve(folder / "agent", lambda host, command: lab.popen(host, ["sh", "-c", command]))
                )
            )
        session = stack.enter_context(Session(folder, scenario.ranks, timeout_s))
        place = Place(scenario, folder, session.path, fabric)
        peers = peers_of(scenario)
        if chosen is None:
            peers = {n: p for n, p in peers.items() if n not in NOT_BY_DEFAULT}
        elif chosen != "all":
            peers = {n: p for n, p in peers.items() if n in chosen.split(",")}
        for name, peer in peers.items():
            log = folder / f"{name}.log"
            processes: list[Process] = []
            try:
                processes = peer.start(peer, place, log)
                session.join(name, processes, log)
            except (PeerFailed, OSError) as error:
                print(f"  {scenario.name} without {error}", flush=True)
                if name in session.members:
                    session.dismiss(name)
        print_header(scenario, peers)
        for size in sizes:
            if scenario.low <= size <= scenario.high and session.members:
                others = busy_cores(0.2)
                record = make_record(scenario, size, dict(session.compare(size, rounds, pace)), others)
                records.append(record)
                print_record(scenario, peers, record)
    return records


def main() -> int:
    """Runs the chosen scenarios; 1 when one of them gave no result."""
    options = build_parser().parse_args()
    names = options.scenario.split(",")
    if unknown := [n for n in names if n not in SCENARIOS]:
        sys.exit(f"--scenario {','.join(unknown)}: one of {', '.join(SCENARIOS)}")
    try:
        sizes = [parse_size(s) for s in options.sizes.split(",")] if options.sizes else None
    except ValueError as error:
        sys.exit(f"--sizes: {error}")
    sizes = sizes or list(QUICK_SIZES if options.quick else DEFAULT_SIZES)
    rounds = options.rounds or (3 if options.quick else 5)
    pace = Pace(batch_s=0.01, batches=2) if options.quick else Pace(batch_s=0.02, batches=3)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything started is ended, as on Ctrl-C
    start = time.monotonic()
    complete = True
    rows: list[Record] = []
    for name in names:
        records = run_scenario(SCENARIOS[name], options.peers, sizes, rounds, pace, options.timeout)
        complete &= bool(records)
        rows = save(options.output / "compare.jsonl", records)
    if rows:
        plot(options.output / "compare.png", rows)
    print(f"\n{time.monotonic() - start:.0f} s; {options.output / 'compare.jsonl'}, compare.png")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
