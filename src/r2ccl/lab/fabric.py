"""An emulated cluster on one Linux machine: hosts with several NICs, one switch per rail, rate limits, faults.

Host h is a set of namespaces of its own. Its rail r is the interface ``rail{r}`` with 10.(100+r).0.(h+1)/24, wired to
port ``h{h}r{r}`` of rail r's bridge; ``mgmt`` with 10.99.0.(h+1)/24 is unlimited and meant for bootstrap only. Rails do
not reach each other. ``tbf`` limits both directions of a rail: the NIC's egress and the switch port's egress.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from ..errors import InvalidArgument
from .faults import Drops, FaultInjector, Place
from .kinds import MGMT, parse_rate
from .namespace import Host, LinkCounters, Namespace
from .requirements import require_capabilities, tool

T = TypeVar("T")
_MAX_HOSTS, _MAX_RAILS = 250, 100  # what the addresses have room for
_IPV6_OFF = ("net.ipv6.conf.all.disable_ipv6", "net.ipv6.conf.default.disable_ipv6")


@dataclass(frozen=True)
class RailCounters:
    """Counters of one (host, rail): of the host's NIC, of the switch port it is wired to, and of filter rules."""

    host: int
    rail: int
    nic: LinkCounters
    port: LinkCounters
    dropped: Drops


class Fabric:
    """A cluster of ``hosts`` x ``rails``. A context manager; ``up`` and ``close`` do the same. Thread-safe once up.

    Args:
        hosts, rails: how many; rails per host.
        rate: limit of every rail and direction (``200mbit``), or ``none``.
        mtu: bytes of an IP packet on every link.
        congestion: TCP congestion control of the hosts; ``reno`` where the machine does not permit it.
        burst: of the limit; at least ``80kb``, or the kernel splits every 64 KiB frame, at a high price in CPU time.
        queue: bytes a limited NIC or port queues before it drops.

    Raises ``InvalidArgument``, or ``LabError`` when the machine lacks something; the message names it and the remedy.
    """

    def __init__(
        self,
        hosts: int = 2,
        rails: int = 4,
        rate: str = "200mbit",
        *,
        mtu: int = 1500,
        congestion: str = "cubic",
        burst: str = "80kb",
        queue: str = "512kb",
    ) -> None:
        for name, value, highest in (("hosts", hosts, _MAX_HOSTS), ("rails", rails, _MAX_RAILS)):
            if not 1 <= value <= highest:
                raise InvalidArgument(f"{name} = {value}: must be 1 to {highest}")
        if not 576 <= mtu <= 65535:
            raise InvalidArgument(f"mtu = {mtu}: must be 576 to 65535 bytes")
        if rate != "none":
            try:
                parse_rate(rate)
            except ValueError as error:
                raise InvalidArgument(f"rate: {error}, or none") from None
        self.hosts, self.rails, self.rate, self.mtu = hosts, rails, rate, mtu
        self.congestion, self.burst, self.queue = congestion, burst, queue
        self.notes: list[str] = []
        self.switch: Namespace
        self._hosts: list[Host] = []
        self._carried: dict[tuple[Place, str], LinkCounters] = {}  # by interfaces that are gone
        self._faults = FaultInjector(self)

    # -- names ---------------------------------------------------------------------------------

    def address(self, host: int, rail: int = MGMT) -> str:
        """IPv4 address of a host on a rail."""
        return f"10.{99 if rail == MGMT else 100 + rail}.0.{host + 1}"

    def hostname(self, host: int) -> str:
        """Name of a host; resolves to its ``mgmt`` address on every host."""
        return f"host{host}"

    def device(self, rail: int) -> str:
        """Name of a rail's interface on every host."""
        return "mgmt" if rail == MGMT else f"rail{rail}"

    def port(self, host: int, rail: int) -> str:
        """Name of the switch port that a NIC is wired to."""
        return f"h{host}{'mgmt' if rail == MGMT else f'r{rail}'}"

    def bridge(self, rail: int) -> str:
        """Name of a rail's switch."""
        return "brmgmt" if rail == MGMT else f"br{rail}"

    def places(self, rail: int | None = None) -> list[Place]:
        """Every (host, rail), or those of one rail; without ``mgmt`` unless it is asked for."""
        return [(h, r) for h in range(self.hosts) for r in (range(self.rails) if rail is None else [rail])]

    def check_place(self, host: int, rail: int) -> None:
        """Raises ``InvalidArgument`` unless the fabric has this host and rail."""
        if not 0 <= host < self.hosts or not (0 <= rail < self.rails or rail == MGMT):
            raise InvalidArgument(
                f"host = {host}, rail = {rail}: there are hosts 0 to {self.hosts - 1} and rails 0 to {self.rails - 1}"
            )

    # -- build and tear down -------------------------------------------------------------------

    def up(self) -> Fabric:
        """Builds the cluster (about 0.2 s) and returns it."""
        tool("ip"), tool("tc")
        require_capabilities()
        names = "127.0.0.1 localhost\n"
        names += "".join(f"{self.address(h)} {self.hostname(h)}\n" for h in range(self.hosts))
        try:
            with _congestion_allowed(self.congestion):
                self.switch = Namespace("switch")
                for host in range(self.hosts):
                    self._hosts.append(Host(self.hostname(host), names))
                self._build()
        except BaseException:
            self.close()
            raise
        return self

    def _build(self) -> None:
        for setting in _IPV6_OFF:
            self.switch.write_sysctl(setting, "1")
        lines = []
        for index, rail in enumerate([MGMT, *range(self.rails)]):
            bridge = self.bridge(rail)
            lines.append(
                f"link add name {bridge} mtu {self.mtu} address 02:00:00:02:00:{index:02x} "
                "type bridge stp_state 0 mcast_snooping 0"
            )
            lines.append(f"link set {bridge} up")
        self.switch_ip(*lines)
        for number, host in enumerate(self._hosts):
            host.wait_ready()
            self.notes += host.notes
            for setting in _IPV6_OFF:
                host.write_sysctl(setting, "1")
            self._set_congestion(host)
            self.hosts_ip(number, "link set lo up")
            self.plug(number, [MGMT, *range(self.rails)])

    def _set_congestion(self, host: Host) -> None:
        setting = "net.ipv4.tcp_congestion_control"
        if host.write_sysctl(setting, self.congestion):
            return
        used = "reno" if host.write_sysctl(setting, "reno") else "the machine's default"
        note = f"TCP congestion control {self.congestion!r} is not permitted here: {used} is used"
        if note not in self.notes:
            self.notes.append(note)

    def plug(self, host: int, rails: Iterable[int]) -> None:
        """Gives a host its NICs for ``rails``, wired, addressed, limited and up."""
        rails = list(rails)
        net_fd = self._hosts[host].net_fd
        wires, ends = [], []
        for rail in rails:
            device, port = self.device(rail), self.port(host, rail)
            last = f"{host:02x}:{0xFF if rail == MGMT else rail:02x}"
            wires.append(  # fixed MACs: some programs choose by them
                f"link add name {port} mtu {self.mtu} address 02:00:00:01:{last} type veth "
                f"peer name {device} mtu {self.mtu} address 02:00:00:00:{last} netns /proc/self/fd/{net_fd}"
            )
            wires.append(f"link set {port} master {self.bridge(rail)} up")
            ends += [f"addr add {self.address(host, rail)}/24 dev {device}", f"link set {device} up"]
        self.switch_ip(*wires, pass_fds=[net_fd])
        self._shape(host, [(rail, self.rate_of(rail)) for rail in rails if self.rate_of(rail) != "none"])
        self.hosts_ip(host, *ends)

    def unplug(self, host: int, rail: int) -> None:
        """Removes a NIC. What it carried stays in ``counters``."""
        links = (("nic", self._hosts[host], self.device(rail)), ("port", self.switch, self.port(host, rail)))
        for side, place, name in links:
            key = ((host, rail), side)
            self._carried[key] = self._carried.get(key, LinkCounters()) + place.counters().get(name, LinkCounters())
        self.hosts_ip(host, f"link del {self.device(rail)}")

    def close(self) -> None:
        """Ends every process of the cluster and removes it. Idempotent."""
        self._faults.close()
        while self._hosts:
            self._hosts.pop().close()
        if hasattr(self, "switch"):
            self.switch.close()
            del self.switch

    def __enter__(self) -> Fabric:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- programs on hosts ---------------------------------------------------------------------

    def popen(
        self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """``subprocess.Popen`` on a host; ``env`` is added to this process's environment.

        The process gets a session of its own (unless ``start_new_session`` says otherwise) and ends with the fabric.
        """
        options.setdefault("cwd", os.getcwd())
        options.setdefault("start_new_session", True)
        return self._hosts[host].popen(argv, env={**os.environ, **(env or {})}, **options)

    def run(
        self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, *, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on a host and returns its output as text. Raises ``subprocess.TimeoutExpired``."""
        pipe = subprocess.PIPE
        with self.popen(host, argv, env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as child:
            try:
                out, err = child.communicate(timeout=timeout_s)
            except BaseException:
                child.kill()
                raise
        return subprocess.CompletedProcess(list(argv), child.returncode, out, err)

    def call(self, host: int, function: Callable[[], T]) -> T:
        """Runs a Python function in this process but in the host's network: sockets it creates belong to the host."""
        return self._hosts[host].call(function)

    # -- faults and what shows them ------------------------------------------------------------

    def fault(self, kind: str, host: int = 0, rail: int = 0, *arguments: Any) -> None:
        """Injects a fault (see ``kinds.KINDS``; times in seconds, rates as text); it acts when this returns.

        Example: ``fault("flap", 0, 1, 0.2, 5)``: port down for 0.2 s, up for 0.2 s, five times, in the background.
        """
        if kind == "heal":
            self.heal(host, rail)
        else:
            self._faults.inject(kind, host, rail, arguments)

    def heal(self, host: int | None = None, rail: int | None = None) -> None:
        """Ends every fault of a host's rail; of every host or every rail where None (``mgmt`` only when named)."""
        for h in range(self.hosts) if host is None else [host]:
            for r in range(self.rails) if rail is None else [rail]:
                self._faults.heal(h, r)

    def counters(self, *, drops: bool = True) -> dict[Place, RailCounters]:
        """Counters of every (host, rail); they never fall. Without ``drops`` it starts no process and takes 0.1 ms."""
        ports = self.switch.counters()
        result = {}
        for number, host in enumerate(self._hosts):
            nics = host.counters()
            for rail in range(self.rails):
                place = (number, rail)
                result[place] = RailCounters(
                    *place,
                    nic=self._sum(place, "nic", nics.get(self.device(rail))),
                    port=self._sum(place, "port", ports.get(self.port(*place))),
                    dropped=self._faults.drops(place) if drops else Drops(),
                )
        return result

    def _sum(self, place: Place, side: str, now: LinkCounters | None) -> LinkCounters:
        return self._carried.get((place, side), LinkCounters()) + (now or LinkCounters())

    def evidence(self, host: int, rail: int) -> dict[str, Any]:
        """What the kernel shows of a rail now: states of NIC, port and switch, its rate limit, frames dropped."""
        return self._faults.evidence(host, rail)

    def link_state(self, host: int, rail: int) -> str:
        """``up``, ``no-carrier``, ``down`` or ``absent``: the host's NIC."""
        return self._link(self._hosts[host], self.device(rail))[0]

    def port_state(self, host: int, rail: int) -> str:
        """The same of the switch port."""
        return self._link(self.switch, self.port(host, rail))[0]

    def switch_state(self, rail: int) -> str:
        """The same of the rail's switch."""
        return self._link(self.switch, self.bridge(rail))[0]

    def carrier_changes(self, host: int, rail: int) -> int:
        """How often the host's NIC has gained or lost carrier since it was plugged in; 0 when it is absent."""
        return self._link(self._hosts[host], self.device(rail))[1]

    def _link(self, place: Namespace, device: str) -> tuple[str, int]:
        if device not in place.counters():
            return "absent", 0
        link = json.loads(place.run([tool("ip"), "-j", "-s", "-s", "link", "show", "dev", device]))[0]
        changes = link["stats64"]["tx"].get("carrier_changes", 0)
        if "UP" not in link["flags"]:
            return "down", changes
        return ("up" if "LOWER_UP" in link["flags"] else "no-carrier"), changes

    # -- tools ---------------------------------------------------------------------------------

    def switch_ip(self, *lines: str, pass_fds: Sequence[int] = ()) -> None:
        """Runs lines of ``ip`` where the switches are."""
        self.switch.run([tool("ip"), "-batch", "-"], "\n".join(lines), pass_fds)

    def hosts_ip(self, host: int, *lines: str) -> None:
        """Runs lines of ``ip`` on a host."""
        self._hosts[host].run([tool("ip"), "-batch", "-"], "\n".join(lines))

    def rate_of(self, rail: int) -> str:
        """The configured limit of a rail, without faults."""
        return "none" if rail == MGMT else self.rate

    def shape(self, host: int, rail: int, rate: str) -> None:
        """Sets the limit of a rail, both directions; ``none`` removes it."""
        if rate != "none":
            parse_rate(rate)
        self._shape(host, [(rail, rate)])

    def _shape(self, host: int, rates: list[tuple[int, str]]) -> None:
        def line(device: str, rate: str) -> str:
            if rate == "none":
                return f"qdisc del dev {device} root"
            return f"qdisc replace dev {device} root tbf rate {rate} burst {self.burst} limit {self.queue}"

        if rates:
            tc = [tool("tc"), "-batch", "-"]
            self._hosts[host].run(tc, "\n".join(line(self.device(rail), rate) for rail, rate in rates))
            self.switch.run(tc, "\n".join(line(self.port(host, rail), rate) for rail, rate in rates))

    def shaped_rate(self, host: int, rail: int) -> str:
        """The limit in force on the host's NIC as the kernel shows it; ``none`` without one or without the NIC."""
        if self.device(rail) not in self._hosts[host].counters():
            return "none"
        words = self._hosts[host].run([tool("tc"), "qdisc", "show", "dev", self.device(rail)]).split()
        return words[words.index("rate") + 1].lower() if "rate" in words else "none"


@contextlib.contextmanager
def _congestion_allowed(name: str) -> Iterator[None]:
    """Lets namespaces choose a congestion control meanwhile: they may only choose from a list that root keeps.

    The list is put back at once; a lock keeps two labs from restoring each other's change.
    """
    path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(open(path))
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = lock.read().split()
            if name not in before:
                _write(path, " ".join([*before, name]))
                stack.callback(_write, path, " ".join(before))
        except OSError:
            pass  # not root outside: the hosts take what is allowed
        yield


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
