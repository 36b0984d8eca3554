"""What is compared: where the ranks run, which sizes, and the ratios to the best other library that r2ccl aims at."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Target:
    """``speedup``: best other library's time divided by r2ccl's, for messages of ``low`` to ``high`` bytes."""

    low: int
    high: int
    speedup: float


@dataclass(frozen=True)
class Scenario:
    """``hosts`` 0: all ranks on this machine; else emulated hosts of one rank each with ``rails`` rails.

    ``rail_mbit`` 0: rails without a limit. ``line_share``: of the raw rate of all rails that r2ccl must reach.
    """

    name: str
    title: str
    ranks: int
    targets: tuple[Target, ...]
    hosts: int = 0
    rails: int = 0
    rail_mbit: int = 0
    low: int = 0
    high: int = 256 * MIB
    line_share: float = 0.0

    @property
    def raw_bytes_per_s(self) -> float:
        """All rails of one host, one direction, headers included; 0 without a limit."""
        return self.rails * self.rail_mbit * 1e6 / 8

    def target(self, size: int) -> Target | None:
        """The target that applies to ``size`` bytes."""
        return next((t for t in self.targets if t.low <= size <= t.high), None)


SCENARIOS = {
    s.name: s
    for s in (
        Scenario(
            "shm2",
            "one host, 2 ranks",
            ranks=2,
            targets=(Target(0, 16 * KIB, 0.5), Target(64 * KIB, 16 * MIB, 1.0), Target(64 * MIB, 1 << 40, 1.5)),
        ),
        Scenario(
            "shm4",
            "one host, 4 ranks",
            ranks=4,
            targets=(Target(0, 16 * KIB, 0.5), Target(64 * KIB, 1 << 40, 1.2)),
        ),
        Scenario(
            "rails4",
            "2 hosts, 4 rails without limit",
            ranks=2,
            hosts=2,
            rails=4,
            targets=(Target(0, 64 * KIB, 0.5), Target(1 * MIB, 1 << 40, 1.1)),
        ),
        Scenario(
            "rails4_500",
            "2 hosts, 4 rails of 500 Mbit/s",
            ranks=2,
            hosts=2,
            rails=4,
            rail_mbit=500,
            low=16 * MIB,
            high=64 * MIB,
            line_share=0.93,
            targets=(Target(16 * MIB, 1 << 40, 0.99),),
        ),
    )
}
DEFAULT_SIZES = (8, 64, 1 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
QUICK_SIZES = (8, 1 * KIB, 16 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)


def parse_size(text: str) -> int:
    """Bytes from ``64``, ``16K``, ``1M`` or ``1G``; a multiple of 4. Raises ``ValueError``."""
    factor = {"K": KIB, "M": MIB, "G": 1 << 30}.get(text[-1:].upper(), 1)
    size = int(text if factor == 1 else text[:-1]) * factor
    if size < 4 or size % 4:
        raise ValueError(f"size {text!r}: a positive multiple of 4 bytes (float32)")
    return size


def format_size(size: int) -> str:
    """``65536`` -> ``64K``."""
    for factor, suffix in ((1 << 30, "G"), (MIB, "M"), (KIB, "K")):
        if size >= factor and size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)
