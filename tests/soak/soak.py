"""Soak: random faults and recoveries on an emulated cluster while all collectives run; every element is compared.

    python tests/soak/soak.py --seconds 600 --seed 7

Prints what was called, which faults fired, what was repaired, and what every rank holds after the warm-up and at the
end. When something is wrong it prints the seed, the log of faults and the last events of the ranks. Exit status: 0
when all is well, 1 when not, 2 when this machine cannot run it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from soak_plan import Planned, plan
from soak_verdict import Log, faults_of, print_report, verdict

from r2ccl.lab import Fabric, LabError, RunResult, run_ranks_on
from r2ccl.lab.kinds import rate_bits_per_s

PROGRAM = str(Path(__file__).with_name("soak_rank.py"))
OUTAGE_S = 40.0  # longer than any outage here: the planned ones take 2 s, a probation after them up to 10
START_S = 60.0  # what start, end and a slow machine may take beyond --seconds


def run(options: argparse.Namespace) -> tuple[RunResult, list[Planned], list[dict[str, Any]], float]:
    """Builds the cluster and runs the ranks under faults: result, plan, reports, wall clock at the start."""
    planned = plan(
        options.seed,
        options.seconds,
        options.hosts,
        options.rails,
        rate_bits_per_s(options.rate) / 1e6,
        options.outages,
    )
    argv = [sys.executable, PROGRAM, "--seed", str(options.seed), "--seconds", str(options.seconds)]
    argv += ["--max-bytes", str(options.max_bytes), *(["--freeze"] if options.freeze else [])]
    argv += ["--falsify", str(options.falsify)]
    env = {"R2CCL_OUTAGE_S": str(OUTAGE_S), "R2CCL_TIMEOUT_S": str(OUTAGE_S + 30), "R2CCL_LOG_LEVEL": "warning"}
    with Fabric(options.hosts, options.rails, options.rate) as fabric:
        begin = time.time()
        result = run_ranks_on(
            fabric,
            argv,
            options.ranks,
            env,
            timeout_s=options.seconds + START_S + OUTAGE_S,
            faults=[text for p in planned for text in p.texts],
        )
    lines = [r.stdout.splitlines()[-1:] for r in result.ranks]
    reports = [json.loads(line[0]) if line and line[0].startswith("{") else {} for line in lines]
    return result, planned, reports, begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="of calls and faults; by default another one each time")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--rails", type=int, default=3, help="of each host")
    parser.add_argument("--rate", default="200mbit", help="of a rail")
    parser.add_argument("--max-bytes", type=int, default=2 << 20, help="of the larger array of a call")
    parser.add_argument("--no-freeze", dest="freeze", action="store_false", help="stop no process for a moment")
    parser.add_argument("--no-outages", dest="outages", action="store_false", help="leave every host a rail")
    parser.add_argument(
        "--falsify", type=int, default=-1, help="call from which on rank 1 changes a bit of a result, once"
    )
    options = parser.parse_args()
    if options.seed is None:
        options.seed = time.time_ns() % 1_000_000
    print(
        f"soak: seed {options.seed}, {options.seconds:g} s, {options.hosts} hosts x {options.ranks} ranks x "
        f"{options.rails} rails of {options.rate}",
        flush=True,
    )
    try:
        result, planned, reports, begin = run(options)
    except LabError as error:
        print(f"soak: the lab cannot run: {error}", file=sys.stderr)
        return 2
    log = faults_of(result, planned)
    print_report(reports, log)
    wrong = verdict(result, reports, log, options.seconds)
    if not wrong:
        print("soak: all is well")
        return 0
    _explain(result, reports, log, begin)
    for line in wrong:
        print(f"soak: WRONG: {line}")
    print(f"soak: repeat with --seed {options.seed} --seconds {options.seconds:g}")
    return 1


def _explain(result: RunResult, reports: list[dict[str, Any]], log: Log, begin: float) -> None:
    print("\nfaults (seconds since the ranks started):")
    for line in log.lines:
        print(f"  {line}")
    for rank in result.ranks:
        report = reports[rank.rank]
        print(
            f"\nrank {rank.rank} on host {rank.host}: exit code {rank.returncode}; {report.get('error', 'no report')}"
        )
        for event in report.get("events", [])[-150:]:
            at, _, text = event.partition(" ")
            print(f"  {float(at) - begin:9.3f} {text}")
        if not report:
            print(rank.stdout[-2000:])
        print(rank.stderr[-3000:])


if __name__ == "__main__":
    sys.exit(main())
