"""What the two runs prove, and the lines that say it."""

from __future__ import annotations

from dataclasses import dataclass

from .settings import Settings
from .trial import Trial


@dataclass(frozen=True)
class Verdict:
    """The outcome of a demonstration. Times in ms; those of steps are medians, of the rank that took longest.

    equal: the weights of all ranks of both runs are the same, bit for bit.
    replayed: chunks sent again in the disturbed run, of all ranks. repair_ms: the longest repair, from a suspicion to
    the arrival of the last replayed chunk. noticed_ms: from the cut to the first suspicion.
    hit_step: the first step in whose all_reduce chunks were replayed. in_call: that very call was under way, on a rank
    that replayed, when the NIC was cut.
    """

    equal: bool
    sha256: str
    replayed: int
    repair_ms: float
    noticed_ms: float | None
    hit_step: int | None
    in_call: bool
    replayed_in_call: int
    accuracy: float
    before_ms: float
    during_ms: float
    after_ms: float
    calm_ms: float

    @property
    def passed(self) -> bool:
        """Equal weights, and a repair that had something to repair."""
        return self.equal and self.replayed > 0


def judge(settings: Settings, calm: Trial, disturbed: Trial) -> Verdict:
    """Compares the two runs."""
    sums = {report["sha256"] for trial in (calm, disturbed) for report in trial.reports}
    repairs = [e["value"] for report in disturbed.reports for e in report["events"] if e["kind"] == "REPAIRED"]
    hit = next((step for step in range(settings.steps) if disturbed.replayed_in(step)), None)
    struck = settings.cut_step if hit is None else hit
    return Verdict(
        equal=len(sums) == 1,
        sha256=disturbed.reports[0]["sha256"],
        replayed=sum(report["stats"]["replayed_chunks"] for report in disturbed.reports),
        repair_ms=max(repairs, default=0) * 1e-6,
        noticed_ms=_noticed_ms(disturbed),
        hit_step=hit,
        in_call=disturbed.call_hit(struck) is not None,
        replayed_in_call=disturbed.replayed_in(struck),
        accuracy=disturbed.reports[0]["accuracy"],
        before_ms=disturbed.usual_step_s(range(1, struck)) * 1e3 if struck > 1 else disturbed.step_s(0) * 1e3,
        during_ms=disturbed.step_s(struck) * 1e3,
        after_ms=disturbed.usual_step_s(range(min(struck + 1, settings.steps - 1), settings.steps)) * 1e3,
        calm_ms=calm.usual_step_s(range(1, settings.steps)) * 1e3,
    )


def _noticed_ms(trial: Trial) -> float | None:
    """From the cut to the first suspicion after it; None where the time of the cut is not known by itself."""
    cut = trial.cut
    if cut is None or not cut.exact:
        return None
    after = [at_s for at_s in trial.suspicions_s() if at_s >= cut.called_s]
    if not after:
        return None
    # The kernel may tell the ranks of a lost carrier before it tells who took it away.
    return (after[0] - (cut.acted_s if after[0] >= cut.acted_s else cut.called_s)) * 1e3


def lines(settings: Settings, verdict: Verdict, calm: Trial, disturbed: Trial) -> list[str]:
    """The outcome for people. ``bitwise equal:`` and ``repair:`` begin the two lines that matter."""
    cut, losses = disturbed.cut, disturbed.losses()
    where = f"host {settings.cut_host} rail {settings.cut_rail}"
    told = [f"cut: {settings.fault} of {where}"]
    call = disturbed.call_hit(verdict.hit_step) if verdict.hit_step is not None else None
    if cut is None:
        told[0] += " was not noticed"
    elif call is not None:
        told[0] += (
            f"{'' if cut.exact else ', noticed'} {(cut.acted_s - call.reduce_s) * 1e3:.0f} ms into the all_reduce of step "
            f"{call.step}, which took {(call.end_s - call.reduce_s) * 1e3:.0f} ms and replayed "
            f"{verdict.replayed_in_call} chunks"
        )
    elif verdict.hit_step is None:
        told[0] += "; nothing had to be sent again"
    else:
        told[0] += f"; not within the all_reduce of step {verdict.hit_step}, which replayed"
    if verdict.noticed_ms is not None:
        told.append(f"noticed: {verdict.noticed_ms:.0f} ms after the cut")
    told += [
        f"repair: {verdict.repair_ms:.1f} ms, replayed {verdict.replayed} chunks",
        f"step time: {verdict.before_ms:.0f} ms before the cut, {verdict.during_ms:.0f} ms during, "
        f"{verdict.after_ms:.0f} ms after (undisturbed run {verdict.calm_ms:.0f} ms)",
        f"test accuracy: {verdict.accuracy:.1%} (loss {losses[0]:.3f} at first, {losses[-1]:.4f} at last)",
        "MB sent per rail, undisturbed / disturbed run:",
    ]
    before, after = calm.nic_bytes(), disturbed.nic_bytes()
    for host in range(settings.hosts):
        cells = [
            f"rail {r} {before[host, r][0] / 1e6:6.1f} / {after[host, r][0] / 1e6:6.1f}" for r in range(settings.rails)
        ]
        told.append(f"  host {host}: {'   '.join(cells)}")
    told.append(f"bitwise equal: {'yes' if verdict.equal else 'no'}")
    if verdict.equal:
        told.append(f"weights of all {settings.size} ranks of both runs: SHA-256 {verdict.sha256}")
    return told
