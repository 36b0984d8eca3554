"""An emulated cluster on one Linux machine: hosts with several NICs, one switch per rail, rate limits, faults.

Host h is a set of namespaces of its own with the interfaces ``rail0``, ``rail1``, … and ``mgmt``, which is unlimited
and meant for bootstrap only. Rails do not reach each other. Names and addresses: see ``wiring``; faults: ``kinds``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from ..errors import InvalidArgument
from . import congestion as tcp
from . import wiring
from .faults import Drops, FaultInjector
from .kinds import MGMT, parse_rate
from .namespace import Host, LinkCounters, Namespace
from .requirements import LabError, require_capabilities, tool
from .wiring import Limits, Place, Wiring

T = TypeVar("T")
_MAX_HOSTS, _MAX_RAILS = 250, 100  # what the addresses have room for


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
    ``notes`` then says what the machine does not permit but the fabric does without.
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
        self.hosts, self.rails, self.rate, self.mtu, self.congestion = hosts, rails, rate, mtu, congestion
        self.notes: list[str] = []
        self._limits = Limits(rate, mtu, burst, queue)
        self._up: tuple[Wiring, FaultInjector] | None = None

    def up(self) -> Fabric:
        """Builds the cluster (about 0.1 s) and returns it."""
        for name in ("ip", "tc"):
            tool(name)
        require_capabilities()
        wires = Wiring(self.rails, self._limits, Namespace("switch"))
        self._up = wires, FaultInjector(wires)
        names = "".join(f"{wiring.address(h, MGMT)} {wiring.hostname(h)}\n" for h in range(self.hosts))
        try:
            for host in range(self.hosts):
                wires.hosts.append(Host(wiring.hostname(host), f"127.0.0.1 localhost\n{names}"))
            wires.build_switches()
            for host in range(self.hosts):
                self._finish_host(wires, host)
            with tcp.allowed(self.congestion):
                refusals = [tcp.choose(host, self.congestion) for host in wires.hosts]
            self.notes += sorted({note for note in refusals if note is not None})
        except BaseException:
            self.close()
            raise
        return self

    def _finish_host(self, wires: Wiring, number: int) -> None:
        host = wires.hosts[number]
        host.wait_ready()
        wires.without_ipv6(host)
        wires.host_ip(number, "link set lo up")
        wires.plug(number, [MGMT, *range(self.rails)])
        self.notes += host.notes

    def close(self) -> None:
        """Ends every process of the cluster and removes it. Idempotent."""
        if self._up is not None:
            wires, injector = self._up
            self._up = None
            injector.close()
            for host in wires.hosts:
                host.close()
            wires.switch.close()

    def __enter__(self) -> Fabric:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _wires(self) -> Wiring:
        return self._parts()[0]

    @property
    def _injector(self) -> FaultInjector:
        return self._parts()[1]

    def _parts(self) -> tuple[Wiring, FaultInjector]:
        if self._up is None:
            raise LabError("the fabric is not up: use it as a context manager, or call up() first")
        return self._up

    # -- programs on hosts ---------------------------------------------------------------------

    def address(self, host: int, rail: int = MGMT) -> str:
        """IPv4 address of a host on a rail."""
        return wiring.address(host, rail)

    def popen(
        self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """``subprocess.Popen`` on a host; ``env`` is added to this process's environment.

        The process gets a session of its own (unless ``start_new_session`` says otherwise) and ends with the fabric.
        """
        self._check(host, 0)
        options.setdefault("cwd", os.getcwd())
        options.setdefault("start_new_session", True)
        return self._wires.hosts[host].popen(argv, env={**os.environ, **(env or {})}, **options)

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
        """Runs a Python function in this process but in the host's network: sockets it creates belong to the host.

        Calls on one host take turns; a function that waits for another on the same host waits for ever.
        """
        self._check(host, 0)
        return self._wires.hosts[host].call(function)

    # -- faults and what shows them ------------------------------------------------------------

    def fault(self, kind: str, host: int = 0, rail: int = 0, *arguments: Any, lead_s: float = 0.0) -> int:
        """Injects a fault (see ``kinds.KINDS``; numbers are seconds or percent); it acts when this returns.

        Returns when its orders were handed to the tool that carries them out (``time.time_ns``; 0 for ``heal``), for
        who wants to time what follows. The tool then has had ``lead_s`` for its own start; 0.02 is plenty.

        Example: ``fault("flap", 0, 1, 0.2, 5)``: port down for 0.2 s, up for 0.2 s, five times, in the background.
        """
        self._check(host, rail)
        if kind == "heal":
            self.heal(host, rail)
            return 0
        return self._injector.inject(kind, host, rail, arguments, lead_s)

    def heal(self, host: int | None = None, rail: int | None = None) -> None:
        """Ends every fault of a host's rail; of every host or every rail where None (``mgmt`` only when named)."""
        self._check(host or 0, rail or 0)
        for h in range(self.hosts) if host is None else [host]:
            for r in range(self.rails) if rail is None else [rail]:
                self._injector.heal(h, r)

    def counters(self, *, drops: bool = True) -> dict[Place, RailCounters]:
        """Counters of every (host, rail); they never fall. Without ``drops`` it starts no process and takes 0.4 ms."""
        return {
            place: RailCounters(*place, sides["nic"], sides["port"], self._injector.drops(place) if drops else Drops())
            for place, sides in self._wires.counters().items()
        }

    def evidence(self, host: int, rail: int) -> dict[str, Any]:
        """What the kernel shows of a rail now.

        ``nic``, ``port``, ``switch``: ``up``, ``no-carrier``, ``down`` or ``absent``; ``carrier_changes`` of the NIC;
        ``rate`` in force; ``address`` and ``route``: whether the host has them; ``dropped_packets`` and
        ``dropped_bytes`` by filter rules.
        """
        self._check(host, rail)
        return self._injector.evidence((host, rail))

    def _check(self, host: int, rail: int) -> None:
        if not 0 <= host < self.hosts or not (0 <= rail < self.rails or rail == MGMT):
            raise InvalidArgument(
                f"host = {host}, rail = {rail}: there are hosts 0 to {self.hosts - 1} and rails 0 to {self.rails - 1}"
            )
