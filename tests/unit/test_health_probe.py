"""Probes across rails, on loopback addresses that stand for routed networks. A full listen queue is a silent rail."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from r2ccl.bootstrap.announce import Announcement, RailPort
from r2ccl.health.probe import Finding, probe
from r2ccl.topology.model import RailInfo

RAILS = 3


def rail(host: int, index: int, routed: bool = True) -> RailInfo:
    address = f"127.{20 + index}.0.{host + 1}"
    return RailInfo(f"rail{index}", index, address, 24, 4, f"127.{20 + index}.0.0/24", routed=routed)


@contextmanager
def listening(silent: bool, address: str) -> Iterator[int]:
    """A port that answers, or one whose queue is full, so that connections to it hang."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, 0))
        listener.listen(0 if silent else 8)
        port = listener.getsockname()[1]
        for _ in range(4 if silent else 0):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((address, port))
        yield port


def findings(silent: set[int], routed: bool = True, well: list[tuple[int, int]] | None = None) -> tuple[Any, Any]:
    """What rank 0 finds about the link over rail 0, if connections to these rails of rank 1 hang."""
    with ExitStack() as stack:
        theirs = [rail(1, i, routed) for i in range(RAILS)]
        ports = [stack.enter_context(listening(i in silent, r.address)) for i, r in enumerate(theirs)]
        announced = Announcement(
            "0" * 16, "", (), 0, tuple(RailPort(i, r.address, ports[i]) for i, r in enumerate(theirs)), True
        )
        me = SimpleNamespace(rails=[rail(0, i, routed) for i in range(RAILS)], netns="n")
        peer = SimpleNamespace(rails=theirs, netns="n")
        around: Any = SimpleNamespace(me=me, ranks=[me, peer], announcements={1: announced})
        return probe(around, 1, 0, 0, [(1, 1), (2, 2)] if well is None else well)


def test_both_rails_answer_others_so_the_path_between_them_is_at_fault() -> None:
    assert findings(set()) == (Finding.ALIVE, Finding.ALIVE)


def test_a_rail_that_is_silent_to_others_too_is_dead() -> None:
    assert findings({0}) == (Finding.ALIVE, Finding.DEAD)


def test_silence_says_nothing_where_rails_do_not_reach_each_other() -> None:
    assert findings({0, 1, 2}) == (Finding.UNKNOWN, Finding.UNKNOWN)


@pytest.mark.parametrize(("routed", "well"), [(False, None), (True, [])])
def test_nothing_is_tried_without_a_gateway_or_another_rail(routed: bool, well: list[tuple[int, int]] | None) -> None:
    assert findings(set(), routed, well) == (Finding.UNKNOWN, Finding.UNKNOWN)
