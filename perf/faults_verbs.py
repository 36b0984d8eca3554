"""What failures cost over RDMA: rails of soft RDMA broken in every way under traffic, in the guest machine.

    python perf/faults_verbs.py [--cuts 5] [--kinds down,blackhole] [--json FILE]

Run anywhere, it starts itself in the guest (docs/rdma-guest.md). Prints the table of docs/failover.md; with ``--json``
one line per cut as well. The guest is emulated: times are those of a machine a hundred times as slow, so they show the
order of things (a kernel's event or the stall rule, not RDMA's own time-out), not what hardware would do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT))

from tools.rdma_guest.faults import KINDS, SILENT, Breaker  # noqa: E402
from tools.rdma_guest.rails import Rails  # noqa: E402

HOST = 1  # whose rails are broken
MARK = "cut "


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=5, help="of every kind (%(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900.0, metavar="S", help="of the guest (%(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one line per cut")
    options = parser.parse_args(argv)
    if "RDMA_GUEST" in os.environ:
        return measure(options.kinds.split(","), options.cuts)
    command = [sys.executable, "-m", "tools.rdma_guest", "--timeout", str(options.timeout), "--"]
    command += [sys.executable, __file__, "--cuts", str(options.cuts), "--kinds", options.kinds]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as guest:
        assert guest.stdout is not None
        cuts = []
        for line in guest.stdout:
            if line.startswith(MARK):
                cuts.append(json.loads(line.removeprefix(MARK)))
                print(cuts[-1], file=sys.stderr)
            else:
                print(line, end="", file=sys.stderr)
    if options.json:
        options.json.write_text("".join(json.dumps(cut) + "\n" for cut in cuts))
    print(markdown(cuts))
    return guest.returncode or any(cut["wrong"] for cut in cuts)


def measure(kinds: Sequence[str], cuts: int) -> int:
    """In the guest: one line per cut on the standard output."""
    rails = Rails(2, 3)
    rails.lay()
    for number in range(cuts):
        for kind in kinds:
            print(MARK + json.dumps({"kind": kind, **cut(rails, kind, number % rails.rails)}), flush=True)
    return 0


def cut(rails: Rails, kind: str, rail: int) -> dict[str, Any]:
    """Traffic, one failure, its repair, the way back."""
    from r2ccl import EventKind
    from tools.rdma_guest.traffic import Traffic

    breaker = Breaker(rails)
    with Traffic(rails, 2) as traffic:
        traffic.run_on(3)
        struck_ns = time.time_ns()
        breaker.strike(kind, HOST, rail)
        acted_ns = time.time_ns()
        traffic.wait(lambda: min(traffic.counters.repaired) > 0)
        traffic.run_on(1)
        fired = breaker.evidence(kind, HOST, rail)
        healed_ns = time.time_ns()
        breaker.heal_all()
        traffic.wait(lambda: min(traffic.counters.up) > 0)
        traffic.run_on(1)
        reports = traffic.stop()

    def first_ms(event: EventKind, since_ns: int) -> float | None:
        times = [time_ns for report in reports for time_ns in report.times_ns(event, rail)]
        return round((min(times) - since_ns) / 1e6, 1) if times else None

    last_repair = max(time_ns for report in reports for time_ns in report.times_ns(EventKind.REPAIRED, rail))
    return {
        "fired": fired,
        "detected_ms": first_ms(EventKind.LINK_SUSPECT, struck_ns),
        "strike_took_ms": round((acted_ns - struck_ns) / 1e6, 1),
        "replay_ms": first_ms(EventKind.REPLAY_SENT, struck_ns),
        "repaired_ms": round((last_repair - struck_ns) / 1e6, 1),
        "back_ms": first_ms(EventKind.LINK_UP, healed_ns),
        "causes": sorted({e.cause.name.lower() for r in reports for e in r.events if e.kind == EventKind.LINK_SUSPECT}),
        "wrong": sum(report.wrong for report in reports),
        "compared": sum(report.compared for report in reports),
    }


def markdown(cuts: Sequence[dict[str, Any]]) -> str:
    """Medians by kind. Since the fault's beginning; since its rule was loaded where that is what takes time."""
    lines = ["| fault | detected ms | first replay ms | repaired ms | back ms | noticed by | wrong | cuts |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in dict.fromkeys(c["kind"] for c in cuts):
        mine = [c for c in cuts if c["kind"] == kind]
        cells = [_median(mine, name, kind in SILENT) for name in ("detected_ms", "replay_ms", "repaired_ms")]
        cells.append(_median(mine, "back_ms", False))
        causes = ", ".join(sorted({cause for c in mine for cause in c["causes"] if cause != "peer"}))
        wrong, fired = sum(c["wrong"] for c in mine), sum(c["fired"] for c in mine)
        lines.append(f"| {kind} | {' | '.join(cells)} | {causes} | {wrong} | {fired} of {len(mine)} |")
    return "\n".join(lines)


def _median(cuts: Sequence[dict[str, Any]], name: str, since_loaded: bool) -> str:
    values = [c[name] - (c["strike_took_ms"] if since_loaded else 0.0) for c in cuts if c[name] is not None]
    if not values:
        return "–"
    median = statistics.median(values)
    return f"{median:.0f}" if median >= 100 else f"{median:.1f}"


if __name__ == "__main__":
    sys.exit(main())
