"""From records of the core to rows of slices: nothing lost, nothing drawn over anything else."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.observe.events import Cause, EventKind
from r2ccl.observe.records import RECORD, TraceKind
from r2ccl.observe.timeline import Timeline, pack
from r2ccl.types import Collective, DType


def timeline(*records: dict[str, int], dropped: int = 0) -> Timeline:
    rows = np.zeros(len(records), RECORD)
    for row, record in zip(rows, records, strict=True):
        for key, value in record.items():
            row[key] = value
    return Timeline(rows.tobytes(), dropped, 2, "world", lambda rail: f"eth{rail}")


def chunk(kind: TraceKind, at: int, rail: int = 1, number: int = 0, **more: int) -> dict[str, int]:
    return {"kind": kind, "time_ns": at, "peer": 5, "rail": rail, "call": 9, "chunk": number, "bytes": 64, **more}


def test_a_chunk_is_a_slice_from_post_to_acknowledgement() -> None:
    t = timeline(chunk(TraceKind.POST, 100), chunk(TraceKind.DONE, 350))
    args = {"call": 9, "message": 0, "lane": 0, "chunk": 0, "bytes": 64}
    assert t.slices == {(1, 5, "sent"): [(100, 350, "chunk 0", args)]}


def test_a_replayed_chunk_is_lost_on_one_rail_and_a_slice_of_another() -> None:
    t = timeline(
        chunk(TraceKind.POST, 100),
        chunk(TraceKind.REPLAY, 500, rail=0),
        chunk(TraceKind.DONE, 600, rail=0),
    )
    (lost,) = t.slices[1, 5, "sent"]
    (again,) = t.slices[0, 5, "sent"]
    assert lost[:3] == (100, 500, "chunk 0")
    assert lost[3]["fate"] == "lost"
    assert again[:3] == (500, 600, "replay 0")
    assert again[3]["replay"] == "failed link"
    assert t.instants[0, 5, "links"][0][1] == "replay"


def test_chunks_that_go_round_have_a_row_of_other_ranks() -> None:
    t = timeline(
        chunk(TraceKind.POST, 100, rail=-1),
        chunk(TraceKind.DONE, 350, rail=-1),
        chunk(TraceKind.PASS, 400, value=(3 << 16) + 5),
        {
            "kind": TraceKind.EVENT,
            "peer": 5,
            "rail": -1,
            "time_ns": 90,
            "detail": EventKind.RELAY,
            "chunk": 1,
            "value": 7,
        },
        {"kind": TraceKind.EVENT, "peer": 5, "rail": -1, "time_ns": 900, "detail": EventKind.RELAY},
    )
    assert t.slices[-1, 5, "sent"][0][:3] == (100, 350, "chunk 0")
    assert t.instants[1, 5, "sent"][0][:2] == (400, "passed on from 3 to 5")
    assert t.instants["events",] == [(90, "relay", {"peer": 5, "by": 7}), (900, "relay", {"peer": 5, "ends": True})]
    out = io.StringIO()
    t.write(out)
    assert '"name":"other ranks to rank 5"' in out.getvalue()


def test_chunks_that_came_wait_until_they_are_applied() -> None:
    t = timeline(chunk(TraceKind.ARRIVE, 10), chunk(TraceKind.APPLY, 90, rail=-1), chunk(TraceKind.DISCARD, 95, rail=0))
    assert t.slices[1, 5, "received"][0][:2] == (10, 90)
    assert t.instants[0, 5, "received"][0][1] == "copy thrown away"


def test_calls_have_a_row_of_their_own() -> None:
    call = {"peer": -1, "rail": -1, "call": 3, "message": Collective.ALL_REDUCE}
    t = timeline(
        {**call, "kind": TraceKind.BEGIN, "time_ns": 10, "detail": DType.FLOAT32, "value": 77},
        {**call, "kind": TraceKind.END, "time_ns": 50},
        {**call, "kind": TraceKind.BEGIN, "time_ns": 60, "call": 4},
        {**call, "kind": TraceKind.END, "time_ns": 80, "call": 4, "detail": 7},
    )
    first, second = t.slices["calls",]
    assert first == (10, 50, "all_reduce", {"number": 3, "count": 77, "dtype": "float32"})
    assert second[3]["status"] == 7


def test_events_and_the_repair_are_on_the_row_of_the_link() -> None:
    event = {"kind": TraceKind.EVENT, "peer": 5, "rail": 1}
    t = timeline(
        {**event, "time_ns": 100, "detail": EventKind.LINK_SUSPECT, "chunk": Cause.STALL},
        {**event, "time_ns": 900, "detail": EventKind.REPAIRED, "value": 800},
        {**event, "time_ns": 950, "detail": EventKind.PEER_LOST, "rail": -1},
    )
    assert t.instants[1, 5, "links"] == [(100, "link_suspect", {"cause": "stall"}), (900, "repaired", {"value": 800})]
    assert t.slices[1, 5, "links"] == [(100, 900, "repair", {})]
    assert t.instants["events",][0][1] == "peer_lost"


def test_what_is_open_at_the_end_is_shown_and_what_began_before_is_left_out() -> None:
    t = timeline(chunk(TraceKind.DONE, 5, number=1), chunk(TraceKind.POST, 10, number=2), chunk(TraceKind.ARRIVE, 30))
    (sent,) = t.slices[1, 5, "sent"]
    assert sent[:3] == (10, 30, "chunk 2")
    assert sent[3]["fate"] == "open"
    assert t.slices[1, 5, "received"][0][3]["fate"] == "waits"


def test_the_file_is_chrome_s_format() -> None:
    out = io.StringIO()
    timeline(
        chunk(TraceKind.POST, 1000),
        chunk(TraceKind.POST, 1500, number=1),
        chunk(TraceKind.DONE, 3000),
        chunk(TraceKind.DONE, 3500, number=1),
        dropped=4,
    ).write(out)
    found: dict[str, Any] = json.loads(out.getvalue())
    assert found["otherData"] == {"rank": 2, "comm": "world", "records": 4, "dropped_records": 4}
    names = {e["tid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert list(names.values()) == ["eth1 to rank 5", "eth1 to rank 5 (2)"]
    slices = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert [(e["pid"], e["dur"], e["args"]["bytes"]) for e in slices] == [(2, 2.0, 64), (2, 2.0, 64)]
    assert {e["tid"] for e in slices} == set(names)


SPANS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), max_size=60)


@given(SPANS)
def test_no_two_slices_of_a_line_overlap_and_none_is_lost(spans: list[tuple[int, int]]) -> None:
    slices = [(begin, begin + length, "x", {}) for begin, length in spans]
    lines = pack(list(slices))  # type: ignore[arg-type]
    assert sorted(s[:2] for line in lines for s in line) == sorted(s[:2] for s in slices)
    for line in lines:
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(line))
