"""Soft RDMA rails between emulated hosts, laid inside the guest. All hosts live in one network namespace.

Rail r is a switch (bridge ``swR``) with one port for every host (``pHrR``), whose other end is the host's NIC (``hHrR``,
10.77.R.H+1) with an RDMA device (``rxHrR``). Local addresses are routed over the wire, so every packet between two hosts
crosses the switch, and downing or filtering a NIC or a port breaks what it would break on real machines.
(Older kernels' rdma_rxe works in the first network namespace only: hence one for all.)
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MTU = 4200  # room for RDMA's path MTU of 4096
_TABLE = 100  # routing table of host 0
_SETTINGS = {
    "ipv4/conf/all/accept_local": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv6/conf/default/disable_ipv6": "1",
}


def sh(command: str, stdin: str | None = None) -> str:
    """Standard output of a command without shell. ``RuntimeError`` with its standard error when it fails."""
    done = subprocess.run(command.split(), input=stdin, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{command}: exit status {done.returncode}: {done.stderr.strip()} (input: {stdin})")
    return done.stdout


@dataclass(frozen=True)
class Rails:
    """``hosts`` emulated hosts with ``rails`` NICs each. Names and addresses; ``lay`` makes them."""

    hosts: int = 3
    rails: int = 3

    def nic(self, host: int, rail: int) -> str:
        """Network interface of the host."""
        return f"h{host}r{rail}"

    def port(self, host: int, rail: int) -> str:
        """The switch's end of the host's cable."""
        return f"p{host}r{rail}"

    def device(self, host: int, rail: int) -> str:
        """RDMA device over the NIC."""
        return f"rx{host}r{rail}"

    def address(self, host: int, rail: int) -> str:
        """Of the NIC."""
        return f"10.77.{rail}.{host + 1}"

    def nics(self, host: int) -> str:
        """``Config.rails`` of a rank on the host."""
        return ",".join(self.nic(host, rail) for rail in range(self.rails))

    def lay(self) -> None:
        """Once a guest."""
        sh("modprobe -a rdma_rxe veth bridge")
        for name, value in _SETTINGS.items():
            (Path("/proc/sys/net") / name).write_text(value)
        lines = ["rule add pref 100 lookup local"]  # comes after what this host sends between rails
        for host in range(self.hosts):
            for rail in range(self.rails):
                source = self.address(host, rail)
                lines.append(f"rule add pref 10 iif lo from {source} to 10.77.0.0/16 lookup {_TABLE + host}")
        lines.append("rule del pref 0")
        for rail in range(self.rails):
            lines += [f"link add sw{rail} mtu {MTU} type bridge", f"link set sw{rail} up"]
        places = [(host, rail) for host in range(self.hosts) for rail in range(self.rails)]
        for host, rail in places:
            lines += self._nic_lines(host, rail)
        sh("ip -batch -", "\n".join(lines) + "\n")
        self._add_devices(places)

    def remove_nic(self, host: int, rail: int) -> subprocess.Popen[bytes]:
        """Pulls the NIC out of the machine: interface, cable and RDMA device are gone when this returns.

        The process that is returned ends when nobody uses the device any more: this kernel waits for that.
        """
        nic = self.nic(host, rail)
        removal = subprocess.Popen(["ip", "link", "delete", nic], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 10.0
        while Path("/sys/class/net", nic).exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"ip link delete {nic}: the interface is still there")
            time.sleep(0.001)
        return removal

    def insert_nic(self, host: int, rail: int) -> None:
        """Puts it back, after its removal has ended."""
        sh("ip -batch -", "\n".join(self._nic_lines(host, rail)) + "\n")
        self._add_devices([(host, rail)])

    def _add_devices(self, places: Iterable[tuple[int, int]]) -> None:
        for host, rail in places:
            for interface in (self.nic(host, rail), self.port(host, rail)):
                _receive_anywhere(interface)
        lines = [f"link add {self.device(*place)} type rxe netdev {self.nic(*place)}" for place in places]
        sh("rdma -b -", "\n".join(lines) + "\n")

    def _nic_lines(self, host: int, rail: int) -> list[str]:
        nic, port, own = self.nic(host, rail), self.port(host, rail), self.address(host, rail)
        return [
            f"link add {nic} address {_mac(host, rail)} mtu {MTU} type veth peer name {port} mtu {MTU}",
            f"link set {port} master sw{rail}",
            f"link set {port} up",
            f"addr add {own}/24 dev {nic}",
            f"link set {nic} up",
            *self.road_lines(host, rail),
        ]

    def road_lines(self, host: int, rail: int) -> list[str]:
        """Routes and neighbours of a NIC, which the kernel forgets when it is switched off.

        Neighbours are permanent: else a dead peer would show after the 9 s of ARP, not after RDMA's own time-out.
        """
        nic, own = self.nic(host, rail), self.address(host, rail)
        lines = []
        for other in range(self.hosts):
            if other != host:
                to = self.address(other, rail)
                lines.append(f"route replace {to} dev {nic} src {own} table {_TABLE + host}")
                lines.append(f"neigh replace {to} lladdr {_mac(other, rail)} dev {nic} nud permanent")
        return lines


def _receive_anywhere(interface: str) -> None:
    """Spreads what arrives over the processors, as a NIC with several queues does.

    Otherwise a virtual cable carries every packet to its end, check sum and copy included, inside the system call of
    the thread that sends it: one thread would do the work of both machines.
    """
    processors = (1 << (os.cpu_count() or 1)) - 1
    for queue in Path("/sys/class/net", interface, "queues").glob("rx-*"):
        (queue / "rps_cpus").write_text(f"{processors:x}")


def _mac(host: int, rail: int) -> str:
    return f"02:00:00:77:{rail:02x}:{host + 1:02x}"
