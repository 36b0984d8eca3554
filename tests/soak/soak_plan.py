"""Faults by chance, for a soak: when, where, what and for how long. A function of the seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from r2ccl.lab import MGMT

Place = tuple[int, int]  # host, rail
CUTS = (
    "down",
    "port-down",
    "removed",
    "blackhole",
    "rx-drop",
    "tx-drop",
    "loss 100%",
    "reset",
    "switch",
    "flap",
    "address",
)
SLOW = ("loss 5%", "loss 30%", "rate 50%", "rate 25%", "rate 5%", "route")  # the rail still carries something
OUTAGE, CONTROL = "outage", "control"
KINDS = (*CUTS, *SLOW, CONTROL, OUTAGE)
FIRST_S = 3.0  # the first calls are made in peace
GAP_S = 0.7  # mean time between faults
SETTLE_S = 1.0  # a healed rail is not counted on before
MOST_AT_ONCE_S = 2.0  # longest outage of all rails of a host


@dataclass(frozen=True)
class Planned:
    """One fault as the lab takes it, with the name that the report counts it by."""

    name: str
    start_s: float
    end_s: float
    places: tuple[Place, ...]
    texts: tuple[str, ...]


def plan(seed: int, seconds: float, hosts: int, rails: int, rate_mbit: float, outages: bool = True) -> list[Planned]:
    """Faults of ``seconds``, healed by then. Each pair of hosts keeps a rail, but for some short outages of a host."""
    chance = random.Random(f"faults {seed}")
    planned: list[Planned] = []
    now = FIRST_S
    while True:
        now += chance.expovariate(1 / GAP_S)
        if now > seconds - 1.0:
            return planned
        kind = chance.choice(KINDS)
        host, rail = chance.randrange(hosts), chance.randrange(rails)
        end = min(now + chance.uniform(0.15, 3.0), seconds)
        busy = {place for p in planned if p.end_s + 0.3 > now for place in p.places}
        if kind == OUTAGE:
            if not outages or chance.random() < 0.5:
                continue
            end = min(end, now + MOST_AT_ONCE_S)
            places = tuple((host, r) for r in range(rails) if (host, r) not in busy)
            cut = chance.choice(["down", "port-down", "blackhole", "tx-drop"])
            planned.append(Planned(kind, now, end, places, tuple(_text(cut, p, now, end) for p in places)))
            continue
        if kind == CONTROL:
            places = ((host, MGMT),)
            text = _text(chance.choice(["blackhole", "port-down", "rx-drop", "tx-drop"]), places[0], now, end)
        elif kind == "switch":
            places = tuple((h, rail) for h in range(hosts))
            text = _text(kind, places[0], now, end)
        elif kind == "flap":
            places, half_s, count = ((host, rail),), chance.uniform(0.05, 0.3), chance.randint(2, 6)
            end = min(now + 2 * half_s * count, seconds)
            text = _text(f"flap {half_s * 1e3:.0f}ms {count}", places[0], now, end)
        else:
            places = ((host, rail),)
            word, _, percent = kind.partition(" ")
            if word == "rate":
                word = f"rate {rate_mbit * int(percent.rstrip('%')) / 100:g}mbit"
            elif word == "loss":
                word = f"loss {percent.rstrip('%')}"
            text = _text(word, places[0], now, end)
        lost = {p for q in planned if q.name not in SLOW and q.end_s + SETTLE_S > now for p in q.places}
        if kind not in SLOW:
            lost |= set(places)
        if busy & set(places) or (kind != CONTROL and not _all_meet(hosts, rails, lost)):
            continue
        planned.append(Planned(kind, now, end, places, (text,)))


def _text(kind: str, place: Place, start_s: float, end_s: float) -> str:
    rail = "mgmt" if place[1] == MGMT else place[1]
    return f"t={start_s:.3f}s host={place[0]} rail={rail} {kind} for={end_s - start_s:.3f}s"


def _all_meet(hosts: int, rails: int, lost: Iterable[Place]) -> bool:
    """Whether every pair of hosts has a rail that works at both ends."""
    lost = set(lost)
    return all(
        any((a, r) not in lost and (b, r) not in lost for r in range(rails)) for a in range(hosts) for b in range(a)
    )
