"""A trace as JSON in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

One process per rank. In it: a row of calls; for each rail and peer rows of the chunks sent (from the moment they are
handed to the link until they are confirmed) and of those received (from arrival until applied), and a row of what befell
the links, repairs included. Chunks in flight together lie in rows below each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from ..types import Collective, DType
from .events import Cause, EventKind, Verdict
from .records import TraceKind, read

Slice = tuple[int, int, str, dict[str, Any]]  # begin and end in ns, name, arguments
Instant = tuple[int, str, dict[str, Any]]
_GAP_NS = 1000  # between slices of a row: readers round times
_LINK_EVENTS = frozenset(k for k in EventKind if k.name.startswith(("LINK_", "RAIL_", "REPLAY", "REPAIR", "VERDICT")))


class Timeline:
    """What happened, put in rows. ``slices`` and ``instants`` are by row: (rail, peer, what) or ("calls",)."""

    def __init__(self, records: bytes, dropped: int, rank: int, comm: str, rail_name: Callable[[int], str]) -> None:
        self.rank = rank
        self.comm = comm
        self.dropped = dropped
        self.count = 0
        self.slices: dict[tuple[Any, ...], list[Slice]] = {}
        self.instants: dict[tuple[Any, ...], list[Instant]] = {}
        self._rail_name = rail_name
        self._sent: dict[tuple[int, ...], tuple[int, int, dict[str, Any]]] = {}  # begin, rail, arguments
        self._come: dict[tuple[int, ...], tuple[int, int, dict[str, Any]]] = {}
        self._calls: dict[tuple[int, ...], tuple[int, str, dict[str, Any]]] = {}
        # From the monotonic clock to the wall clock, so that traces of several hosts lie on one time.
        self._wall_ns = time.time_ns() - time.monotonic_ns()
        self._read(read(records))

    def write(self, out: TextIO) -> None:
        """The whole file."""
        other = {"rank": self.rank, "comm": self.comm, "records": self.count, "dropped_records": self.dropped}
        out.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(other) + ',"traceEvents":[\n')
        for number, event in enumerate(self._events()):
            out.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        out.write("\n]}\n")

    # -- records to rows -----------------------------------------------------------------------------------------

    def _read(self, records: Any) -> None:
        self.count = len(records)
        last = 0
        for record in records.tolist():
            last = record[0]
            self._step(*record)
        for key in list(self._sent):
            self._end_sent(key, last, "open", True)
        for key in list(self._come):
            self._end_come(key, last, "waits")
        for begin, name, args in self._calls.values():
            self._add(("calls",), (begin, last, name, {**args, "open": True}))

    def _step(
        self,
        at: int,
        call: int,
        value: int,
        message: int,
        chunk: int,
        nbytes: int,
        peer: int,
        rail: int,
        kind: int,
        detail: int,
    ) -> None:
        key = (peer, call, message, chunk)
        args = {"call": call, "message": message & 0xFFFFFF, "lane": message >> 24, "chunk": chunk, "bytes": nbytes}
        if kind == TraceKind.POST:
            self._sent[key] = (at, rail, args)
        elif kind == TraceKind.REPLAY:
            # What was posted before the trace begins, or was dropped from it, has no earlier slice.
            self._end_sent(key, at, "overtaken" if detail else "lost", True)
            self._sent[key] = (at, rail, {**args, "replay": "slow link" if detail else "failed link"})
            self._mark((rail, peer, "links"), (at, "hedge" if detail else "replay", args))
        elif kind == TraceKind.DONE:
            self._end_sent(key, at, "", False)
        elif kind == TraceKind.ARRIVE:
            self._come.setdefault(key, (at, rail, args))
        elif kind == TraceKind.APPLY:
            self._end_come(key, at, "")
        elif kind == TraceKind.DISCARD:
            self._mark((rail, peer, "received"), (at, "copy thrown away", args))
        elif kind == TraceKind.PASS:
            self._mark((rail, peer, "sent"), (at, f"passed on from {value >> 16} to {value & 0xFFFF}", args))
        elif kind == TraceKind.EVENT:
            self._event(at, EventKind(detail), peer, rail, chunk, value)
        elif kind == TraceKind.BEGIN:
            name = Collective(message).name.lower() + (
                f" {'to' if message == Collective.SEND else 'from'} rank {peer}" if peer >= 0 else ""
            )
            what = {"number": call, "count": value, "dtype": DType(detail).name.lower()}
            self._calls[peer, message, call] = (at, name, what)
        elif kind == TraceKind.END and (open_call := self._calls.pop((peer, message, call), None)):
            begin, name, args = open_call
            self._add(("calls",), (begin, at, name, args if detail == 0 else {**args, "status": detail}))

    def _end_sent(self, key: tuple[int, ...], at: int, fate: str, odd: bool) -> None:
        found = self._sent.pop(key, None)
        if found is None:
            return
        begin, rail, args = found
        name = f"{'replay' if 'replay' in args else 'chunk'} {key[3]}"
        self._add((rail, key[0], "sent"), (begin, at, name, {**args, "fate": fate} if odd else args))

    def _end_come(self, key: tuple[int, ...], at: int, fate: str) -> None:
        found = self._come.pop(key, None)
        if found is not None:
            begin, rail, args = found
            row = (rail, key[0], "received")
            self._add(row, (begin, at, f"chunk {key[3]}", {**args, "fate": fate} if fate else args))

    def _event(self, at: int, kind: EventKind, peer: int, rail: int, detail: int, value: int) -> None:
        row = (rail, peer, "links") if kind in _LINK_EVENTS else ("events",)
        args: dict[str, Any] = {"value": value} if value else {}
        if kind == EventKind.LINK_SUSPECT:
            args["cause"] = Cause(detail).name.lower()
        elif kind == EventKind.VERDICT:
            args["verdict"] = Verdict(detail).name.lower()
        elif kind == EventKind.RELAY:
            args = {"peer": peer, "by": value} if detail else {"peer": peer, "ends": True}
        self._mark(row, (at, kind.name.lower(), args))
        if kind == EventKind.REPAIRED:
            self._add(row, (at - value, at, "repair", {}))

    def _add(self, row: tuple[Any, ...], item: Slice) -> None:
        self.slices.setdefault(row, []).append(item)

    def _mark(self, row: tuple[Any, ...], item: Instant) -> None:
        self.instants.setdefault(row, []).append(item)

    # -- rows to JSON --------------------------------------------------------------------------------------------

    def _events(self) -> Iterator[dict[str, Any]]:
        name = f"rank {self.rank}" + (f" {self.comm}" if self.comm != "world" else "")
        yield self._meta("process_name", 0, {"name": name})
        yield self._meta("process_sort_index", 0, {"sort_index": self.rank})
        thread = 0
        for row in sorted(self.slices.keys() | self.instants.keys(), key=_order):
            lines = pack(self.slices.get(row, []))
            for number, line in enumerate(lines or [[]]):
                thread += 1
                title = self._title(row) + (f" ({number + 1})" if number else "")
                yield self._meta("thread_name", thread, {"name": title})
                yield self._meta("thread_sort_index", thread, {"sort_index": thread})
                for begin, end, what, args in line:
                    yield self._dated("X", begin, what, thread, args, dur=(end - begin) / 1e3)
                if number == 0:
                    for at, what, args in self.instants.get(row, []):
                        yield self._dated("i", at, what, thread, args, s="t")

    def _meta(self, name: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
        return {"ph": "M", "name": name, "pid": self.rank, "tid": thread, "args": args}

    def _dated(self, phase: str, at: int, name: str, thread: int, args: dict[str, Any], **more: Any) -> dict[str, Any]:
        ts = (at + self._wall_ns) / 1e3
        return {"ph": phase, "name": name, "ts": ts, "pid": self.rank, "tid": thread, "args": args, **more}

    def _title(self, row: tuple[Any, ...]) -> str:
        if len(row) == 1:
            return str(row[0])
        rail, peer, what = row
        name = self._rail_name(rail) if rail >= 0 else "other ranks"
        if what == "links":
            return name + (f" with rank {peer}" if peer >= 0 else "") + ": link"
        return f"{name} {'to' if what == 'sent' else 'from'} rank {peer}"


def pack(slices: list[Slice]) -> list[list[Slice]]:
    """Slices in lines in which none overlaps another, the fewest that do."""
    lines: list[list[Slice]] = []
    free: list[int] = []  # when each line is free again
    for item in sorted(slices, key=lambda s: (s[0], s[1])):
        for number, since in enumerate(free):
            if since <= item[0]:
                lines[number].append(item)
                free[number] = item[1] + _GAP_NS
                break
        else:
            lines.append([item])
            free.append(item[1] + _GAP_NS)
    return lines


def _order(row: tuple[Any, ...]) -> tuple[int, int, int, str]:
    if len(row) == 1:
        return (0, 0, 0, str(row[0]))
    rail, peer, what = row
    return (1, rail, peer, what)
