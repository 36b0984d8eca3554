"""Injecting faults into the rails of a fabric, ending them, and showing that they act.

Faults of the link act by ``ip``, rates by ``tc``, silent ones by packet filter rules on the switch's port (netdev
family: they see every frame, ARP too). A loss is a loss of frames as the sender built them: with segmentation offload,
which veth has, one frame can be 64 KiB of TCP.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument
from .kinds import kind_named
from .requirements import LabError, tool
from .wiring import Place, Wiring, address, bridge, device, network, port

_DEFAULT_FLAPS = 3


@dataclass(frozen=True)
class Drops:
    """Frames and bytes that filter rules have taken out of one (host, rail) so far."""

    packets: int = 0
    bytes: int = 0

    def __add__(self, other: Drops) -> Drops:
        return Drops(self.packets + other.packets, self.bytes + other.bytes)


def _rules(kind: str, arguments: tuple[Any, ...]) -> tuple[str, str]:
    """Rules of a silent fault on the switch port: (for what the host sends, for what it should receive)."""
    drop = "counter drop"
    if kind == "loss" and arguments[0] < 100:
        drop = f"numgen random mod 1000000 < {max(1, round(arguments[0] * 10000))} counter drop"
    if kind == "reset":
        return "tcp flags & rst == 0 counter reject with tcp reset", ""
    return ("" if kind == "rx-drop" else drop), ("" if kind == "tx-drop" else drop)


class FaultInjector:
    """The faults of one wiring. Thread-safe; a fault of one kind replaces an earlier one of that kind at that place."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._lock = threading.RLock()
        self._active: dict[Place, dict[str, tuple[Any, ...]]] = {}
        self._tables: set[Place] = set()  # places with filter rules in the kernel
        self._past_drops: dict[Place, Drops] = {}
        self._flaps: dict[Place, tuple[threading.Thread, threading.Event]] = {}

    def inject(self, kind: str, host: int, rail: int, arguments: tuple[Any, ...], lead_s: float = 0.0) -> int:
        """Starts a fault; see ``Fabric.fault``."""
        known = kind_named(kind)
        try:
            arguments = known.read(arguments)
        except ValueError as error:
            raise InvalidArgument(f"fault {kind!r} on host {host}, rail {rail}: {error}") from None
        if known.needs_nft:
            tool("nft")
        if kind != "switch" and "removed" in self._active.get((host, rail), {}):
            raise InvalidArgument(f"fault {kind!r}: the NIC of host {host}, rail {rail} is removed; heal it first")
        if kind in ("flap", "removed"):
            self._stop_flap((host, rail))
        with self._lock:
            wiring = self._wiring
            wiring.handed_ns, wiring.lead_s = 0, lead_s
            try:
                if kind == "flap":
                    self._start_flap((host, rail), *arguments)
                else:
                    self._start(kind, (host, rail), arguments)
            finally:
                wiring.lead_s = 0.0
            return wiring.handed_ns

    def _start(self, kind: str, place: Place, arguments: tuple[Any, ...]) -> None:
        host, rail = place
        wiring = self._wiring
        if kind == "down":
            wiring.host_ip(host, f"link set {device(rail)} down")
        elif kind == "port-down":
            wiring.switch_ip(f"link set {port(host, rail)} down")
        elif kind == "removed":
            wiring.unplug(host, rail)
        elif kind == "switch":
            wiring.switch_ip(f"link set {bridge(rail)} down")
        elif kind == "address":
            wiring.host_ip(host, f"addr del {address(host, rail)}/24 dev {device(rail)}")
        elif kind == "route":
            wiring.host_ip(host, f"route del {network(rail)} dev {device(rail)}")
        elif kind == "rate":
            wiring.shape(host, rail, arguments[0])
        active = self._active.setdefault(place, {})
        before = dict(active)
        active[kind] = arguments
        if kind_named(kind).needs_nft:
            try:
                self._write_rules(place)
            except BaseException:
                self._active[place] = before
                raise

    def heal(self, host: int, rail: int) -> None:
        """Ends every fault of the place, and the rail's ``switch`` fault wherever it was injected."""
        self._stop_flap((host, rail))
        with self._lock:
            wiring = self._wiring
            active = self._active.pop((host, rail), {})
            if any(kind_named(kind).needs_nft for kind in active):
                self._write_rules((host, rail))
            if "removed" in active:
                wiring.plug(host, [rail])
            else:
                if "rate" in active:
                    wiring.shape(host, rail, wiring.limits.of(rail))
                if "address" in active:
                    wiring.host_ip(host, f"addr add {address(host, rail)}/24 dev {device(rail)}")
                if "down" in active:
                    wiring.host_ip(host, f"link set {device(rail)} up")
                if "route" in active:
                    way = f"dev {device(rail)} proto kernel scope link src {address(host, rail)}"
                    wiring.host_ip(host, f"route replace {network(rail)} {way}")
                if "port-down" in active:
                    wiring.switch_ip(f"link set {port(host, rail)} up")
            if "switch" in active or any("switch" in self._active.get(place, {}) for place in wiring.places(rail)):
                wiring.switch_ip(f"link set {bridge(rail)} up")
                for place in wiring.places(rail):
                    self._active.get(place, {}).pop("switch", None)

    def drops(self, place: Place) -> Drops:
        """What filter rules have dropped (or answered with RST) at the place since the fabric was built."""
        with self._lock:
            return self._past_drops.get(place, Drops()) + self._rule_drops(place)

    def evidence(self, place: Place) -> dict[str, Any]:
        """See ``Fabric.evidence``."""
        host, rail = place
        with self._lock:
            wiring, drops = self._wiring, self.drops(place)
            nic, carrier_changes = wiring.link(wiring.hosts[host], device(rail))
            return {
                "nic": nic,
                "port": wiring.link(wiring.switch, port(host, rail))[0],
                "switch": wiring.link(wiring.switch, bridge(rail))[0],
                "carrier_changes": carrier_changes,
                "rate": wiring.shaped_rate(host, rail),
                "address": wiring.has(host, rail, ["addr", "show", "dev", device(rail)], address(host, rail)),
                "route": wiring.has(host, rail, ["route", "show", "dev", device(rail)], network(rail)),
                "dropped_packets": drops.packets,
                "dropped_bytes": drops.bytes,
            }

    def close(self) -> None:
        """Ends the threads of flapping rails."""
        for place in list(self._flaps):
            self._stop_flap(place)

    # -- packet filter -------------------------------------------------------------------------

    def _write_rules(self, place: Place) -> None:
        """Replaces the place's rules by those of its active silent faults; keeps the sums of the old counters."""
        before = self.drops(place)
        table = f"netdev lab_{port(*place)}"
        chains = {"ingress": "", "egress": ""}  # of the port: what the host sends comes in there
        for kind, arguments in self._active.get(place, {}).items():
            if kind_named(kind).needs_nft:
                for hook, rule in zip(chains, _rules(kind, arguments), strict=True):
                    chains[hook] += f"  {rule}\n" if rule else ""
        text = f"add table {table}\ndelete table {table}\n"
        bodies = "".join(
            f' chain {hook} {{\n  type filter hook {hook} device "{port(*place)}" priority 0;\n{rules} }}\n'
            for hook, rules in chains.items()
            if rules
        )
        if bodies:
            text += f"table {table} {{\n{bodies}}}\n"
        try:
            self._wiring.change(self._wiring.switch, [tool("nft"), "-f", "-"], text)
        except LabError as error:
            raise LabError(
                f"{error}\nSilent faults need nf_tables with netdev ingress, egress and numgen: Linux 5.16 or newer"
            ) from None
        self._past_drops[place] = before
        (self._tables.add if bodies else self._tables.discard)(place)

    def _rule_drops(self, place: Place) -> Drops:
        if place not in self._tables:
            return Drops()
        listing = self._wiring.switch.run([tool("nft"), "list", "table", "netdev", f"lab_{port(*place)}"])
        found = re.findall(r"counter packets (\d+) bytes (\d+)", listing)
        return Drops(sum(int(packets) for packets, _ in found), sum(int(size) for _, size in found))

    # -- flapping ------------------------------------------------------------------------------

    def _start_flap(self, place: Place, half_s: float, count: int = _DEFAULT_FLAPS) -> None:
        """Takes the port down and up in a thread; the first fall has happened when this returns."""
        stop = threading.Event()
        name = port(*place)
        self._wiring.switch_ip(f"link set {name} down")

        def flap() -> None:
            for turn in range(count):
                due = time.monotonic() + half_s
                if turn:
                    self._wiring.switch_ip(f"link set {name} down")
                stop.wait(max(0.0, due - time.monotonic()))
                self._wiring.switch_ip(f"link set {name} up")
                if stop.wait(half_s):
                    break

        thread = threading.Thread(target=flap, name=f"r2ccl-lab-flap-{name}", daemon=True)
        self._flaps[place] = (thread, stop)
        thread.start()

    def _stop_flap(self, place: Place) -> None:
        """Stops the flapping of a place; its port is up afterwards."""
        flap = self._flaps.pop(place, None)
        if flap is not None:
            flap[1].set()
            flap[0].join()
