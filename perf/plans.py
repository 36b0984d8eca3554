"""What a lost NIC costs under each algorithm: measured in the lab, predicted by the cost model, and the lower bound.

    python perf/plans.py [--quick] [--scenario NAME] [--algorithms a,b] [--rate 300mbit]

All three relative to the healthy time of the plan that is chosen healthy. Prints a table, and writes
perf/results/plans.jsonl: scenario, bytes, algorithm, measured, predicted, bound, wrong. Needs namespaces.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2ccl.lab import Fabric, available, run_ranks_on
from r2ccl.lab.kinds import rate_bits_per_s
from r2ccl.plan.bounds import all_reduce_bound_s
from r2ccl.plan.select import PlanRequest, costs_us
from r2ccl.plan.shape import ClusterShape
from r2ccl.types import Collective

HERE = Path(__file__).parent
MIB = 1 << 20
FRAMING = 0.956  # of the line is payload: 1448 bytes of 1514, and acknowledgements


@dataclass(frozen=True)
class Scenario:
    """A cluster, and the (host, rail) that it loses."""

    name: str
    hosts: int
    ranks: int
    rails: int
    lost: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...] = (64 * MIB, 256 * MIB)
    algorithms: tuple[str, ...] = ("", "hierarchical", "r2ccl_allreduce", "optcc", "tree_packing")
    target: float = 0.0

    def shape(self, rail_gbs: float, connected: bool, *, damaged: bool) -> ClusterShape:
        """As the planner sees it, with rails of the real speed."""
        full = tuple((rail_gbs,) * self.rails for _ in range(self.hosts))
        now = tuple(
            tuple(0.0 if damaged and (h, r) in self.lost else gbs for r, gbs in enumerate(rails))
            for h, rails in enumerate(full)
        )
        ranks = tuple(tuple(range(h * self.ranks, (h + 1) * self.ranks)) for h in range(self.hosts))
        return ClusterShape(ranks, rail_gbs=now, full_gbs=full, cores=2, connected=connected)


SCENARIOS = (
    Scenario("3x2x3, one NIC lost", 3, 2, 3, ((1, 0),), target=1.17),
    Scenario(
        "3x2x3, two hosts lost different NICs",
        3,
        2,
        3,
        ((1, 0), (2, 1)),
        (64 * MIB,),
        ("", "hierarchical", "tree_packing"),
        1.05 * 9 / 7,
    ),
    Scenario("3x2x3, two hosts lost the same NIC", 3, 2, 3, ((1, 0), (2, 0)), (64 * MIB,), ("", "hierarchical"), 1.575),
    Scenario(
        "4x1x4, one NIC lost",
        4,
        1,
        4,
        ((1, 0),),
        (64 * MIB,),
        ("", "ring", "r2ccl_allreduce", "optcc", "tree_packing"),
        1.11,
    ),
    Scenario("3x1x2, neighbours lost different rails", 3, 1, 2, ((0, 0), (1, 1)), (64 * MIB,), ("",)),
)


def measure(fabric: Fabric, s: Scenario, nbytes: int, algorithm: str, calls: int) -> dict[str, Any]:
    """One job: what rank 0 reports."""
    faults = [f"on='healthy' host={host} rail={rail} blackhole" for host, rail in s.lost]
    argv = [sys.executable, str(HERE / "plans_rank.py"), "--bytes", str(nbytes), "-n", str(calls)]
    env = {"R2CCL_ALGORITHM": algorithm, "R2CCL_RECOVERY": "0"}
    try:
        result = run_ranks_on(fabric, argv, s.ranks, env, faults=faults, timeout_s=240)
    finally:
        fabric.heal()
    text = result.ranks[0].stdout.splitlines()[-1:] or [""]
    if result.exit_code or not text[0].startswith("{"):
        raise RuntimeError(f"{s.name}, {algorithm or 'chosen'}: {result.ranks[0].stderr[-2000:]}")
    report: dict[str, Any] = json.loads(text[0])
    return report


def run(s: Scenario, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The lines of one scenario."""
    rail_gbs = FRAMING * rate_bits_per_s(options.rate) / 8e9
    with Fabric(hosts=s.hosts, rails=s.rails, rate=options.rate) as fabric:
        for nbytes in s.sizes[:1] if options.quick else s.sizes:
            request = PlanRequest(Collective.ALL_REDUCE, nbytes)
            whole, damaged = (s.shape(rail_gbs, False, damaged=d) for d in (False, True))
            costs = costs_us(request, damaged)
            healthy_us = min(costs_us(request, whole).values())
            bound = all_reduce_bound_s(damaged, nbytes) / all_reduce_bound_s(whole, nbytes)
            reports = {name: measure(fabric, s, nbytes, name, options.n) for name in options.algorithms or s.algorithms}
            # The healthy time of the plan that is chosen: the same in every job that forces none, or one that is for damage.
            chosen = reports.get("") or next(iter(reports.values()))
            healthy_s = statistics.median(
                r["healthy_s"] for r in reports.values() if r["healthy_plan"] == chosen["healthy_plan"]
            )
            for name, report in reports.items():
                yield {
                    "scenario": s.name,
                    "hosts": s.hosts,
                    "rails": s.rails,
                    "lost": [sum(host == h for host, _ in s.lost) for h in range(s.hosts)],
                    "bytes": nbytes,
                    "algorithm": report["plan"],
                    "chosen": not name,
                    "measured": round(report["degraded_s"] / healthy_s, 3),
                    "predicted": round(costs.get(report["plan"], 0.0) / healthy_us, 3),
                    "bound": round(bound, 3),
                    "healthy_of_bound": round(all_reduce_bound_s(whole, nbytes) / healthy_s, 3),
                    "target": s.target,
                    "wrong": report["wrong"],
                }


def show(lines: Sequence[dict[str, Any]]) -> None:
    """A table in Markdown."""
    print(
        "| scenario | size | algorithm | measured | predicted | bound | wrong |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for li in lines:
        name = f"**{li['algorithm']}** (chosen)" if li["chosen"] else li["algorithm"]
        aim = f" (≤ {li['target']:.2f})" if li["target"] and li["chosen"] else ""
        print(
            f"| {li['scenario']} | {li['bytes'] >> 20} MiB | {name} | {li['measured']:.2f}{aim} | {li['predicted']:.2f} "
            f"| {li['bound']:.3f} | {li['wrong']} |"
        )
    for scenario in dict.fromkeys(li["scenario"] for li in lines):
        share = [li["healthy_of_bound"] for li in lines if li["scenario"] == scenario]
        print(
            f"{scenario}: healthy at {', '.join(f'{100 * x:.0f} %' for x in dict.fromkeys(share))} of its bound on the rails"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest size of each scenario")
    parser.add_argument("--scenario", default="", help="only scenarios whose name contains this")
    parser.add_argument("--algorithms", type=lambda text: text.split(","), help="instead of each scenario's own")
    parser.add_argument("--rate", default="300mbit")
    parser.add_argument("-n", type=int, default=7, help="calls of which the median counts")
    parser.add_argument("--output", default=str(HERE / "results" / "plans.jsonl"))
    options = parser.parse_args()
    if (why := available()) is not None:
        print(f"the lab cannot run: {why}", file=sys.stderr)
        return 1
    lines: list[dict[str, Any]] = []
    for scenario in SCENARIOS:
        if options.scenario in scenario.name:
            lines += run(scenario, options)
    if not options.scenario and not options.algorithms:
        Path(options.output).write_text("".join(json.dumps(line) + "\n" for line in lines))
    show(lines)
    return int(any(line["wrong"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
