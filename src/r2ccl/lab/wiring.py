"""NICs, switch ports and switches of an emulated cluster: names, cables, limits, link states and counters.

Rail r of host h is the interface ``rail{r}`` with 10.(100+r).0.(h+1)/24, wired to port ``h{h}r{r}`` of bridge
``br{r}``; ``mgmt`` (rail ``MGMT``) has 10.99.0.(h+1)/24. All bridges live in one namespace. ``tbf`` limits a rail in
both directions: the NIC's egress and the port's egress.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .kinds import MGMT
from .namespace import Host, LinkCounters, Namespace
from .requirements import tool

Place = tuple[int, int]  # (host, rail)
_IPV6_OFF = ("net.ipv6.conf.all.disable_ipv6", "net.ipv6.conf.default.disable_ipv6")


def address(host: int, rail: int) -> str:
    """IPv4 address of a host on a rail."""
    return f"10.{99 if rail == MGMT else 100 + rail}.0.{host + 1}"


def network(rail: int) -> str:
    """The network of a rail, which every host's interface is on."""
    return f"{address(-1, rail)}/24"


def hostname(host: int) -> str:
    """Name of a host; resolves to its ``mgmt`` address on every host."""
    return f"host{host}"


def device(rail: int) -> str:
    """Name of a rail's interface on every host."""
    return "mgmt" if rail == MGMT else f"rail{rail}"


def port(host: int, rail: int) -> str:
    """Name of the switch port that a NIC is wired to."""
    return f"h{host}{'mgmt' if rail == MGMT else f'r{rail}'}"


def bridge(rail: int) -> str:
    """Name of a rail's switch."""
    return "brmgmt" if rail == MGMT else f"br{rail}"


@dataclass(frozen=True)
class Limits:
    """What every rail is made with; see ``Fabric``."""

    rate: str
    mtu: int
    burst: str
    queue: str

    def of(self, rail: int) -> str:
        """The configured rate of a rail."""
        return "none" if rail == MGMT else self.rate


@dataclass
class Wiring:
    """The cables between ``hosts`` and the switches in ``switch``.

    ``lead_s``: how long a tool has for its own start before it gets its orders. ``handed_ns``: when one first got them
    (wall clock), since somebody set it to 0.
    """

    rails: int
    limits: Limits
    switch: Namespace
    hosts: list[Host] = field(default_factory=list)
    lead_s: float = 0.0
    handed_ns: int = 0
    _carried: dict[tuple[Place, str], LinkCounters] = field(default_factory=dict)  # by interfaces that are gone

    def places(self, rail: int) -> list[Place]:
        """Every (host, rail) of a rail."""
        return [(host, rail) for host in range(len(self.hosts))]

    # -- building ------------------------------------------------------------------------------

    def build_switches(self) -> None:
        """One bridge per rail and one for ``mgmt``."""
        self.without_ipv6(self.switch)
        lines = []
        for index, rail in enumerate([MGMT, *range(self.rails)]):
            lines.append(
                f"link add name {bridge(rail)} mtu {self.limits.mtu} address 02:00:00:02:00:{index:02x} "
                "type bridge stp_state 0 mcast_snooping 0"
            )
            lines.append(f"link set {bridge(rail)} up")
        self.switch_ip(*lines)

    def without_ipv6(self, place: Namespace) -> None:
        """No IPv6, whose chatter would blur counters."""
        for setting in _IPV6_OFF:
            place.write_sysctl(setting, "1")

    def plug(self, host: int, rails: Iterable[int]) -> None:
        """Gives a host its NICs for ``rails``: wired, limited, addressed and up."""
        net_fd = self.hosts[host].net_fd
        rates, wires, ends = [], [], []
        for rail in rails:
            last = f"{host:02x}:{0xFF if rail == MGMT else rail:02x}"
            wires.append(  # fixed MACs: some programs choose by them
                f"link add name {port(host, rail)} mtu {self.limits.mtu} address 02:00:00:01:{last} type veth peer "
                f"name {device(rail)} mtu {self.limits.mtu} address 02:00:00:00:{last} netns /proc/self/fd/{net_fd}"
            )
            wires.append(f"link set {port(host, rail)} master {bridge(rail)} up")
            ends += [f"addr add {address(host, rail)}/24 dev {device(rail)}", f"link set {device(rail)} up"]
            if self.limits.of(rail) != "none":
                rates.append((rail, self.limits.of(rail)))
        self.switch_ip(*wires, pass_fds=[net_fd])
        self._shape(host, rates)
        self.host_ip(host, *ends)

    def unplug(self, host: int, rail: int) -> None:
        """Removes a NIC. What it carried stays in the counters."""
        for side, place, name in self._ends(host, rail):
            key = ((host, rail), side)
            self._carried[key] = self._carried.get(key, LinkCounters()) + place.counters().get(name, LinkCounters())
        self.host_ip(host, f"link del {device(rail)}")

    def _ends(self, host: int, rail: int) -> tuple[tuple[str, Namespace, str], ...]:
        """Both ends of a cable: (side, where, interface)."""
        return ("nic", self.hosts[host], device(rail)), ("port", self.switch, port(host, rail))

    # -- limits --------------------------------------------------------------------------------

    def shape(self, host: int, rail: int, rate: str) -> None:
        """Sets the limit of a rail, both directions; ``none`` removes it."""
        self._shape(host, [(rail, rate)])

    def _shape(self, host: int, rates: list[tuple[int, str]]) -> None:
        def line(name: str, rate: str) -> str:
            if rate == "none":
                return f"qdisc del dev {name} root"
            return f"qdisc replace dev {name} root tbf rate {rate} burst {self.limits.burst} limit {self.limits.queue}"

        if rates:
            tc = [tool("tc"), "-batch", "-"]
            self.change(self.hosts[host], tc, "\n".join(line(device(rail), rate) for rail, rate in rates))
            self.change(self.switch, tc, "\n".join(line(port(host, rail), rate) for rail, rate in rates))

    def shaped_rate(self, host: int, rail: int) -> str:
        """The limit in force on the host's NIC as the kernel shows it; ``none`` without one or without the NIC."""
        if device(rail) not in self.hosts[host].counters():
            return "none"
        words = self.hosts[host].run([tool("tc"), "qdisc", "show", "dev", device(rail)]).split()
        return words[words.index("rate") + 1].lower() if "rate" in words else "none"

    # -- states and counters -------------------------------------------------------------------

    def link(self, place: Namespace, name: str) -> tuple[str, int]:
        """An interface's state (``up``, ``no-carrier``, ``down``, ``absent``) and its changes of carrier so far."""
        if name not in place.counters():
            return "absent", 0
        link = json.loads(place.run([tool("ip"), "-j", "-s", "-s", "link", "show", "dev", name]))[0]
        changes = link["stats64"]["tx"].get("carrier_changes", 0)
        if "UP" not in link["flags"]:
            return "down", changes
        return ("up" if "LOWER_UP" in link["flags"] else "no-carrier"), changes

    def has(self, host: int, rail: int, question: Sequence[str], word: str) -> bool:
        """Whether ``ip``, asked on a host about a rail's NIC, answers with ``word``."""
        place = self.hosts[host]
        return device(rail) in place.counters() and word in place.run([tool("ip"), *question])

    def counters(self) -> dict[Place, dict[str, LinkCounters]]:
        """Counters ``nic`` and ``port`` of every (host, rail), without ``mgmt``; they never fall."""
        ports = self.switch.counters()
        result = {}
        for number, host in enumerate(self.hosts):
            nics = host.counters()
            for rail in range(self.rails):
                now = {"nic": nics.get(device(rail)), "port": ports.get(port(number, rail))}
                result[number, rail] = {
                    side: self._carried.get(((number, rail), side), LinkCounters()) + (counters or LinkCounters())
                    for side, counters in now.items()
                }
        return result

    # -- tools ---------------------------------------------------------------------------------

    def switch_ip(self, *lines: str, pass_fds: Sequence[int] = ()) -> None:
        """Runs lines of ``ip`` where the switches are."""
        self.change(self.switch, [tool("ip"), "-batch", "-"], "\n".join(lines), pass_fds)

    def host_ip(self, host: int, *lines: str) -> None:
        """Runs lines of ``ip`` on a host."""
        self.change(self.hosts[host], [tool("ip"), "-batch", "-"], "\n".join(lines))

    def change(self, place: Namespace, argv: Sequence[str], orders: str, pass_fds: Sequence[int] = ()) -> None:
        """Starts a tool that reads its orders, and hands them over: the way of every change."""
        place.run(argv, orders, pass_fds, self._before_orders)

    def _before_orders(self) -> None:
        if self.lead_s:
            time.sleep(self.lead_s)
        self.handed_ns = self.handed_ns or time.time_ns()
