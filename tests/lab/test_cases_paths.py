"""Field reports about what stands between the hosts: a firewall that forgets flows, a scanner of ports, skewed starts."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from fault_lab import ENVIRONMENT, PROGRAM, Outcome, rail_events, run
from test_recovery import BACK, came_back

from r2ccl.lab import Fabric, Run, available

WHY_NOT = available()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}"),
    pytest.mark.timeout(90),
]


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=2, rails=3, rate="200mbit") as built:
        yield built


def run_and_act(fabric: Fabric, line: str, act: Callable[[], None], *arguments: object, faults: tuple[str, ...] = ()):
    """As ``fault_lab.run``, with recovery, and ``act`` called when a rank has printed the line."""
    printed: dict[tuple[int, str], bytes] = defaultdict(bytes)
    acted = []

    def echo(rank: int, name: str, data: bytes) -> None:
        printed[rank, name] += data
        if not acted and line.encode() in printed[rank, "stdout"]:
            acted.append(True)
            act()

    argv = [sys.executable, PROGRAM, *map(str, arguments)]
    result = Run(fabric, argv, 1, {**ENVIRONMENT, **BACK}, timeout_s=60, faults=faults, echo=echo).run()
    ranks = [
        dataclasses.replace(r, stdout=printed[r.rank, "stdout"].decode(), stderr=printed[r.rank, "stderr"].decode())
        for r in result.ranks
    ]
    reports = [json.loads(r.stdout.splitlines()[-1]) for r in ranks]
    assert acted, "the line never came"
    return Outcome(dataclasses.replace(result, ranks=ranks), reports, 1)


# -- a firewall that forgets -------------------------------------------------------------------------------------------


def forget_flows(fabric: Fabric, networks: str) -> int:
    """From now on host 0 drops all segments of its present TCP connections there, as a firewall that lost its table.

    New connections pass. Returns how many were forgotten.
    """
    rules = []
    for line in fabric.run(0, ["ss", "-tnH"]).stdout.splitlines():
        _, _, _, mine, theirs = line.split()[:5]
        (address, port), (_, peer_port) = mine.rsplit(":", 1), theirs.rsplit(":", 1)
        if re.match(networks, address):
            rules += [f"tcp sport {port} tcp dport {peer_port} counter drop"]
            rules += [f"tcp sport {peer_port} tcp dport {port} counter drop"]
    table = "\n".join(rules)
    text = "table inet firewall {\n" + "".join(
        f"chain {hook} {{ type filter hook {hook} priority 0;\n{table}\n}}\n" for hook in ("input", "output")
    )
    fabric.run(0, ["sh", "-c", 'printf "%s" "$1" | nft -f -', "sh", text + "}\n"])
    return len(rules) // 2


def dropped(fabric: Fabric) -> int:
    listing = fabric.run(0, ["nft", "list", "table", "inet", "firewall"]).stdout
    return sum(int(n) for n in re.findall(r"counter packets (\d+)", listing))


@pytest.mark.parametrize(
    ("networks", "rails"), [(r"10\.101\.", [1]), (r"10\.10\d\.", [0, 1, 2])], ids=["one rail", "every rail"]
)
def test_case_10_a_firewall_forgets_idle_connections(fabric: Fabric, networks: str, rails: list[int]) -> None:
    """While nothing moves; the next call finds out, and the links are connected anew, which the firewall lets pass."""
    forgotten = []
    outcome = run_and_act(
        fabric,
        "iteration 3\n",
        lambda: forgotten.append(forget_flows(fabric, networks)),
        *("--pause", 0.4, "--seconds", 5, "--bytes", 1 << 20),
    )
    assert forgotten == [len(rails)]
    assert dropped(fabric) > 0
    for rail in rails:
        came_back(outcome, rail)


# -- a scanner of ports ------------------------------------------------------------------------------------------------

SCANNER = r"""
import re, socket, subprocess, sys, time
held, touched, turn = [], set(), 0
print("scanning", flush=True)
while True:
    for line in subprocess.run(["ss", "-ltnH"], capture_output=True, text=True).stdout.splitlines():
        address, port = line.split()[3].rsplit(":", 1)
        address = re.sub(r"%.*", "", address.strip("[]"))
        turn += 1
        try:
            sock = socket.create_connection((address if address != "*" else "127.0.0.1", int(port)), timeout=0.2)
            if (address, port) not in touched:
                touched.add((address, port))
                print("touched", address, port, flush=True)
            if turn % 3 == 0:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)))
            elif turn % 3 == 1:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                sock.close()
                continue
            held.append(sock)
        except OSError:
            continue
    for sock in held[:-100]:
        sock.close()
    held = held[-100:]
    time.sleep(0.01)
"""


def test_case_11_a_scanner_of_ports_while_a_rail_comes_back(fabric: Fabric) -> None:
    """It sends junk, nothing or a reset to every port that listens, all the time: also to those for links that return."""
    pipe = subprocess.PIPE
    with fabric.popen(0, [sys.executable, "-c", SCANNER], stdout=pipe, text=True) as scanner:
        try:
            outcome = run(fabric, ["on='inside 3' host=0 rail=1 blackhole for=900ms"], "--seconds", 4, env=BACK)
        finally:
            scanner.kill()
        assert scanner.stdout is not None
        touched = scanner.stdout.read()
    came_back(outcome, 1)
    assert "touched 10.101.0.1 " in touched, touched  # where rank 0 waits for the link to be connected again


# -- flapping or dead --------------------------------------------------------------------------------------------------


def test_case_09_a_flapping_port_and_a_silent_rail_are_told_apart(fabric: Fabric) -> None:
    """By the events of the host: a rail that goes down and up, or a verdict about what is silent, with rail and peer."""
    outcome = run(fabric, ["on='inside 3' host=0 rail=1 flap 100ms 4"], "--seconds", 1.5)
    (story,) = rail_events(outcome, 0, 1)
    assert story.count("RAIL_DOWN") >= 2, outcome.text
    assert story.count("RAIL_UP") >= 2, outcome.text
    assert "LINK_SUSPECT/INTERFACE" in story, outcome.text

    outcome = run(fabric, ["on='inside 3' host=0 rail=1 loss 100"], "--seconds", 3)
    for rank in range(2):
        events = [e for e in outcome.reports[rank]["events"] if e[2] == 1]
        assert not [e for e in events if e[0].startswith("RAIL")], outcome.text
        causes = [e[3] for e in events if e[0] == "LINK_SUSPECT"]
        assert len(causes) == 1, outcome.text
        assert causes[0] in ("STALL", "HEARTBEAT", "PEER", "RAIL"), outcome.text
        verdicts = [(e[1], e[-1]) for e in events if e[0] == "VERDICT"]
        assert len(verdicts) == 1, outcome.text
        assert verdicts[0][0] == 1 - rank
        assert verdicts[0][1] in ("LOCAL_RAIL", "REMOTE_RAIL", "PATH"), outcome.text


# -- starts ------------------------------------------------------------------------------------------------------------


def test_case_03_sides_that_start_seconds_apart(fabric: Fabric) -> None:
    """Rail 2 is dead when rank 0 starts, and rank 1 starts three seconds later; both use it once it is well."""
    fabric.fault("port-down", 0, 2)
    env = {**BACK, "R2CCL_INIT_TIMEOUT_S": "20"}
    outcome = run(fabric, ["on='inside 3' heal"], "--seconds", 4, "--late", 3, env=env)
    assert outcome.result.exit_code == 0, outcome.text
    for report in outcome.reports:
        assert report["wrong"] == 0, outcome.text
        assert "LINK_UP" in outcome.kinds(report["rank"], 1 - report["rank"], 2), outcome.text
        used = {rail for _, rail, state, tx, rx in report["links"] if state == "up" and tx + rx > 1 << 20}
        assert used == {"rail0", "rail1", "rail2"}, outcome.text
