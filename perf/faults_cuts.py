"""One cut after the other: inject, see what the library does, heal, wait until all is as before."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from faults_job import Call, Job
from faults_kinds import FLAP, Fault, Lab
from faults_traffic import Traffic

SETTLE_S = 0.1  # after the last link is back
HEALTHY_CALLS = 3  # before each cut
CALLS_AFTER = 4  # after the repair, before the fault is healed
LEAD_S = 0.02
REPAIR_S, SUSPICION_S, RETURN_S = 5.0, 0.6, 25.0  # waited for at most; a slow rail need not be suspected at all
FLAP_CUT_S = 2.4
SHARE_WINDOW_NS = 60_000_000


@dataclass(frozen=True)
class Cut:
    """What one cut showed; None: it did not come to it."""

    detect_ms: float | None
    replay_ms: float | None
    extra_ms: float | None
    after: Sequence[Call]  # from the repair to the healing
    gap_ms: float
    healthy: Sequence[Call]
    elsewhere: int  # links of other rails that were suspected


@dataclass
class Series:
    """The cuts of one fault."""

    fault: Fault
    carries: float  # what the rails of the host that is hit still carry, all together, as a share
    cuts: list[Cut] = field(default_factory=list)
    not_back: int = 0  # cuts after which links did not return in time

    def healthy_s(self) -> float:
        """A call without a fault."""
        return statistics.median(call.seconds for cut in self.cuts for call in cut.healthy)

    def bandwidths(self) -> list[float]:
        """After the repair, per cut, as a share of what the rails can still carry."""
        healthy_s = self.healthy_s()
        return [
            healthy_s / statistics.fmean(call.seconds for call in cut.after) / self.carries
            for cut in self.cuts
            if cut.after
        ]


class Cutter:
    """Cuts one rail after the other of a running job; on every host in turn."""

    def __init__(self, job: Job, lab: Lab, traffic: Traffic, seed: int) -> None:
        self._job, self._lab, self._traffic = job, lab, traffic
        self._random = random.Random(seed)
        self._place = 0
        self._call_s = statistics.median(call.seconds for call in job.calls()[-10:])

    def run(self, fault: Fault, carries: float, cuts: int) -> Series:
        """``cuts`` cuts of one kind."""
        series = Series(fault, (self._lab.rails - 1 + carries) / self._lab.rails)
        if fault.slow:
            self._job.order("sample")
        for _ in range(cuts):
            series.cuts.append(self._cut(fault, carries, series))
        if fault.slow:
            self._job.order("rest")
        return series

    def _cut(self, fault: Fault, carries: float, series: Series) -> Cut:
        job = self._job
        # Another rail each time, and on another host once all have had their turn: one that fails again soon is kept out.
        host, rail = self._place // self._lab.rails % self._lab.hosts, self._place % self._lab.rails
        self._place += 1
        first = job.complete() + 1
        job.wait_for(lambda: job.complete() >= first + HEALTHY_CALLS, RETURN_S)
        time.sleep(self._random.uniform(0, self._call_s))
        begin_ns = job.fabric.fault(fault.kind, host, rail, *fault.on(self._lab.rail_mbit), lead_s=LEAD_S)
        if fault is FLAP:
            time.sleep(FLAP_CUT_S)
        else:
            job.wait_for(lambda: self._repaired_ns(begin_ns, rail) > 0, SUSPICION_S if fault.slow else REPAIR_S)
            reached = job.complete() + 1
            job.wait_for(lambda: job.complete() >= reached + CALLS_AFTER, REPAIR_S)
        end_ns = time.time_ns()
        job.fabric.heal(host, rail)
        job.wait_for(
            lambda: len(job.logs[0].calls) > 0 and job.calls(job.complete() - 1)[0].begin_ns > end_ns, REPAIR_S
        )
        if not job.wait_for(lambda: not job.down, RETURN_S):
            series.not_back += 1
            print(f"    not back after {RETURN_S:.0f} s: {job.links_not_up()}", flush=True)
        time.sleep(SETTLE_S)
        return self._judge(fault, carries, (host, rail), begin_ns, end_ns, first)

    def _judge(
        self, fault: Fault, carries: float, place: tuple[int, int], begin_ns: int, end_ns: int, first: int
    ) -> Cut:
        job, (_, rail) = self._job, place
        calls = job.calls(first)
        healthy = [call for call in calls if call.end_ns < begin_ns]
        call_s = statistics.median(call.seconds for call in healthy)
        suspects = job.events_since(begin_ns, "LINK_SUSPECT")
        told = [e.time_ns for e in job.events_since(begin_ns, "LINK_SUSPECT", "RAIL_DOWN") if e.rail == rail]
        told = [t for t in told if t <= end_ns]
        if fault.slow:
            demoted_ns = self._demoted_ns(place, carries, begin_ns, end_ns)
            told = sorted([*told, *([demoted_ns] if demoted_ns else [])])
        detect_ns = told[0] if told else None
        replays = [
            e.time_ns for e in job.events_since(begin_ns, "REPLAY_SENT") if e.rail == rail and e.time_ns <= end_ns
        ]
        repaired_ns = max(self._repaired_ns(begin_ns, rail), detect_ns or 0)
        share = (self._lab.rails - 1 + carries) / self._lab.rails
        if fault is FLAP:
            after = [c for c in calls if c.end_ns > begin_ns and c.begin_ns < begin_ns + int(FLAP_CUT_S * 1e9)]
        else:
            after = [c for c in calls if c.begin_ns >= repaired_ns and c.end_ns <= end_ns] if repaired_ns else []
        struck = [c for c in calls if c.end_ns > begin_ns and c.begin_ns < repaired_ns]
        usual = self._traffic.rate(calls[0].begin_ns, healthy[-1].end_ns)
        return Cut(
            detect_ms=None if detect_ns is None else (detect_ns - begin_ns) * 1e-6,
            replay_ms=(replays[0] - begin_ns) * 1e-6 if replays else None,
            extra_ms=sum(_beyond(c, begin_ns, call_s, share) for c in struck) * 1e3
            if struck and fault is not FLAP
            else None,
            after=after,
            gap_ms=self._traffic.gap_ms(begin_ns, end_ns, usual),
            healthy=healthy,
            elsewhere=sum(e.rail != rail for e in suspects),
        )

    def _repaired_ns(self, begin_ns: int, rail: int) -> int:
        """When the last link that was suspected since then was repaired; 0: not yet."""
        links: dict[tuple[int, int], int] = {}
        for event in self._job.events_since(begin_ns, "LINK_SUSPECT", "REPAIRED"):
            if event.rail == rail:
                links[event.rank, event.peer] = event.time_ns if event.kind == "REPAIRED" else 0
        return max(links.values()) if links and all(links.values()) else 0

    def _demoted_ns(self, place: tuple[int, int], carries: float, begin_ns: int, end_ns: int) -> int:
        """When the host's ranks gave the rail no more than it can carry, going by 60 ms at a time; 0: not until then."""
        host, rail = place
        fair = carries / (self._lab.rails - 1 + carries)
        found = 0
        for log in self._job.logs[host * self._lab.ranks : (host + 1) * self._lab.ranks]:
            then = 0
            for time_ns, sent in log.sent:
                if not begin_ns + SHARE_WINDOW_NS <= time_ns <= end_ns:
                    continue
                before = next((s for t, s in reversed(log.sent) if t <= time_ns - SHARE_WINDOW_NS), None)
                if before is None:
                    continue
                whole = sum(sent.values()) - sum(before.values())
                if whole and (sent[f"rail{rail}"] - before[f"rail{rail}"]) / whole <= 1.25 * fair + 0.01:
                    then = time_ns
                    break
            if not then:
                return 0
            found = max(found, then)
        return found


def _beyond(call: Call, begin_ns: int, call_s: float, share: float) -> float:
    """Seconds that a call took beyond what the loss of bandwidth explains: what was left to do takes 1 / share as long."""
    before_s = min(max(0.0, (begin_ns - call.begin_ns) * 1e-9), call_s)
    return call.seconds - before_s - (call_s - before_s) / share
