"""What a run shows about its faults: that they acted, and that nothing used a rail after it was cut."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .fabric import Fabric
from .kinds import kind_named
from .launch import RunResult
from .namespace import LinkCounters
from .script import SETTLE_S, FiredFault, Sample
from .wiring import Place

_ALLOWED_BYTES = 64 * 1024
_ALLOWED_BYTES_PER_S = 1024


@dataclass(frozen=True)
class Cut:
    """What the NIC of a cut rail carried from ``SETTLE_S`` after the cut to its end.

    ``silent`` allows 64 KiB of TCP payload plus 1 KiB a second. Where a cut is silent to the host its NIC still sends:
    each connection that was open repeats its oldest segment (1.4 KiB, at most 5 times in the first 6 s, then ever more
    rarely), and a rail that is probed for its return sees small frames for ever. A program that still *uses* the rail
    would exceed this with its first few chunks of data. ``silent`` is None when the cut was too short to tell.
    """

    host: int
    rail: int
    kind: str
    from_s: float
    to_s: float | None
    permanent: bool
    nic: LinkCounters
    allowed_bytes: float
    silent: bool | None


def cuts(result: RunResult) -> list[Cut]:
    """One per (host, rail) of every fault that fired and cuts."""
    found = []
    for fault in result.faults:
        if fault.fired_s is not None and _is_cut(fault):
            found += [_cut(result, fault, place) for place in fault.places if place in result.samples[0].rails]
    return found


def _is_cut(fault: FiredFault) -> bool:
    return kind_named(fault.spec.kind).cuts or (fault.spec.kind == "loss" and fault.spec.arguments[0] == 100)


def _cut(result: RunResult, fault: FiredFault, place: Place) -> Cut:
    assert fault.fired_s is not None
    end_s = result.samples[-1].at_s if fault.healed_s is None else fault.healed_s
    inside = [s for s in result.samples if fault.fired_s + SETTLE_S * 0.99 <= s.at_s <= end_s]
    nic, silent, allowed = LinkCounters(), None, 0.0
    if len(inside) >= 2:
        first, last = inside[0], inside[-1]
        nic = last.rails[place].nic - first.rails[place].nic
        allowed = _ALLOWED_BYTES + _ALLOWED_BYTES_PER_S * (last.at_s - first.at_s)
        silent = nic.payload_bytes <= allowed
    permanent = fault.healed_s is None
    return Cut(*place, fault.spec.kind, fault.fired_s, fault.healed_s, permanent, nic, allowed, silent)


def report(fabric: Fabric, argv: list[str], result: RunResult) -> dict[str, Any]:
    """Everything about a run as plain data for JSON; times in seconds since the ranks started."""
    return {
        "version": 1,
        "command": argv,
        "fabric": {"hosts": fabric.hosts, "rails": fabric.rails, "rate": fabric.rate, "mtu": fabric.mtu},
        "notes": fabric.notes,
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "elapsed_s": result.elapsed_s,
        "ranks": [{"rank": r.rank, "host": r.host, "returncode": r.returncode} for r in result.ranks],
        "faults": [_fault(fault) for fault in result.faults],
        "samples": [_sample(sample) for sample in result.samples],
        "cuts": [
            {
                **asdict(cut),
                "bytes_after": cut.nic.total_bytes,
                "payload_bytes_after": cut.nic.payload_bytes,
            }
            for cut in cuts(result)
        ],
    }


def _fault(fault: FiredFault) -> dict[str, Any]:
    return {
        "text": fault.spec.text,
        "kind": fault.spec.kind,
        "arguments": list(fault.spec.arguments),
        "called_s": fault.called_s,
        "fired_s": fault.fired_s,
        "healed_s": fault.healed_s,
        "places": [
            {
                "host": host,
                "rail": rail,
                "evidence": fault.evidence.get((host, rail)),
                "evidence_at_end": fault.evidence_at_end.get((host, rail)),
            }
            for host, rail in fault.places
        ],
    }


def _sample(sample: Sample) -> dict[str, Any]:
    return {"at_s": sample.at_s, "label": sample.label, "rails": [asdict(rail) for rail in sample.rails.values()]}


def summary(fabric: Fabric, result: RunResult) -> list[str]:
    """Lines for people: the outcome, each fault, and what each permanently cut rail carried afterwards."""
    per_host = len(result.ranks) // fabric.hosts
    lines = [f"note: {note}" for note in fabric.notes]
    lines.append(
        f"{fabric.hosts} hosts x {per_host} ranks, {fabric.rails} rails, rate {fabric.rate}: "
        f"exit code {result.exit_code} after {result.elapsed_s:.2f} s{' (timed out)' if result.timed_out else ''}"
    )
    for fault in result.faults:
        if fault.fired_s is None:
            lines.append(f"NOT FIRED, the run ended before: {fault.spec.text}")
        else:
            lines.append(f"fired at {fault.fired_s:.3f} s: {fault.spec.text}{_seen(fault)}")
    for cut in cuts(result):
        if cut.permanent and cut.silent is None:
            lines.append(f"host {cut.host} rail {cut.rail}: silent after the cut: unknown, the run ended too soon")
        elif cut.permanent:
            verdict = "yes" if cut.silent else "no"
            lines.append(
                f"host {cut.host} rail {cut.rail}: {cut.nic.total_bytes} bytes ({cut.nic.payload_bytes} of payload) on "
                f"its NIC later than {SETTLE_S:g} s after {cut.kind}; silent after the cut: {verdict}"
            )
    return lines


def _seen(fault: FiredFault) -> str:
    """The evidence of a fault in a few words."""
    if fault.spec.kind == "heal":
        return ""
    place = fault.places[0]
    now, later = fault.evidence[place], fault.evidence_at_end.get(place, fault.evidence[place])
    words = [f"{what} {now[what]}" for what in ("nic", "port", "switch") if now[what] != "up"]
    if fault.spec.kind == "rate":
        words.append(f"rate {now['rate']}")
    if kind_named(fault.spec.kind).needs_nft:
        words.append(f"{later['dropped_packets']} frames dropped")
    if fault.spec.kind == "flap":
        words.append(f"{later['carrier_changes']} carrier changes")
    return f" ({', '.join(words)})" if words else ""


def table(result: RunResult) -> list[str]:
    """The counters of every (host, rail) over the run, in MB (10^6 bytes), for ``--counters``."""
    first, last = result.samples[0], result.samples[-1]
    lines = [f"host rail {'nic tx MB':>11} {'nic rx MB':>11} {'port tx MB':>11} {'port rx MB':>11} {'drops':>7}"]
    for (host, rail), end in last.rails.items():
        begin = first.rails[host, rail]
        nic, port, drops = end.nic - begin.nic, end.port - begin.port, end.dropped.packets - begin.dropped.packets
        numbers = " ".join(f"{n / 1e6:11.3f}" for n in (nic.tx_bytes, nic.rx_bytes, port.tx_bytes, port.rx_bytes))
        lines.append(f"{host:>4} {rail:>4} {numbers} {drops:>7}")
    return lines
