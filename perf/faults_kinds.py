"""What is injected and what is asked of the library: the faults and labs of the failure bench, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Asked:
    """Bounds of a class of faults, in milliseconds and as a share of what the rails can still carry."""

    detect_ms: float | None = None
    replay_ms: float | None = None
    bandwidth: float | None = None


EVENT = Asked(10, 20, 0.97)  # the kernel of a host says so
SILENT = Asked(100, 120, 0.97)
SLOW = Asked(500, None, 0.95)


@dataclass(frozen=True)
class Fault:
    """One line of the table. ``kind`` and ``arguments`` are the lab's (see ``r2ccl.lab.KINDS``).

    carries: what the rail carries with the fault, as a share of what it carried before; None: that is measured first.
    """

    name: str
    kind: str
    asked: Asked
    arguments: tuple[Any, ...] = ()
    carries: float | None = 0.0

    @property
    def slow(self) -> bool:
        """The rail still carries something: it should be given less, not be given up."""
        return self.asked is SLOW

    def on(self, rail_mbit: int) -> tuple[Any, ...]:
        """The arguments on rails of that rate."""
        return (f"{rail_mbit * self.carries}mbit",) if self.kind == "rate" and self.carries else self.arguments


FLAP_S = 0.2
FLAP = Fault("flap", "flap", Asked(bandwidth=0.97), (FLAP_S, 1000))
FAULTS = {
    f.name: f
    for f in (
        Fault("down", "down", EVENT),
        Fault("removed", "removed", EVENT),
        Fault("address", "address", EVENT),
        Fault("port-down", "port-down", SILENT),
        Fault("blackhole", "blackhole", SILENT),
        Fault("rx-drop", "rx-drop", SILENT),
        Fault("tx-drop", "tx-drop", SILENT),
        Fault("switch", "switch", SILENT),
        Fault("loss-100", "loss", SILENT, (100,)),
        Fault("loss-5", "loss", SLOW, (5,), carries=None),
        Fault("loss-30", "loss", SLOW, (30,), carries=None),
        Fault("rate-25", "rate", SLOW, carries=0.25),
        Fault("rate-5", "rate", SLOW, carries=0.05),
        FLAP,
    )
}
LOST_RANKS = ("killed", "frozen")
SAME_HOST_MS, ACROSS_MS = 50.0, 1000.0
FROZEN_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Lab:
    """An emulated cluster; ``ranks`` per host. Rails so slow that two cores can fill them.

    ``call_mib``: of an all_reduce; long enough that its last chunks do not count, short enough for many calls.
    """

    hosts: int
    ranks: int
    rails: int
    rail_mbit: int
    call_mib: int
    faults: tuple[str, ...]

    @property
    def name(self) -> str:
        """``2x1x4``."""
        return f"{self.hosts}x{self.ranks}x{self.rails}"

    @property
    def call_bytes(self) -> int:
        """Of an all_reduce."""
        return self.call_mib << 20


EVERY_FAULT = (*FAULTS, *LOST_RANKS)
LABS = {
    lab.name: lab
    for lab in (
        Lab(2, 1, 4, 300, 16, EVERY_FAULT),
        # A part of them, so that all of it ends in time; --faults asks for others.
        Lab(3, 2, 3, 300, 8, ("down", "port-down", "blackhole", "rx-drop", "switch", "rate-25", *LOST_RANKS)),
    )
}
