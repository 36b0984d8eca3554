"""The emulated cluster: rails, limits, every kind of fault proved by counters, and that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_traffic import bulk, connects, echo, sent_bytes

from r2ccl.errors import InvalidArgument
from r2ccl.lab import Fabric, LabError, available, requirements
from r2ccl.lab.kinds import MGMT, rate_bits_per_s

WHY_NOT = available()
pytestmark = [pytest.mark.lab, pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}")]
RAILS = 3
RATES = ("80mbit", "20mbit")


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with Fabric(hosts=2, rails=RAILS, rate=RATES[0]) as built:
        yield built


@pytest.mark.parametrize("rail", [*range(RAILS), MGMT])
def test_every_rail_carries_traffic_and_only_its_own(fabric: Fabric, rail: int) -> None:
    before = fabric.counters()
    assert echo(fabric, 0, 1, rail) == (True, True)
    assert connects(fabric, 1, 0, rail) is True
    after = fabric.counters()
    used = {r for (h, r), now in after.items() if now.nic != before[h, r].nic}
    assert used == ({rail} if rail != MGMT else set())


def test_hosts_are_hosts_of_their_own(fabric: Fabric) -> None:
    script = "hostname; cat /proc/sys/kernel/random/boot_id; ls /sys/class/net; ls /dev/shm; touch /dev/shm/mine"
    outputs = [fabric.run(host, ["sh", "-c", script]).stdout.split() for host in (0, 1)]
    assert [words[0] for words in outputs] == ["host0", "host1"]
    assert outputs[0][1] != outputs[1][1]
    assert all(words[2:] == ["lo", "mgmt", "rail0", "rail1", "rail2"] for words in outputs)
    assert not Path("/dev/shm/mine").exists()
    assert fabric.run(0, ["getent", "hosts", "host1"]).stdout.split()[0] == fabric.address(1)


def test_rate_is_respected_and_follows_a_change(fabric: Fabric) -> None:
    fabric.fault("rate", 0, 1, RATES[1])
    try:
        assert fabric.evidence(0, 1)["rate"] == RATES[1]
        with bulk(fabric, 0, 1, [0, 1]):
            time.sleep(0.3)  # bursts and queues fill
            begin = time.perf_counter()
            fast, slow = sent_bytes(fabric, 0, [0, 1], 0.8)
            elapsed_s = time.perf_counter() - begin
    finally:
        fabric.heal(0, 1)
    for sent, rate in ((fast, RATES[0]), (slow, RATES[1])):
        assert sent * 8 < 1.15 * rate_bits_per_s(rate) * elapsed_s  # a busy machine can only send less
    configured = rate_bits_per_s(RATES[0]) / rate_bits_per_s(RATES[1])
    assert configured / 1.15 < fast / slow < configured * 1.15
    assert fabric.evidence(0, 1)["rate"] == RATES[0]


FAULTS = {  # kind: (arguments, what the kernel then shows, does the first datagram 0 -> 1 arrive, does the one back)
    "down": ((), {"nic": "down", "port": "no-carrier"}, (False, False)),
    "port-down": ((), {"nic": "no-carrier", "port": "down"}, (False, False)),
    "removed": ((), {"nic": "absent", "port": "absent"}, (False, False)),
    "address": ((), {"nic": "up", "port": "up", "address": False, "route": False}, (False, False)),
    "route": ((), {"nic": "up", "port": "up", "address": True, "route": False}, (False, True)),
    "blackhole": ((), {"nic": "up", "port": "up"}, (False, False)),
    "rx-drop": ((), {"nic": "up", "port": "up"}, (True, False)),
    "tx-drop": ((), {"nic": "up", "port": "up"}, (False, True)),
    "loss": ((100,), {"nic": "up", "port": "up"}, (False, False)),
    "switch": ((), {"nic": "up", "port": "up", "switch": "down"}, (False, False)),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_cut_cuts_and_heals(fabric: Fabric, kind: str) -> None:
    arguments, shown, arrives = FAULTS[kind]
    assert echo(fabric, 0, 1, 2, timeout_s=2.0) == (True, True)  # both know the other's MAC from here on
    fabric.fault(kind, 0, 2, *arguments)
    before = fabric.counters()
    assert echo(fabric, 0, 1, 2) == arrives
    after = fabric.counters()
    assert {what: fabric.evidence(0, 2)[what] for what in shown} == shown
    received = [after[h, 2].nic.rx_packets - before[h, 2].nic.rx_packets for h in (0, 1)]
    sent = after[0, 2].nic.tx_packets - before[0, 2].nic.tx_packets
    dropped = after[0, 2].dropped.packets - before[0, 2].dropped.packets
    assert (received[1] > 0, received[0] > 0) == arrives
    if kind in ("down", "port-down", "removed", "address", "route"):
        assert sent == dropped == 0
    elif kind == "switch":
        assert sent > 0
        assert dropped == 0
    else:
        assert sent > 0
        assert dropped == arrives.count(False)
    fabric.heal(0, 2)
    assert echo(fabric, 0, 1, 2, timeout_s=2.0) == (True, True)
    assert fabric.counters()[0, 2].nic.tx_packets > before[0, 2].nic.tx_packets  # no counter falls, even of a new NIC
    assert fabric.counters()[0, 2].dropped == after[0, 2].dropped


def test_a_fault_tells_when_it_began(fabric: Fabric) -> None:
    for kind in ("down", "blackhole", "rate"):
        called_ns = time.time_ns()
        begun_ns = fabric.fault(kind, 0, 2, *(["20mbit"] if kind == "rate" else []), lead_s=0.02)
        assert called_ns + 20e6 <= begun_ns <= time.time_ns()
        fabric.heal(0, 2)
    assert fabric.fault("heal", 0, 2) == 0


def test_partial_loss_drops_some_and_lets_some_through(fabric: Fabric) -> None:
    before = fabric.counters()[0, 1].dropped
    fabric.fault("loss", 0, 1, 50)
    arrived = [echo(fabric, 0, 1, 1, timeout_s=0.02)[0] for _ in range(20)]
    fabric.heal(0, 1)
    assert 0 < sum(arrived) < 20  # all or none: twice in a million runs
    assert fabric.counters()[0, 1].dropped.packets - before.packets >= arrived.count(False)


def test_reset_answers_tcp_and_leaves_the_rest_alone(fabric: Fabric) -> None:
    before = fabric.counters()[0, 1].dropped
    fabric.fault("reset", 0, 1)
    assert connects(fabric, 0, 1, 1) == "ConnectionRefusedError"
    assert echo(fabric, 0, 1, 1) == (True, True)
    fabric.heal(0, 1)
    assert fabric.counters()[0, 1].dropped.packets > before.packets
    assert connects(fabric, 0, 1, 1, timeout_s=2.0) is True


def test_flap_changes_carrier_as_often_as_asked_and_stops_when_healed(fabric: Fabric) -> None:
    before = fabric.evidence(0, 1)["carrier_changes"]
    fabric.fault("flap", 0, 1, "20ms", 3)
    deadline = time.monotonic() + 5
    while fabric.evidence(0, 1)["carrier_changes"] < before + 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fabric.evidence(0, 1)["carrier_changes"] == before + 6
    fabric.fault("flap", 0, 1, 30, 3)
    assert fabric.evidence(0, 1)["nic"] == "no-carrier"
    fabric.heal(0, 1)
    assert fabric.evidence(0, 1)["nic"] == "up"
    assert echo(fabric, 0, 1, 1, timeout_s=2.0) == (True, True)


def test_bad_places_and_arguments_are_refused(fabric: Fabric) -> None:
    with pytest.raises(InvalidArgument, match="host = 2"):
        fabric.fault("down", 2, 0)
    with pytest.raises(InvalidArgument, match="'101' is no percentage"):
        fabric.fault("loss", 0, 0, 101)
    with pytest.raises(InvalidArgument, match="it is written: rate RATE"):
        fabric.fault("rate", 0, 0)
    with pytest.raises(InvalidArgument, match="rails = 0"):
        Fabric(rails=0)
    with pytest.raises(LabError, match="not up"):
        Fabric().counters()


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.shutil, "which", lambda *_, **__: None)
    with pytest.raises(LabError, match="apt install iproute2"):
        Fabric().up()
    with pytest.raises(LabError, match="apt install nftables"):
        requirements.tool("nft")


# -- nothing is left --------------------------------------------------------------------------


VICTIM = """
import subprocess, sys, time
from r2ccl.lab import Fabric
with Fabric(hosts=2, rails=2) as fabric:
    fabric.fault("flap", 0, 1, 0.05, 1000)
    # A rank that leaves a daemon behind, outside its session.
    fabric.popen(0, ["sh", "-c", "setsid sleep 4321 & exec sleep 4322"])
    fabric.popen(1, ["sleep", "4323"])
    links = fabric.run(0, ["readlink", "/proc/self/ns/net", "/proc/self/ns/mnt", "/proc/self/ns/pid"]).stdout
    print(links.replace("\\n", " "), flush=True)
    time.sleep(60)
"""


def _machine() -> dict[str, object]:
    """What a lab could leave on this machine: interfaces, mounts, names of namespaces."""
    names = Path("/run/netns")
    return {
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "named": sorted(os.listdir(names)) if names.exists() else [],
        "congestion": Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text(),
    }


def _processes_in(namespaces: set[str]) -> list[str]:
    """Command lines of the living processes and threads in any of the namespaces, or of the victim's children."""
    found = []
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        try:
            inside = {os.readlink(task / "ns" / kind) for kind in ("net", "mnt", "pid")} & namespaces
            command = (task / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if inside or any(f"sleep 432{n}" in command and "setsid" not in command for n in (1, 2, 3)):
            found.append(command)
    return found


def test_nothing_is_left_when_the_lab_is_killed() -> None:
    before = _machine()
    with subprocess.Popen([sys.executable, "-c", VICTIM], stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        namespaces = set(victim.stdout.readline().split())
        assert len(namespaces) == 3
        assert len(_processes_in(namespaces)) >= 4  # the first process of host 0, three sleeps
        victim.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while _processes_in(namespaces) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _processes_in(namespaces) == []
    assert _machine() == before


def test_nothing_is_left_after_close() -> None:
    before, threads = _machine(), len(os.listdir("/proc/self/task"))
    descriptors = len(os.listdir("/proc/self/fd"))
    with Fabric(hosts=2, rails=1, rate="none") as built:
        child = built.popen(0, ["sleep", "60"])
        built.fault("flap", 0, 0, 0.01, 1000)
    assert child.returncode == -signal.SIGKILL
    assert _machine() == before
    deadline = time.monotonic() + 2  # a joined thread is the kernel's for a moment longer
    while len(os.listdir("/proc/self/task")) > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/task")) == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_runs_for_a_user_who_is_not_root() -> None:
    """Through a user namespace; with the system's Python, since a root's virtual environment is often unreadable."""
    python = shutil.which("python3", path="/usr/bin")
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or python is None or setpriv is None:
        pytest.skip("needs root (to become somebody else), /usr/bin/python3 and setpriv (Debian: python3, util-linux)")
    source = Path(requirements.__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "r2ccl")
        shutil.copytree(source / "lab", package / "lab", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(source / "errors.py", package)
        (package / "__init__.py").touch()
        for path in [Path(folder), *Path(folder).rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        nobody = [setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        fault = "t=0s host=0 rail=0 blackhole"
        done = subprocess.run(
            [
                *nobody,
                python,
                "-m",
                "r2ccl.lab.cli",
                "run",
                "--rails",
                "1",
                "--fault",
                fault,
                "--",
                "sh",
                "-c",
                "exit 7",
            ],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=30,
        )
    if "does not let this user create user namespaces" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 7, done.stderr
