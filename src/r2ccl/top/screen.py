"""The picture as tables, for a terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .attach import Picture
from .rates import Key, key_of, rates

_EVENTS = 8
_LONG_S = 0.5  # who waits no longer than this is not worth a word
_COLOURS = {"up": "green", "OK": "green", "degraded": "yellow", "down": "red"}


def render(now: Picture, before: Picture | None) -> RenderableType:
    """Everything, one block a communicator."""
    speed = rates(before, now)
    parts: list[RenderableType] = []
    for job, name in dict.fromkeys((c["job"], c["comm"]) for c in now.comms):
        comms = [c for c in now.comms if (c["job"], c["comm"]) == (job, name)]
        title = Text(f"job {job}  {name}", style="bold")
        parts += [
            title.append(f"  {comms[0]['size']} ranks, {len(comms)} here, epoch {comms[0]['epoch']}", style="dim")
        ]
        parts += [_ranks(comms, speed), _rails(comms, speed)]
        parts += [_waiting(s["status"]) for s in now.status if (s["job"], s["comm"]) == (job, name)]
        parts += [_events(comms), Text()]
    for pid in now.silent:
        parts.append(Text(f"process {pid} does not answer: stopped, or very busy", style="red"))
    return Group(*(parts or [Text("no running rank of this user on this host", style="dim")]))


def _ranks(comms: list[dict[str, Any]], speed: dict[Key, dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "pid", "state", "calls", "calls/s", "replayed", "repairs", "doing"):
        table.add_column(name, justify="left" if name in ("state", "doing") else "right")
    for comm in comms:
        counters, report = comm["counters"], comm["report"]
        rate = speed.get(key_of(comm))
        table.add_row(
            str(comm["rank"]),
            str(comm["pid"]),
            _state(report["state"]),
            str(counters["calls"]),
            f"{rate['calls']:.1f}" if rate else "-",
            str(counters["replayed_chunks"]),
            str(counters["repairs"]),
            report["doing"] + (f", waits for {_list(report['waits_for'])}" if report["waits_for"] else ""),
        )
    return table


def _rails(comms: list[dict[str, Any]], speed: dict[Key, dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in (
        "rank",
        "rail",
        "state",
        "tx GB/s",
        "rx GB/s",
        "tx GB",
        "rx GB",
        "replayed MB",
        "links not up",
        "verdict",
    ):
        left = name in ("rail", "state", "links not up", "verdict")
        table.add_column(name, justify="left" if left else "right", no_wrap=name == "rail")
    for comm in comms:
        rate = speed.get(key_of(comm))
        for rail in comm["rails"]:
            moved = rate["rails"].get(rail["name"]) if rate else None
            away = [f"{li['peer']} {li['state']}" for li in comm["links"] if li["rail"] == rail["name"]]
            table.add_row(
                str(comm["rank"]),
                rail["name"],
                _state(rail["state"]),
                *((f"{m / 1e9:.3f}" for m in moved) if moved else ("-", "-")),
                f"{rail['tx_bytes'] / 1e9:.2f}",
                f"{rail['rx_bytes'] / 1e9:.2f}",
                f"{rail['replayed_bytes'] / 1e6:.1f}",
                ", ".join(away[:4]) + (", ..." if len(away) > 4 else ""),
                rail["verdict"].replace(": ", ")\n").partition("\n")[0],  # the evidence is in the event
            )
    return table


def _waiting(status: dict[str, Any]) -> Text:
    silent = [f"rank {r['rank']} {r['doing']}" for r in status["ranks"] if r["silent"]]
    since = {r["rank"]: r["since_s"] for r in status["ranks"]}
    held = [c["text"] for c in status["culprits"] if max(since.get(w, 0.0) for w in c["waiters"]) >= _LONG_S]
    lines = silent + held
    return Text("\n".join(lines) or "nobody waits for long", style="yellow" if lines else "dim")


def _events(comms: list[dict[str, Any]]) -> Text:
    events = [(at, comm["rank"], text) for comm in comms for at, text in comm["events"]]
    lines = [
        f"{time.strftime('%H:%M:%S', time.localtime(at / 1e9))}.{at // 1_000_000 % 1000:03d} rank {rank} {text}"
        for at, rank, text in sorted(events)[-_EVENTS:]
    ]
    return Text("\n".join(lines) or "no events", style="dim")


def _state(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, "red"))


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
