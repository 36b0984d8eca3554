"""Events in words."""

from __future__ import annotations

from r2ccl.observe.events import Event, EventKind


def test_a_way_round_begins_and_ends() -> None:
    begin = Event.from_core((0, EventKind.RELAY, 1, -1, 1, 2))
    end = Event.from_core((0, EventKind.RELAY, 1, -1, 0, 2))
    assert (begin.begins, end.begins) == (True, False)
    assert (str(begin), str(end)) == ("relay peer=1 by 2", "relay peer=1 ends")
