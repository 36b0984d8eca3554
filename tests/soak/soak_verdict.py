"""What a soak must show, and its report."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from soak_calls import NAMES
from soak_plan import Planned

from r2ccl.lab import FiredFault, RunResult
from r2ccl.lab.kinds import kind_named

WARM_UP = 0.25  # of the time: pools have grown to the window by then
SLACK_KIB = 8 << 10  # of resident memory without the pools, from after the warm-up to the last quarter; both medians
POOLS_KIB = 14 << 10  # what the pools of a peer hold at most: ``staging_bytes``, and copies of small messages
LONG_S = 60.0  # runs from here on must have used every collective and met most kinds of faults


@dataclass
class Log:
    """What became of the faults: how many fired and how many of those left a trace in the kernel, by name."""

    planned: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)


def faults_of(result: RunResult, planned: list[Planned]) -> Log:
    """Counts the faults of a run."""
    log, by_text = Log(), {f.spec.text: f for f in result.faults}
    for p in planned:
        log.planned[p.name] += 1
        faults = [by_text[text] for text in p.texts]
        log.fired[p.name] += all(f.fired_s is not None for f in faults)
        log.seen[p.name] += any(_left_a_trace(f) for f in faults)
        for f in faults:
            times = [f"{t:.3f}" if t is not None else "never" for t in (f.called_s, f.fired_s, f.healed_s)]
            log.lines.append(f"{times[0]} to {times[1]}, healed {times[2]}: {f.spec.text} {f.evidence_at_end}")
    return log


def _left_a_trace(fault: FiredFault) -> bool:
    """Link states, carrier changes, addresses, rates in force and dropped frames, as the kernel shows them."""
    kind = fault.spec.kind
    for place, now in fault.evidence.items():
        later = fault.evidence_at_end.get(place, now)
        if kind_named(kind).needs_nft:
            if later["dropped_packets"] > 0:
                return True
        elif kind == "rate":
            return now["rate"] != "none"
        elif kind == "flap":
            return later["carrier_changes"] > 1
        elif kind in ("address", "route"):
            return not now[kind]
        elif now[{"port-down": "port", "switch": "switch"}.get(kind, "nic")] != "up":
            return True
    return False


def print_report(reports: list[dict[str, Any]], log: Log) -> None:
    """A page of text."""
    calls: Counter[str] = Counter((reports[0] if reports else {}).get("calls", {}))
    print(f"calls {sum(calls.values())}: " + ", ".join(f"{name} {n}" for name, n in sorted(calls.items())))
    print("elements compared " + f"{sum(r.get('elements', 0) for r in reports):,}")
    print(
        f"faults {sum(log.fired.values())} of {sum(log.planned.values())} fired: "
        + ", ".join(f"{name} {log.fired[name]}" for name in sorted(log.planned))
    )
    kinds: Counter[str] = Counter()
    for r in reports:
        kinds.update(r.get("kinds", {}))
    print("events: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())))
    print("rank  longest call  frozen  replayed  repairs  hedged  RSS (pools) MiB              descriptors  threads")
    for r in filter(None, reports):
        first, last = _ends(r)
        print(
            f"{r['rank']:4} {r['longest'][0]:11.2f} s {r['frozen']:7} {r['replayed_chunks']:9} {r['repairs']:8} "
            f"{r['hedged_chunks']:7}  {_mib(first)} -> {_mib(last)}  "
            f"{first['descriptors']:4g} -> {last['descriptors']:<4g} {first['threads']:3g} -> {last['threads']:g}"
        )
    longest = max(((*r["longest"], r["rank"]) for r in filter(None, reports)), default=None)
    if longest:
        print(f"the longest: {longest[1]}")


def _mib(held: dict[str, float]) -> str:
    return f"{held['rss_kib'] / 1024:.1f} ({held['pools_kib'] / 1024:.1f})"


def _ends(report: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """What the rank held after the warm-up and at the end: memory as medians, the rest with all links up."""
    samples = report["samples"]
    end_s = samples[-1]["at_s"]
    early = [s for s in samples if WARM_UP * end_s <= s["at_s"] <= 2 * WARM_UP * end_s] or samples
    late = [s for s in samples if s["at_s"] >= 0.75 * end_s]
    first, last = dict(samples[0]), dict(samples[-1])
    for what in ("rss_kib", "pools_kib"):
        first[what] = statistics.median(s[what] for s in early)
        last[what] = statistics.median(s[what] for s in late)
    return first, last


def _stories(kinds: dict[str, int]) -> list[str]:
    """Events that must come in equal numbers once every link is up again: each repair has its whole story."""
    wrong = []
    for story in (
        ("LINK_SUSPECT", "LINK_DOWN", "REPLAY", "REPAIRED", "LINK_UP"),
        ("RAIL_DOWN", "RAIL_UP"),
        ("OUTAGE_BEGIN", "OUTAGE_END"),
    ):
        counts = [kinds.get(kind, 0) for kind in story]
        if len(set(counts)) > 1:
            wrong.append("events " + ", ".join(f"{n} {kind}" for kind, n in zip(story, counts, strict=True)))
    return wrong


def verdict(result: RunResult, reports: list[dict[str, Any]], log: Log, seconds: float) -> list[str]:
    """Everything that is not as it must be."""
    wrong = []
    if result.timed_out:
        wrong.append("the ranks had not ended at the deadline: a hang")
    if result.exit_code != 0:
        wrong.append(f"exit code {result.exit_code}")
    for rank, r in enumerate(reports):
        if not r:
            wrong.append(f"rank {rank} left no report")
            continue
        if r["error"]:
            wrong.append(f"rank {rank}: {r['error']}")
            continue
        if r["wrong"]:
            wrong.append(f"rank {rank}: {r['wrong']} wrong elements, first {r['first_wrong']}")
        if r["elements"] == 0:
            wrong.append(f"rank {rank} compared nothing")
        if not r["peace"]:
            down = [link[:3] for link in r["links"] if link[2] != "up"]
            wrong.append(f"rank {rank}: links that did not come back: {down}")
        if r["leaked"]:
            wrong.append(f"rank {rank} leaked after close (before, after): {r['leaked']}")
        first, last = _ends(r)
        grown = [what for what in ("descriptors", "threads", "shared") if r["peace"] and last[what] > first[what]]
        wrong += [f"rank {rank}: {what} grew from {first[what]} to {last[what]}" for what in grown]
        grown_kib = (last["rss_kib"] - last["pools_kib"]) - (first["rss_kib"] - first["pools_kib"])
        if grown_kib > SLACK_KIB:
            wrong.append(f"rank {rank}: memory beside the pools grew by {grown_kib / 1024:.1f} MiB")
        if last["pools_kib"] > POOLS_KIB * (len(reports) - 1):
            wrong.append(f"rank {rank}: the pools hold {last['pools_kib'] / 1024:.1f} MiB")
        wrong += [f"rank {rank}: {text}" for text in _stories(r["kinds"]) if r["peace"]]
        missing = set(NAMES) - r["calls"].keys()
        if seconds >= LONG_S and missing:
            wrong.append(f"rank {rank} never called {', '.join(sorted(missing))}")
    for name, n in log.planned.items():
        if log.fired[name] < n and not wrong:
            wrong.append(f"{n - log.fired[name]} of {n} faults {name!r} never fired")
        # A silent fault on a rail that carries nothing just then drops nothing, and is none.
        if n >= 5 and 2 * log.seen[name] < n:
            wrong.append(f"only {log.seen[name]} of {n} faults {name!r} left a trace in the kernel")
    good = list(filter(None, reports))
    if seconds >= LONG_S and not (sum(r["replayed_chunks"] for r in good) and sum(r["repairs"] for r in good)):
        wrong.append("nothing was replayed or repaired: the faults struck nothing")
    return wrong
