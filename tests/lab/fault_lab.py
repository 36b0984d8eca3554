"""Runs ``fault_rank.py`` on an emulated cluster and checks what every fault test must show."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2ccl.lab import MGMT, Fabric, RunResult, run_ranks_on
from r2ccl.lab.kinds import kind_named
from r2ccl.lab.report import cuts

PROGRAM = str(Path(__file__).with_name("fault_rank.py"))
REPAIR = ["LINK_SUSPECT", "LINK_DOWN", "REPLAY", "REPAIRED"]
BOUND_S = 30.0  # of all iterations: some 2 s on an idle machine
STALL_S = 12.0  # of the slowest iteration, the one with the repair
# The plan stays what it was, so the order of reduction and with it every bit does.
ENVIRONMENT = {"R2CCL_RECOVERY": "0", "R2CCL_DETERMINISTIC": "1", "R2CCL_LOG_LEVEL": "warning"}
Place = tuple[int, int]  # host, rail


@dataclass
class Outcome:
    """A run: the lab's result and the report of every rank."""

    result: RunResult
    reports: list[dict[str, Any]]
    ranks_per_host: int

    @property
    def text(self) -> str:
        """Everything that was printed, for messages."""
        return "\n".join(f"[{r.rank}] {r.stdout[-3000:]}{r.stderr[-3000:]}" for r in self.result.ranks)

    @property
    def replayed(self) -> int:
        """Chunks sent again, of all ranks."""
        return sum(r["replayed"] for r in self.reports)

    def kinds(self, rank: int, peer: int, rail: int) -> list[str]:
        """Kinds of the events about one link, in order, but for the verdict, whose time is not fixed, and REPLAY_SENT,
        which needs a chunk on the link."""
        events = [event for event in self.reports[rank]["events"] if event[0] not in ("VERDICT", "REPLAY_SENT")]
        return [kind for kind, p, r, *_ in events if (p, r) == (peer, rail)]


def run(
    fabric: Fabric,
    faults: Sequence[str],
    *arguments: object,
    ranks: int = 1,
    env: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Outcome:
    """Runs the program, ``ranks`` per host; the fabric is whole again afterwards."""
    argv = [sys.executable, PROGRAM, *map(str, arguments)]
    try:
        result = run_ranks_on(fabric, argv, ranks, {**ENVIRONMENT, **(env or {})}, faults=faults, timeout_s=timeout_s)
    finally:
        fabric.heal()
        for host in range(fabric.hosts):
            fabric.heal(host, MGMT)
    lines = [r.stdout.splitlines()[-1:] for r in result.ranks]
    reports = [json.loads(line[0]) if line and line[0].startswith("{") else {} for line in lines]
    outcome = Outcome(result, reports, ranks)
    assert not result.timed_out, outcome.text
    assert all(reports), outcome.text
    return outcome


def dead_links(fabric: Fabric, places: Iterable[Place], ranks: int) -> set[tuple[int, int, int]]:
    """(rank, peer, rail) of every link with an end on one of the places; both directions."""
    found = set()
    for host, rail in places:
        for other in range(fabric.hosts):
            if other == host:
                continue
            for a in range(host * ranks, (host + 1) * ranks):
                for b in range(other * ranks, (other + 1) * ranks):
                    found |= {(a, b, rail), (b, a, rail)}
    return found


def check(
    fabric: Fabric,
    outcome: Outcome,
    places: Iterable[Place],
    *,
    absent: Iterable[Place] = (),
    replay: bool = True,
    every_link: bool = True,
) -> None:
    """What a run that lost the rails at ``places`` must show: see the assertions.

    absent: rails that were dead from the start: their links never carried a byte and have no story to tell.
    replay=False: the fault may strike between calls. every_link=False: not every link of the rail is used.
    """
    places, text = list(places), outcome.text
    assert outcome.result.exit_code == 0, text
    check_faults_fired(outcome)
    dead = dead_links(fabric, places, outcome.ranks_per_host)
    never = dead_links(fabric, absent, outcome.ranks_per_host)
    for report in outcome.reports:
        me = report["rank"]
        assert "error" not in report, text
        assert report["wrong"] == 0, text
        assert report["compared"] >= 4, text
        assert report["leaked"] == {}, text
        assert report["elapsed_s"] < BOUND_S, text
        assert report["slowest_s"] < STALL_S, text
        assert report["close_s"] < 5.0, text
        links = {
            (me, peer, int(rail.removeprefix("rail"))): (state, tx, rx)
            for peer, rail, state, tx, rx in report["links"]
            if rail != "shm"
        }
        for link in never & links.keys():
            assert links.pop(link) == ("down", 0, 0), text
            assert outcome.kinds(*link) == [], text
        states = {link: state for link, (state, _, _) in links.items()}
        lost = {link for link, state in states.items() if state != "up"}
        mine = {link for link in dead if link[0] == me}
        assert lost == mine if every_link else lost <= mine, text
        for _, peer, rail in lost:
            assert states[me, peer, rail] == "down", text
            assert outcome.kinds(me, peer, rail) == REPAIR, text
        assert report["repairs"] == len(lost), text
    if replay:
        assert outcome.replayed > 0, text
    for cut in cuts(outcome.result):
        if cut.permanent and cut.rail >= 0:
            assert cut.silent is True, f"{cut}\n{text}"


def check_faults_fired(outcome: Outcome) -> None:
    """Each fault acted, as the kernel shows it: link states, dropped frames."""
    for fault in outcome.result.faults:
        assert fault.fired_s is not None, f"{fault.spec.text} never fired\n{outcome.text}"
        kind = fault.spec.kind
        for place in fault.places:
            now, later = fault.evidence[place], fault.evidence_at_end[place]
            if kind_named(kind).needs_nft:
                assert later["dropped_packets"] > 0, (fault, outcome.text)
            elif kind == "down":
                assert now["nic"] == "down", fault
            elif kind == "port-down":
                assert now["port"] == "down", fault
            elif kind == "removed":
                assert now["nic"] == "absent", fault
            elif kind == "switch":
                assert now["switch"] == "down", fault
            elif kind in ("address", "route"):
                assert now[kind] is False, fault
            elif kind == "flap":
                assert later["carrier_changes"] > 1, fault
            elif kind == "rate":
                assert now["rate"] == fault.spec.arguments[0], fault


def rail_events(outcome: Outcome, host: int, rail: int) -> list[list[str]]:
    """For every rank of a host: the kinds and causes of what happened to one of its rails, in order."""
    per_host = outcome.ranks_per_host
    return [
        [
            f"{kind}/{cause}" if kind == "LINK_SUSPECT" else kind
            for kind, _, r, cause, *_ in report["events"]
            if r == rail and kind != "VERDICT"
        ]
        for report in outcome.reports[host * per_host : (host + 1) * per_host]
    ]
