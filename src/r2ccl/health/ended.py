"""Looks whether ranks to which no link is left have ended.

A process that ends after its control socket was cut off tells nobody: its links end, as they do when a network fails. Only
its host knows, which refuses connections to its door from then on.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from .._native.core import Engine
from ..bootstrap.door import Refusals, look_at_door
from ..bootstrap.route import Around

_ANSWER_S = 0.2
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0


class EndedRanks:
    """``look`` now and then; it decides how often it asks."""

    def __init__(self, engine: Engine, around: Around) -> None:
        self._engine = engine
        self._around = around
        self._refusals = Refusals()
        self._due: dict[int, tuple[float, float]] = {}  # by peer: when to ask next, and the pause after that

    def look(self, connected: Mapping[int, bool], reset: Collection[int] = ()) -> None:
        """connected: by peer, whether some link to it is up. reset: peers whose control connections were reset.
        Ranks that are known to have ended are told to the core."""
        for peer, up in connected.items():
            if up and peer not in reset:
                self._due.pop(peer, None)
                self._refusals.forget(peer)
                continue
            due_s, pause_s = self._due.get(peer, (0.0, _FIRST_PAUSE_S))
            if time.monotonic() < due_s:
                continue
            refused = replace(look_at_door(self._around, peer, _ANSWER_S), reset=peer in reset)
            if self._refusals.prove_end(peer, refused, time.monotonic()):
                self._engine.peer_ended(peer)
            elif refused.addresses:
                pause_s = _FIRST_PAUSE_S
            self._due[peer] = (time.monotonic() + pause_s, min(2 * pause_s, _LONGEST_PAUSE_S))
