"""Other libraries under the same faults, each alone on a fabric of its own: do they go on, stop, or die?

Their environments and recipes are those of ``compare.py``. One that cannot be installed or started is left out, with a
message.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare_agent import serve
from compare_peers import OPENMPI, Peer, Place, peers_of, start_openmpi
from compare_scenarios import Scenario
from compare_session import Member, PeerFailed, Session
from faults_cuts import LEAD_S
from faults_kinds import FAULTS, Fault, Lab
from faults_mptcp import NotHere, announce_rails, preload_library, run_stream
from faults_report import Row, row_of
from faults_traffic import FRAMING, Traffic, received, watched

from r2ccl.lab import Fabric, LabError

PEERS = ("gloo-split4", "openmpi", "openmpi-ucx")
STREAM_FAULTS = ("down", "blackhole", "rate-25")
HEALTHY_S, HOLD_S, RESUME_S = 1.5, {"rate-25": 2.5, "blackhole": 4.0}, 4.0
WORKER = Path(__file__).resolve().parent / "faults_peer_worker.py"


@dataclass
class Progress:
    """Ends of the calls of rank 0, and what went wrong at any rank."""

    ends: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def follow(self, member: Member) -> None:
        """Notes what the ranks tell, in the background."""

        def read(rank: int) -> None:
            with contextlib.suppress(OSError, ValueError):
                for line in member.readers[rank]:
                    told: dict[str, Any] = json.loads(line)
                    if "error" in told:
                        self.errors.append(f"rank {rank}: {told['error'].splitlines()[0]}")
                    elif rank == 0:
                        self.ends.append(told["end"])

        for rank in member.readers:
            threading.Thread(target=read, args=(rank,), daemon=True).start()


def run_peers(lab: Lab, cuts: int) -> list[Row]:
    """Rows of every library that runs here, and of a bulk MPTCP stream (``cuts`` cuts of each of its faults)."""
    print(f"\nothers: {lab.hosts} hosts x 1 rank x {lab.rails} rails of {lab.rail_mbit} Mbit/s", flush=True)
    rows: list[Row] = []
    try:
        for name in STREAM_FAULTS:
            rows.append(run_stream(lab, FAULTS[name], cuts))
            _print(rows[-1])
    except (NotHere, LabError, OSError) as error:
        print(f"  without an MPTCP stream: {error}", flush=True)
    for name in (*PEERS, "openmpi-mptcp"):
        try:
            for row in _run_peer(lab, name):
                rows.append(row)
                _print(row)
        except (PeerFailed, NotHere, LabError, OSError, subprocess.CalledProcessError) as error:
            print(f"  without {name}: {error}", flush=True)
    return rows


def _print(row: Row) -> None:
    gap, bandwidth = row["gap_ms"], row["bw_after"]
    bandwidth = "-" if bandwidth is None else f"{bandwidth:.3f}"
    words = f"gap {gap:7.0f} ms   bw/ideal {bandwidth:>6}   healthy {row['healthy_share']:.0%} of the line"
    print(f"{row['peer']:<15}{row['fault']:<11}{words}   {row['outcome']}", flush=True)


def _recipe(name: str, scenario: Scenario, folder: Path) -> Peer:
    if name != "openmpi-mptcp":
        return peers_of(scenario)[name]
    # One address: the kernel spreads its connections over the other rails.
    only_one = ("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "rail0")
    env: Mapping[str, str] = {"LD_PRELOAD": preload_library(folder)}
    return Peer(name, start_openmpi, "mpi", OPENMPI, env=env, arguments=only_one)


def _run_peer(lab: Lab, name: str) -> list[Row]:
    """One library through a slow rail, then a black hole. Raises ``PeerFailed`` when it does not start."""
    scenario = Scenario("faults", "", lab.hosts, (), lab.hosts, lab.rails, lab.rail_mbit)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="r2ccl-faults-")))
        fabric = stack.enter_context(Fabric(lab.hosts, lab.rails, f"{lab.rail_mbit}mbit"))
        listener = serve(folder / "agent", lambda host, command: fabric.popen(host, ["sh", "-c", command]))
        stack.enter_context(contextlib.closing(listener))
        session = stack.enter_context(Session(folder, lab.hosts, 30.0))
        peer = _recipe(name, scenario, folder)
        if name == "openmpi-mptcp":
            announce_rails(fabric)
        log = folder / f"{name}.log"
        session.join(name, peer.start(peer, Place(scenario, folder, session.path, fabric, WORKER), log), log)
        progress = Progress()
        member = session.members[name]
        for reader in member.readers.values():
            reader.write(json.dumps({"bytes": lab.call_bytes}) + "\n")
            reader.flush()
        progress.follow(member)
        traffic = stack.enter_context(watched(lambda: received(fabric)))
        deadline = time.monotonic() + 20.0
        while len(progress.ends) < 4:
            if time.monotonic() > deadline:
                raise PeerFailed(f"{name}: no call ended in 20 s: {progress.errors}\n{member.tail()}")
            time.sleep(0.05)
        return [_cut(lab, fabric, name, FAULTS[f], progress, traffic) for f in HOLD_S]


def _cut(lab: Lab, fabric: Fabric, name: str, fault: Fault, progress: Progress, traffic: Traffic) -> Row:
    start_ns = time.time_ns()
    time.sleep(HEALTHY_S)
    rail = lab.rails - 1
    begin_ns = fabric.fault(fault.kind, 0, rail, *fault.on(lab.rail_mbit), lead_s=LEAD_S)
    time.sleep(HOLD_S[fault.name])
    end_ns = time.time_ns()
    fabric.heal(0, rail)
    healthy = traffic.rate(start_ns, begin_ns)
    gap_ms = traffic.gap_ms(begin_ns, end_ns, healthy)
    share = (lab.rails - 1 + (fault.carries or 0.0)) / lab.rails
    after = traffic.rate(end_ns - int(HOLD_S[fault.name] * 2 / 3 * 1e9), end_ns)
    outcome, resumed_s = "goes on", None
    if progress.errors:
        outcome = f"dies: {progress.errors[0]}"
    elif not any(end > begin_ns + (end_ns - begin_ns) // 2 for end in progress.ends):
        deadline = time.monotonic() + RESUME_S
        while time.monotonic() < deadline and not progress.errors and not any(e > end_ns for e in progress.ends):
            time.sleep(0.02)
        resumed = [e for e in progress.ends if e > end_ns]
        resumed_s = round((resumed[0] - end_ns) * 1e-9, 2) if resumed else None
        outcome = (
            f"stops; goes on {resumed_s} s after the rail is back" if resumed else f"stops, {RESUME_S:g} s later too"
        )
        outcome = f"dies: {progress.errors[0]}" if progress.errors else outcome
    line = healthy / (lab.hosts * lab.rails * lab.rail_mbit * 1e6 / 8 * FRAMING)
    fields = {"peer": name, "gap_ms": round(gap_ms, 1), "outcome": outcome, "resumed_s": resumed_s}
    fields["healthy_share"] = round(line, 3)
    return row_of(lab, fault.name, 0, 1, bw_after=round(after / healthy / share, 3) if healthy else None, **fields)
