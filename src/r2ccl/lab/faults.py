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
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument
from .kinds import kind_named
from .requirements import LabError, tool

if TYPE_CHECKING:
    from .fabric import Fabric

Place = tuple[int, int]  # (host, rail)
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
    """The faults of one fabric. Thread-safe; a fault of one kind replaces an earlier one of that kind at that place."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._lock = threading.RLock()
        self._active: dict[Place, dict[str, tuple[Any, ...]]] = {}
        self._tables: set[Place] = set()  # places with filter rules in the kernel
        self._past_drops: dict[Place, Drops] = {}
        self._flaps: dict[Place, tuple[threading.Thread, threading.Event]] = {}

    def inject(self, kind: str, host: int, rail: int, arguments: tuple[Any, ...]) -> None:
        """Starts a fault; see ``Fabric.fault``."""
        known = kind_named(kind)
        try:
            arguments = known.read(arguments)
        except ValueError as error:
            raise InvalidArgument(f"fault {kind!r} on host {host}, rail {rail}: {error}") from None
        self._fabric.check_place(host, rail)
        if known.needs_nft:
            tool("nft")
        if kind == "flap":
            self._start_flap((host, rail), *arguments)
            return
        with self._lock:
            fabric = self._fabric
            if kind == "down":
                fabric.hosts_ip(host, f"link set {fabric.device(rail)} down")
            elif kind == "port-down":
                fabric.switch_ip(f"link set {fabric.port(host, rail)} down")
            elif kind == "removed":
                fabric.unplug(host, rail)
            elif kind == "switch":
                fabric.switch_ip(f"link set {fabric.bridge(rail)} down")
            elif kind == "rate":
                fabric.shape(host, rail, arguments[0])
            active = self._active.setdefault((host, rail), {})
            before = dict(active)
            active[kind] = arguments
            if known.needs_nft:
                try:
                    self._write_rules((host, rail))
                except BaseException:
                    self._active[host, rail] = before
                    raise

    def heal(self, host: int, rail: int) -> None:
        """Ends every fault of the place, and the rail's ``switch`` fault wherever it was injected."""
        self._fabric.check_place(host, rail)
        self._stop_flap((host, rail))
        with self._lock:
            fabric = self._fabric
            active = self._active.pop((host, rail), {})
            if any(kind_named(kind).needs_nft for kind in active):
                self._write_rules((host, rail))
            if "removed" in active:
                fabric.plug(host, [rail])
            else:
                if "rate" in active:
                    fabric.shape(host, rail, fabric.rate_of(rail))
                if "down" in active:
                    fabric.hosts_ip(host, f"link set {fabric.device(rail)} up")
                if "port-down" in active:
                    fabric.switch_ip(f"link set {fabric.port(host, rail)} up")
            if "switch" in active or any("switch" in self._active.get(place, {}) for place in fabric.places(rail)):
                fabric.switch_ip(f"link set {fabric.bridge(rail)} up")
                for place in fabric.places(rail):
                    self._active.get(place, {}).pop("switch", None)

    def drops(self, place: Place) -> Drops:
        """What filter rules have dropped (or answered with RST) at the place since the fabric was built."""
        with self._lock:
            return self._past_drops.get(place, Drops()) + self._rule_drops(place)

    def evidence(self, host: int, rail: int) -> dict[str, Any]:
        """What the kernel shows now of the faults of a place: link states, rate limit, drops."""
        fabric = self._fabric
        drops = self.drops((host, rail))
        return {
            "nic": fabric.link_state(host, rail),
            "port": fabric.port_state(host, rail),
            "switch": fabric.switch_state(rail),
            "carrier_changes": fabric.carrier_changes(host, rail),
            "rate": fabric.shaped_rate(host, rail),
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
        port, table = self._fabric.port(*place), f"netdev lab_{self._fabric.port(*place)}"
        chains = {"ingress": "", "egress": ""}  # of the port: what the host sends comes in there
        for kind, arguments in self._active.get(place, {}).items():
            if kind_named(kind).needs_nft:
                for hook, rule in zip(chains, _rules(kind, arguments), strict=True):
                    chains[hook] += f"  {rule}\n" if rule else ""
        text = f"add table {table}\ndelete table {table}\n"
        bodies = "".join(
            f' chain {hook} {{\n  type filter hook {hook} device "{port}" priority 0;\n{rules} }}\n'
            for hook, rules in chains.items()
            if rules
        )
        if bodies:
            text += f"table {table} {{\n{bodies}}}\n"
        try:
            self._fabric.switch.run([tool("nft"), "-f", "-"], text)
        except LabError as error:
            raise LabError(
                f"{error}\nSilent faults need nf_tables with netdev ingress, egress and numgen: Linux 5.16 or newer"
            ) from None
        self._past_drops[place] = before
        (self._tables.add if bodies else self._tables.discard)(place)

    def _rule_drops(self, place: Place) -> Drops:
        if place not in self._tables:
            return Drops()
        listing = self._fabric.switch.run([tool("nft"), "list", "table", "netdev", f"lab_{self._fabric.port(*place)}"])
        found = re.findall(r"counter packets (\d+) bytes (\d+)", listing)
        return Drops(sum(int(packets) for packets, _ in found), sum(int(size) for _, size in found))

    # -- flapping ------------------------------------------------------------------------------

    def _start_flap(self, place: Place, half_s: float, count: int = _DEFAULT_FLAPS) -> None:
        """Takes the port down and up in a thread; the first fall has happened when this returns."""
        self._stop_flap(place)
        stop = threading.Event()
        port = self._fabric.port(*place)
        self._fabric.switch_ip(f"link set {port} down")

        def flap() -> None:
            for turn in range(count):
                due = time.monotonic() + half_s
                if turn:
                    self._fabric.switch_ip(f"link set {port} down")
                stop.wait(max(0.0, due - time.monotonic()))
                self._fabric.switch_ip(f"link set {port} up")
                if stop.wait(half_s):
                    break

        thread = threading.Thread(target=flap, name=f"r2ccl-lab-flap-{port}", daemon=True)
        self._flaps[place] = (thread, stop)
        thread.start()

    def _stop_flap(self, place: Place) -> None:
        """Stops the flapping of a place; its port is up afterwards."""
        flap = self._flaps.pop(place, None)
        if flap is not None:
            flap[1].set()
            flap[0].join()
