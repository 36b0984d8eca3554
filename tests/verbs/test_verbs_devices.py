"""What the guest offers, and that discovery by sysfs and by pyverbs finds the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from r2ccl._native.core import try_port
from r2ccl.topology import cli, ports_pyverbs, ports_sysfs
from r2ccl.topology.interface import SYSFS, find_interfaces
from r2ccl.topology.machine import read_machine
from r2ccl.topology.port_choice import judge_ports
from r2ccl.topology.ports import ACTIVE, ETHERNET, ROCE_V2
from tools.rdma_guest.faults import DOWN, PORT_DOWN, REMOVED, Breaker
from tools.rdma_guest.rails import Rails

DEBIAN_PACKAGES = Path("/usr/lib/python3/dist-packages")


@pytest.fixture(scope="module")
def pyverbs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Debian's pyverbs, alone, in this process: it is built for Debian's Python only."""
    folder = tmp_path_factory.mktemp("pyverbs")
    (folder / "pyverbs").symlink_to(DEBIAN_PACKAGES / "pyverbs")
    sys.path.append(str(folder))
    if not ports_pyverbs.is_available():
        pytest.skip(f"Debian's pyverbs is not for Python {sys.version_info.major}.{sys.version_info.minor}")


def test_every_rail_is_an_active_rdma_port(rails: Rails) -> None:
    devices = {device.name: device for device in ports_sysfs.read_devices(SYSFS)}
    choices = {choice.device: choice for choice in judge_ports(list(devices.values()), find_interfaces())}
    assert len(devices) == rails.hosts * rails.rails
    for host in range(rails.hosts):
        for rail in range(rails.rails):
            (port,) = devices[rails.device(host, rail)].ports
            assert (port.number, port.link_layer, port.state, port.mbps) == (1, ETHERNET, ACTIVE, 10_000)
            choice = choices[rails.device(host, rail)]
            assert choice.reason == ""
            assert choice.netdev == rails.nic(host, rail)
            assert choice.gid is not None
            assert (choice.gid.ipv4, choice.gid.type) == (rails.address(host, rail), ROCE_V2)


@pytest.mark.usefixtures("pyverbs")
def test_sysfs_and_pyverbs_tell_the_same(rails: Rails, breaker: Breaker) -> None:
    assert len(ports_pyverbs.read_devices(SYSFS)) == rails.hosts * rails.rails
    assert ports_sysfs.read_devices(SYSFS) == ports_pyverbs.read_devices(SYSFS)
    assert read_machine().devices == ports_sysfs.read_devices(SYSFS)
    breaker.strike(PORT_DOWN, 1, 2)
    breaker.strike(DOWN, 2, 0)
    breaker.strike(REMOVED, 0, 1)
    assert all(breaker.evidence(*place) for place in breaker.broken)
    by_sysfs = ports_sysfs.read_devices(SYSFS)
    assert by_sysfs == ports_pyverbs.read_devices(SYSFS)
    states = {device.name: [port.state for port in device.ports] for device in by_sysfs}
    assert states[rails.device(1, 2)] == ["DOWN"]
    assert states[rails.device(2, 0)] == ["DOWN"]
    assert rails.device(0, 1) not in states


def test_ports_are_tried_through_the_own_table_of_verbs(rails: Rails, breaker: Breaker) -> None:
    for host in range(rails.hosts):
        for rail in range(rails.rails):
            assert try_port("", rails.device(host, rail), 1, 1) == ""
    assert "rx9r9" in try_port("", "rx9r9", 1, 1)
    assert try_port("", rails.device(0, 0), 2, 1) != "", "it has one port"
    breaker.strike(PORT_DOWN, 0, 0)
    assert try_port("", rails.device(0, 0), 1, 1) == "", "a port that is down may come back"
    assert "nowhere.so" in try_port("nowhere.so", rails.device(1, 0), 1, 1)


def test_the_command_shows_the_rails(rails: Rails, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert rails.nic(2, 1) in text
    assert rails.device(2, 1) in text
    assert f"{rails.address(2, 1)} [1] RoCE v2" in text
