"""The kernel's Multipath TCP under the same faults: one bulk stream over all rails, and libraries made to use it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from faults_cuts import LEAD_S
from faults_kinds import Fault, Lab
from faults_report import Row, middle, row_of
from faults_traffic import FRAMING, flowing, stream, watched

from r2ccl.lab import Fabric

HERE = Path(__file__).resolve().parent
IPPROTO_MPTCP = 262
WARM_S, HOLD_S = 1.0, 1.5


class NotHere(RuntimeError):
    """The machine lacks something; the message says what."""


def announce_rails(fabric: Fabric) -> None:
    """Lets connections over the first rail use the others. Raises ``NotHere``."""
    for host in range(fabric.hosts):
        limits = ["limits", "set", "subflow", "8", "add_addr_accepted", "8"]
        others = range(1, fabric.rails)
        ends = [["endpoint", "add", fabric.address(host, rail), "dev", f"rail{rail}", "signal"] for rail in others]
        for order in (limits, *ends):
            done = fabric.run(host, ["ip", "mptcp", *order])
            if done.returncode != 0:
                raise NotHere(f"ip mptcp {' '.join(order)}: {done.stderr.strip()}: it needs iproute2 and Linux 5.10")


def preload_library(folder: Path) -> str:
    """Compiles the library that makes programs use Multipath TCP. Raises ``NotHere``."""
    library = folder / "mptcp_preload.so"
    argv = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(HERE / "mptcp_preload.c"), "-ldl"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
    except FileNotFoundError:
        raise NotHere("no C compiler (cc)") from None
    if done.returncode != 0:
        raise NotHere(f"cc: {done.stderr.strip()}")
    return str(library)


def run_stream(lab: Lab, fault: Fault, cuts: int) -> Row:
    """Medians of ``cuts`` streams, each with one rail broken, as their reader sees it."""
    gaps: list[float | None] = []
    bandwidths: list[float | None] = []
    share = (lab.rails - 1 + (fault.carries or 0.0)) / lab.rails
    with Fabric(lab.hosts, lab.rails, f"{lab.rail_mbit}mbit") as fabric:
        announce_rails(fabric)
        for cut in range(cuts):
            rail = cut % lab.rails
            with (
                flowing(*stream(fabric, 0, 1, 0, IPPROTO_MPTCP)) as arrived,
                watched(lambda a=arrived: a[0]) as traffic,
            ):
                time.sleep(WARM_S)
                begin_ns = fabric.fault(fault.kind, 0, rail, *fault.on(lab.rail_mbit), lead_s=LEAD_S)
                time.sleep(HOLD_S)
                end_ns = time.time_ns()
                fabric.heal(0, rail)
            healthy = traffic.rate(begin_ns - int(WARM_S / 2 * 1e9), begin_ns)
            gaps.append(traffic.gap_ms(begin_ns, end_ns, healthy))
            late = traffic.rate(end_ns - int(HOLD_S * 2 / 3 * 1e9), end_ns)
            bandwidths.append(late / healthy / share if healthy else None)
            time.sleep(0.2)
    line = healthy / (lab.rails * lab.rail_mbit * 1e6 / 8 * FRAMING)
    fields = {"peer": "mptcp-stream", "gap_ms": middle(gaps), "bw_after": middle(bandwidths, 3), "outcome": "goes on"}
    return row_of(lab, fault.name, 0, cuts, **fields, healthy_share=round(line, 3))
