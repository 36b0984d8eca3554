"""Failures and what they cost: time to detect and to repair, bandwidth afterwards, on emulated clusters.

An all_reduce runs without end on every rank, each result checked, while one rail after the other is broken and healed
at random moments. Medians of the cuts; ``detect`` and ``replay`` count from when the fault's orders were given to the
kernel's tool; ``extra`` is what the call that is hit takes beyond the lost bandwidth; ``gap`` the longest time in which
no NIC received data. See docs/perf.md.

    python perf/faults.py --quick
    python perf/faults.py --lab 3x2x3 --faults blackhole,switch
    python perf/faults.py --no-peers --no-healthy
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from faults_cuts import Cutter
from faults_job import Job, JobFailed
from faults_kinds import EVERY_FAULT, FAULTS, LABS, LOST_RANKS, Lab
from faults_ranks import lose_ranks
from faults_report import HEAD, Row, markdown, print_row, row_of, row_of_lost, row_of_series, save
from faults_traffic import FRAMING, busy_processors, carried, received, watched

from r2ccl.lab import Fabric, LabError

RESULTS = Path(__file__).resolve().parent / "results" / "faults.jsonl"


def build_parser() -> argparse.ArgumentParser:
    """Command line."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--lab", default=",".join(LABS), help="hosts x ranks x rails, comma-separated (%(default)s)")
    parser.add_argument("--faults", help="comma-separated; default: all on 2x1x4, some on 3x2x3")
    parser.add_argument("--cuts", type=int, help="of each fault (default: 10; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="2 cuts of each, 10 s of healthy traffic")
    parser.add_argument("--healthy", type=float, metavar="S", help="seconds of busy, healthy traffic (default: 120)")
    parser.add_argument("--no-healthy", action="store_true", help="without them")
    parser.add_argument("--no-peers", action="store_true", help="without other libraries and MPTCP")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the cuts")
    parser.add_argument(
        "--markdown", action="store_true", help="print the saved results as Markdown, and measure nothing"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of JSON lines (default: %(default)s)")
    return parser


def run_lab(lab: Lab, names: list[str], cuts: int, seed: int) -> Iterator[Row]:
    """Every fault on one lab; yields its row when it is measured."""
    with Fabric(lab.hosts, lab.rails, f"{lab.rail_mbit}mbit") as fabric:
        if rails := [FAULTS[name] for name in names if name in FAULTS]:
            carries = {f.name: f.carries for f in rails}
            for fault in rails:
                if fault.carries is None:
                    carries[fault.name] = share = carried(fabric, fault.kind, fault.arguments, lab.rail_mbit)
                    print(f"  a TCP stream over a rail with {fault.name} carries {share:.1%} of its rate", flush=True)
            with Job(fabric, lab.ranks, lab.call_bytes) as job, watched(lambda: received(fabric)) as traffic:
                job.wait_for(lambda: job.complete() >= 20, 20.0)
                cutter = Cutter(job, lab, traffic, seed)
                before = 0
                for fault in rails:
                    series = cutter.run(fault, carries[fault.name] or 0.0, cuts)
                    if fault is rails[0]:
                        _print_healthy(lab, series.healthy_s())
                    wrong, before = job.wrong() - before, job.wrong()
                    yield row_of_series(lab, series, wrong)
                job.finish()
        for name in LOST_RANKS:
            if name in names:
                yield row_of_lost(lab, name, lose_ranks(fabric, lab, name, cuts, seed), cuts)


def _print_healthy(lab: Lab, healthy_s: float) -> None:
    line = lab.call_bytes * 2 * (lab.hosts - 1) / lab.hosts / (lab.rails * lab.rail_mbit * 1e6 / 8 * FRAMING)
    print(f"  healthy: {healthy_s * 1e3:.1f} ms a call, {line / healthy_s:.1%} of what the rails carry", flush=True)


def run_healthy(lab: Lab, seconds: float) -> Row:
    """Traffic without faults beside programs that want every processor: nothing may be suspected."""
    with Fabric(lab.hosts, lab.rails, f"{lab.rail_mbit}mbit") as fabric, Job(fabric, lab.ranks, lab.call_bytes) as job:
        with busy_processors():
            time.sleep(seconds)
        job.finish()
        alarms = job.events_since(0, "LINK_SUSPECT", "RAIL_DOWN", "OUTAGE_BEGIN", "PEER_LOST")
        calls = job.complete()
    fields = {"false_alarms": len(alarms), "seconds": seconds, "calls": calls}
    return row_of(lab, "none", job.wrong(), 0, **fields)


def main() -> int:
    """0: all results are right and everything was measured."""
    options = build_parser().parse_args()
    for name, given, known in (("--lab", options.lab, LABS), ("--faults", options.faults, EVERY_FAULT)):
        if unknown := [n for n in (given or "").split(",") if n and n not in known]:
            sys.exit(f"{name} {','.join(unknown)}: choose from {', '.join(known)}")
    if options.markdown:
        print(markdown(options.output))
        return 0
    labs = [LABS[name] for name in options.lab.split(",")]
    cuts = options.cuts or (2 if options.quick else 10)
    healthy_s = 0.0 if options.no_healthy else options.healthy or (10.0 if options.quick else 120.0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything started is ended, as on Ctrl-C
    start = time.monotonic()
    rows: list[Row] = []
    complete = True
    for lab in labs:
        names = options.faults.split(",") if options.faults else list(lab.faults)
        print(
            f"\n{lab.hosts} hosts x {lab.ranks} ranks x {lab.rails} rails of {lab.rail_mbit} Mbit/s\n{HEAD}", flush=True
        )
        try:
            for row in run_lab(lab, names, cuts, options.seed):
                rows.append(row)
                print_row(row)
        except (JobFailed, LabError) as error:
            print(f"  FAILED: {error}", flush=True)
            complete = False
    if healthy_s:
        row = run_healthy(labs[0], healthy_s)
        rows.append(row)
        print(
            f"\nfalse_alarms {row['false_alarms']} in {healthy_s:.0f} s of busy, healthy traffic, {row['calls']} calls"
        )
    if not options.no_peers:
        from faults_peers import run_peers

        rows += run_peers(labs[0], 1 if options.quick else 3)
    save(options.output, rows)
    wrong = sum(row["wrong"] or 0 for row in rows)
    print(f"\n{time.monotonic() - start:.0f} s; {wrong} wrong; {options.output}")
    return 0 if complete and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
