"""Knocking at a rank's door: all ways to it at once, until one is answered or all have failed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

from .auth import ClientHandshake
from .dial import Dial
from .door import REFUSED, Door, Refused, Way, on_same_stack, ways_to
from .loop import Loop

Heard = Callable[[int, "socket.socket | None", Refused], None]
"""(rank, authenticated socket or None, which addresses refused)."""


class Knock:
    """``heard`` is called once, from the loop. A rank that is busy with something else leaves it waiting for ``limit_s``."""

    def __init__(self, loop: Loop, door: Door, rank: int, limit_s: float, heard: Heard) -> None:
        self._rank = rank
        self._heard: Heard | None = heard
        self._refused: list[Way] = []
        self._dials: dict[Way, Dial] = {}
        ways = ways_to(door.around, rank)
        self._here = on_same_stack(door.around, rank)
        self._open = self._asked = len(ways)
        if not ways:
            loop.after(0.0, self._report)
        for way in ways:
            # Not from within: whoever knocks is not ready to hear yet.
            loop.after(0.0, partial(self._dial, loop, door, way, limit_s))

    def close(self) -> None:
        """Give up quietly."""
        self._heard = None
        for dial in self._dials.values():
            dial.close()
        self._dials.clear()

    def _dial(self, loop: Loop, door: Door, way: Way, limit_s: float) -> None:
        if self._heard is None:
            return
        hello = {
            "for": "survivors",
            "token": door.around.announcements[self._rank].token,
            "rank": door.around.me.rank,
            "to": self._rank,
        }
        machine = ClientHandshake(door.keys.secret, door.keys.job, hello)
        dial = Dial(loop, way[0], way[1], machine, partial(self._ended, way), handshake_s=limit_s)
        if way not in self._dials and self._heard is not None and dial.pending:
            self._dials[way] = dial

    def _ended(self, way: Way, sock: socket.socket | None, reason: str | None) -> None:
        self._dials.pop(way, None)
        self._open -= 1
        if sock is None:
            if reason == REFUSED:
                self._refused.append(way)
            if not self._open:
                self._report()
            return
        heard = self._heard
        self.close()
        if heard is None:
            sock.close()
        else:
            heard(self._rank, sock, Refused())

    def _report(self) -> None:
        heard, self._heard = self._heard, None
        if heard is not None:
            heard(self._rank, None, Refused.by(self._refused, self._asked, self._here))
