"""Starts between two network namespaces joined by veth pairs: real rails, other families, traps for discovery."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

from r2ccl.bootstrap import Deadline, resolve
from r2ccl.bootstrap.mesh import connect_mesh
from r2ccl.config import Config
from r2ccl.topology import RankInfo
from r2ccl.topology.discover import describe_self

_CLONE_NEWNET = 0x40000000
FORK = multiprocessing.get_context("fork")
SECRET = {"secret": "hush", "init_timeout_s": 8.0}


def unshare_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")


def _missing() -> str:
    if not shutil.which("ip") or not shutil.which("nsenter"):
        return "needs ip and nsenter (iproute2, util-linux)"
    pid = os.fork()
    if pid == 0:
        try:
            unshare_network()
            os._exit(0)
        except OSError:
            os._exit(1)
    return "needs root, to make network namespaces" if os.waitpid(pid, 0)[1] else ""


REASON = _missing()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(60),
    pytest.mark.skipif(bool(REASON), reason=REASON or "none"),
]


class Hosts:
    """Two processes, each in a network namespace of its own, which start rank 0 and rank 1 when told to."""

    def __init__(self) -> None:
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(2):
            pipe, end = FORK.Pipe()
            process = FORK.Process(target=_host, args=(rank, end), daemon=True)
            process.start()
            end.close()
            self.pipes.append(pipe)
            self.processes.append(process)
        for pipe in self.pipes:
            assert pipe.poll(10)
            assert pipe.recv() == "ready"
        for rank in range(2):
            self.ip(rank, "link set lo up")

    def ip(self, rank: int, command: str) -> None:
        inside = ["nsenter", "-t", str(self.processes[rank].pid), "-n", "ip", *command.split()]
        subprocess.run(inside, check=True, capture_output=True, timeout=10)

    def cable(self, name: str, first: str = "", second: str = "", other: str = "") -> None:
        """A veth pair between the hosts, with addresses; ``other``: its name on the second host."""
        pids = [str(process.pid) for process in self.processes]
        make = f"ip link add {name} netns {pids[0]} type veth peer name {other or name} netns {pids[1]}"
        subprocess.run(make.split(), check=True, capture_output=True, timeout=10)
        for rank, (local, addresses) in enumerate(((name, first), (other or name, second))):
            self.ip(rank, f"link set {local} up")
            for address in addresses.split():
                self.ip(rank, f"addr add {address} dev {local}" + (" nodad" if ":" in address else ""))

    def start(self, master: str, *configs: dict[str, Any]) -> tuple[list[Any], list[list[str]]]:
        """(results or errors, warnings) of both ranks."""
        for rank, pipe in enumerate(self.pipes):
            pipe.send((master, configs[rank % len(configs)]))
        answers = []
        for pipe in self.pipes:
            assert pipe.poll(20), "a rank does not answer"
            answers.append(pipe.recv())
        return [a[0] for a in answers], [a[1] for a in answers]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(5)


def _host(rank: int, pipe: Connection) -> None:
    unshare_network()
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("r2ccl").addHandler(handler)
    pipe.send("ready")
    while True:
        master, settings = pipe.recv()
        lines.clear()
        try:
            result = _start(rank, master, Config(**settings))
        except Exception as error:
            result = error
        pipe.send((result, list(lines)))


def _start(rank: int, master: str, config: Config) -> dict[str, Any]:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=master, MASTER_PORT="29500")
    deadline = Deadline(config.init_timeout_s)
    boot = resolve(None, config, deadline)
    try:
        me = describe_self(config, rank)
        answers = boot.all_gather("init", me.to_bytes(), deadline)
        ranks = [RankInfo.from_bytes(answer, r) for r, answer in enumerate(answers)]
        assert ranks[0].host_id != ranks[1].host_id
        mesh = connect_mesh(boot, config, me, ranks, deadline)
        links = {}
        for link in mesh.links:
            with socket.socket(fileno=os.dup(link.fd)) as sock:
                device = sock.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0").decode()
                links[me.rails[link.my_rail].name] = (sock.getsockname()[0], sock.getpeername()[0], device)
        missing = [(me.rails[mine].name, reason) for _peer, mine, _theirs, reason in mesh.missing]
        result = {"links": links, "missing": missing, "oob": len(mesh.oob), "rails": [r.name for r in me.rails]}
        mesh.close()
        return result
    finally:
        boot.close()


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.close()


def test_case_12_15_17_discovery_avoids_traps_and_uses_what_is_common() -> None:
    """Containers' bridges with equal addresses, a network that is not connected, names that differ, an uneven rail."""
    with two_hosts() as hosts:
        hosts.cable("mgmt", "10.99.0.1/24", "10.99.0.2/24")
        hosts.cable("rail1", "10.1.0.1/24", "10.1.0.2/24", other="enp1")
        hosts.cable("rail2", "10.2.0.1/24", "10.2.0.2/24", other="enp2")
        hosts.cable("uneven", "10.3.0.1/24", "")
        for rank in range(2):
            hosts.ip(rank, "link add docker0 type bridge")
            hosts.ip(rank, "addr add 172.17.0.1/16 dev docker0")
            hosts.ip(rank, "link set docker0 up")
            hosts.ip(rank, "link add dead0 type veth peer name deadend")
            hosts.ip(rank, f"addr add 10.9.0.{rank + 1}/24 dev dead0")
            for end in ("dead0", "deadend"):
                hosts.ip(rank, f"link set {end} up")
        start_s = time.monotonic()
        found, logs = hosts.start("10.99.0.1", {**SECRET, "init_timeout_s": 4.0})
        assert time.monotonic() - start_s < 7
        assert found[0]["links"] == {
            "mgmt": ("10.99.0.1", "10.99.0.2", "mgmt"),
            "rail1": ("10.1.0.1", "10.1.0.2", "rail1"),
            "rail2": ("10.2.0.1", "10.2.0.2", "rail2"),
        }, found
        assert found[1]["links"]["enp2"] == ("10.2.0.2", "10.2.0.1", "enp2")
        assert found[0]["rails"] == ["dead0", "mgmt", "rail1", "rail2", "uneven"]
        for rank in range(2):
            assert [name for name, _reason in found[rank]["missing"]] == ["dead0"]
            assert any("degraded start: no link from dead0" in line for line in logs[rank])
        assert any("rail uneven (10.3.0.1/24) has no partner on 1 of 1" in line for line in logs[0]), logs


def test_case_18_ipv6_only_then_link_local_only() -> None:
    with two_hosts() as hosts:
        hosts.cable("rail1", "fd01::1/64", "fd01::2/64")
        hosts.cable("rail2", "fd02::1/64", "fd02::2/64")
        hosts.cable("local", "fe80::a/64", "fe80::b/64")
        found, _logs = hosts.start("fd01::1", SECRET)
        assert found[0]["links"] == {
            "rail1": ("fd01::1", "fd01::2", "rail1"),
            "rail2": ("fd02::1", "fd02::2", "rail2"),
        }, found
        assert found[0]["missing"] == []
        found, _logs = hosts.start("fe80::a%local", {**SECRET, "rails": "fe80::a%local"}, {**SECRET, "rails": "local"})
        assert [len(result["links"]) for result in found] == [1, 1], found
        assert found[0]["links"]["local"][0].startswith("fe80::a"), found


def test_case_18_one_family_on_each_side_is_a_clear_error() -> None:
    with two_hosts() as hosts:
        hosts.cable("mgmt", "10.99.0.1/24", "10.99.0.2/24")
        hosts.cable("rail1", "10.1.0.1/24", "fd01::2/64")
        found, _logs = hosts.start("10.99.0.1", {**SECRET, "rails": "rail*"})
        for error in found:
            assert type(error).__name__ == "NoRails", error
            for word in (
                "share no rail",
                "rail1 10.1.0.1/24",
                "rail1 fd01::2/64",
                "mgmt: not chosen by rails",
                "R2CCL_RAILS",
            ):
                assert word in str(error)


def test_case_16_a_rail_that_is_down_before_the_start() -> None:
    with two_hosts() as hosts:
        hosts.cable("rail1", "10.1.0.1/24", "10.1.0.2/24")
        hosts.cable("rail2", "10.2.0.1/24", "10.2.0.2/24")
        hosts.ip(1, "link set rail2 down")
        start_s = time.monotonic()
        found, logs = hosts.start("10.1.0.1", {**SECRET, "rails": "rail*"})
        assert time.monotonic() - start_s < 3, "what is known to be down is not waited for"
        for rank in range(2):
            assert list(found[rank]["links"]) == ["rail1"], found
            ((name, reason),) = found[rank]["missing"]
            assert name == "rail2"
            assert "rail2 is down on" in reason
            assert any("degraded start" in line for line in logs[rank])
        hosts.ip(1, "link set rail2 up")
        found, _logs = hosts.start("10.1.0.1", {**SECRET, "rails": "rail*"})
        assert sorted(found[0]["links"]) == ["rail1", "rail2"], found


def test_two_machines_without_a_secret_are_told_to_set_one() -> None:
    with two_hosts() as hosts:
        hosts.cable("mgmt", "10.99.0.1/24", "10.99.0.2/24")
        found, _logs = hosts.start("10.99.0.1", {"init_timeout_s": 1.0})
        assert "10.99.0.1 is another machine, and there is no secret" in str(found[1])
        for error in found:
            assert "set R2CCL_SECRET" in str(error)
