"""What happened between two pictures: calls and bytes a second."""

from __future__ import annotations

from typing import Any

from .attach import Picture

Key = tuple[str, str, int, int]


def key_of(comm: dict[str, Any]) -> Key:
    """Names a communicator of a process. Its number alone does not: containers count from 1."""
    return comm["job"], comm["comm"], comm["rank"], comm["pid"]


def rates(before: Picture | None, now: Picture) -> dict[Key, dict[str, Any]]:
    """By communicator: ``calls`` a second, and by rail's name ``(tx, rx)`` bytes a second; only where both pictures have it."""
    earlier = {key_of(c): c for c in before.comms} if before is not None else {}
    found: dict[Key, dict[str, Any]] = {}
    for comm in now.comms:
        old = earlier.get(key_of(comm))
        seconds = (comm["time_ns"] - old["time_ns"]) / 1e9 if old else 0.0
        if old is None or seconds <= 0:
            continue
        rails = {r["name"]: r for r in old["rails"]}
        found[key_of(comm)] = {
            "calls": (comm["counters"]["calls"] - old["counters"]["calls"]) / seconds,
            "rails": {
                r["name"]: tuple((r[k] - rails[r["name"]][k]) / seconds for k in ("tx_bytes", "rx_bytes"))
                for r in comm["rails"]
                if r["name"] in rails
            },
        }
    return found
