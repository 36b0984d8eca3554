"""What the slow loop tries next."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from r2ccl.health.monitor import Monitor, Place


def test_every_peer_has_its_own_turn_among_the_rails() -> None:
    """As many peers as rails: with one turn for all, each would be tried over the same rail for ever."""
    monitor = Monitor.__new__(Monitor)  # without its thread
    monitor._around = SimpleNamespace(me=SimpleNamespace(rank=2))  # type: ignore[assignment]
    monitor._places = {(peer, rail): Place(peer, rail, rail, rail) for peer in (0, 1, 3) for rail in (0, 1)}
    monitor._turns = Counter()
    tried = [monitor._controls({0: False, 1: True, 3: False}) for _ in range(2)]
    for peer in (0, 1):  # dialled: one way at a time
        assert sorted(place.my_rail for places in tried for place in places if place.peer == peer) == [0, 1]
    assert [place.my_rail for place in tried[0] if place.peer == 3] == [0, 1], "the one that is dialled listens on all"
