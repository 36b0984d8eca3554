"""Brings links back: one thread that sleeps in the core until links are down, and connects them again, for ever. So it
does with control sockets, over any rail.
It also looks closer where the core cannot tell what failed, reads addresses again, and finds ranks that have ended.

The core lets a link that was connected again carry chunks only after a probation at both ends (``flow/probation.h``), so
nothing here is trusted with more than a descriptor.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .._native.core import Engine
from ..bootstrap.base import Deadline
from ..bootstrap.mesh import LinkEnd, relink
from ..bootstrap.route import Around
from ..config import Config
from ..errors import R2cclError
from ..threads import start_quiet
from ..topology.rdma import port_of
from .ended import EndedRanks
from .identity import Identities
from .probe import probe

log = logging.getLogger("r2ccl.health")

_ATTEMPT_S = 0.5  # both ends try at about the same time: one listens while the other dials
_SHORTEST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.4
_IDLE_S = 1.0  # between looks at nothing, so that stop() is noticed
_UP, _DOWN = 0, 2  # states of a link, see LinkState in flow/failover.h


@dataclass(frozen=True)
class Place:
    """Where a link belongs: its number among the links to the peer, and the rails that it joins."""

    peer: int
    number: int
    my_rail: int
    peer_rail: int


class Monitor:
    """The thread, from construction until ``stop``. Owns the listening sockets.

    config.recovery: whether links are connected again; without, it only looks for ranks that have ended.
    """

    def __init__(self, engine: Engine, around: Around, places: list[Place], config: Config) -> None:
        self._engine = engine
        self._around = around
        self._config = config
        self._recovery = config.recovery
        self._ended = EndedRanks(engine, around)
        self._places = {(p.peer, p.number): p for p in places}
        self._identities = Identities(engine, around)
        self._turns: Counter[int] = Counter()  # by peer: how many control connections were tried
        self._stop = threading.Event()
        self._pid = os.getpid()
        self._thread = start_quiet(self._run, "r2ccl-monitor")

    def stop(self) -> None:
        """Ends the thread (at most one attempt later) and closes the listening sockets. Idempotent."""
        self._stop.set()
        if os.getpid() == self._pid and self._thread is not threading.current_thread():
            self._engine.wake_slow_loop()
            self._thread.join(2 * _ATTEMPT_S + 1.0)
        self._around.listeners.close()

    def forget(self) -> None:
        """In a process that was forked off: it must not keep the ports open."""
        self._around.listeners.close()

    def _run(self) -> None:
        pause_s = 0.0
        busy = False
        try:
            if self._recovery:
                self._engine.take_probes()  # the core knows now that somebody does
            while not self._stop.is_set():
                down = self._engine.wait_links_down(pause_s if busy else _IDLE_S)
                for warning in self._engine.take_warnings():
                    log.warning("%s", warning)
                quiet = dict(self._engine.quiet_peers())
                if self._recovery:
                    self._probe()
                    for peer, note in self._engine.take_notes():
                        self._identities.hear(peer, note)
                busy = bool(down or quiet)
                if not busy:
                    pause_s = 0.0
                    continue
                states = self._states()
                self._ended.look(connected(states), {peer for peer, reset in quiet.items() if reset})
                wanted = [place for place, state in states if state == _DOWN] if self._recovery else []
                controls = self._controls(quiet) if self._recovery else []
                up = self._bring_back(wanted, controls)
                if up or any(p.peer > self._around.me.rank for p in [*wanted, *controls]):
                    pause_s = _SHORTEST_PAUSE_S  # the one that is dialled listens nearly all the time
                else:
                    pause_s = min(max(2 * pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        except R2cclError as error:  # the engine ended
            log.debug("monitor ends: %s", error)

    def _probe(self) -> None:
        """Failed links of which the core cannot tell whose rail is at fault."""
        asked = self._engine.take_probes()
        if not asked:
            return
        states = self._states()
        for peer, number in asked:
            place = self._places.get((peer, number))
            if place is None:
                continue
            well = [(p.my_rail, p.peer_rail) for p, state in states if p.peer == peer and state == _UP]
            mine, theirs = probe(self._around, peer, place.my_rail, place.peer_rail, well)
            self._engine.report_probe(peer, number, mine, theirs)

    def _controls(self, quiet: Mapping[int, bool]) -> list[Place]:
        """Where to connect other control sockets. The rank that dials tries one rail after the other, so that there are
        never two of which each end might keep another one."""
        places = []
        for peer in quiet:
            ways = [place for place in self._places.values() if place.peer == peer]
            if peer < self._around.me.rank and ways:
                self._turns[peer] += 1
                ways = [ways[self._turns[peer] % len(ways)]]
            places += ways
        return places

    def _bring_back(self, down: list[Place], controls: list[Place]) -> bool:
        """One attempt at all links that are down, and at control sockets; whether any came up."""
        if not down and not controls:
            return False
        self._identities.renew()
        self._renew_ports({p.my_rail for p in down})
        by_rails = {(p.peer, p.my_rail, p.peer_rail): p for p in down}
        any_up = False

        def on_up(end: LinkEnd) -> None:
            nonlocal any_up
            any_up = True
            if end.control:
                log.info("control frames to rank %d go over rail %d now", end.peer, end.my_rail)
                self._engine.adopt_control(end.peer, end.fd)
            else:
                log.info("link to rank %d over rail %d is connected again", end.peer, end.my_rail)
                place = by_rails[(end.peer, end.my_rail, end.peer_rail)]
                self._engine.reopen_link(place.peer, place.number, end.fd)

        try:
            relink(
                self._around,
                [(p.peer, p.my_rail, p.peer_rail) for p in down],
                Deadline(_ATTEMPT_S),
                on_up,
                [(p.peer, p.my_rail, p.peer_rail) for p in controls],
            )
        except OSError as error:
            log.info("connecting again: %s", error)
        return any_up

    def _renew_ports(self, rails: set[int]) -> None:
        """The place of a rail's address in its port's table, or the device itself, may be another one now."""
        for rail in self._around.me.rails:
            port = port_of(rail, self._config) if rail.index in rails and rail.rdma_device else None
            if port is not None:
                self._engine.set_rail_port(rail.index, port.device, port.port, port.gid_index)

    def _states(self) -> list[tuple[Place, int]]:
        """All links and their states, in the order in which the core numbers them."""
        numbers: dict[int, int] = {}
        states = []
        for peer, _rail, state, *_ in self._engine.links():
            number = numbers.get(peer, 0)
            numbers[peer] = number + 1
            place = self._places.get((peer, number))
            if place is not None:
                states.append((place, state))
        return states


def connected(states: list[tuple[Place, int]]) -> dict[int, bool]:
    """By peer: whether some link to it is up."""
    found: dict[int, bool] = {}
    for place, state in states:
        found[place.peer] = found.get(place.peer, False) or state == _UP
    return found
