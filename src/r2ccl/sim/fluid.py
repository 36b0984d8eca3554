"""Moves the messages of plans through a network whose links are shared fairly; bytes are a fluid, time goes in steps.

A step lasts as long as a hop: latency, and one chunk on the wire. In it a message advances by its max-min fair share, as far
as what it forwards had arrived when the step began; so chunks follow each other through any number of hops as in the
core. Each pair of ranks has one link, whatever its lanes; messages of one lane go one after the other. The work of a step
is linear in the lanes that are busy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import InternalError, InvalidArgument
from .fair import Floats, Ints, max_min, used
from .messages import Messages, spans

PASSES = 2  # a lane may end a message and begin the next in one step
ROUNDS = 12  # of filling, then what is safe
STALLED = 3  # steps without a byte moved: nothing will move any more


@dataclass(frozen=True)
class Net:
    """Capacities: resources 2h and 2h + 1 are what host h sends and receives over its NICs; then each rank's own inside.

    host_of: the host of each rank. host_gbs: of each host. inside_gbs: of each rank to others of its host (NVLink, or
    shared memory). alpha_us: of a hop between hosts. chunk_bytes: unit of forwarding. paced: links do not get equal shares of
    a host's bandwidth but shares in proportion to all that the plan sends over them.
    """

    host_of: tuple[int, ...]
    host_gbs: tuple[float, ...]
    inside_gbs: float
    alpha_us: float
    chunk_bytes: float
    paced: bool = False

    @property
    def capacity(self) -> Floats:
        """Bytes per second of each resource."""
        nics = np.repeat(np.array(self.host_gbs), 2)
        return np.concatenate([nics, np.full(2 * len(self.host_of), self.inside_gbs)]) * 1e9

    def resources(self, src: Ints, dst: Ints) -> tuple[Ints, Ints]:
        """The resources that messages leave and come in by."""
        host = np.array(self.host_of, np.int64)
        within = host[src] == host[dst]
        base = 2 * len(self.host_gbs)
        return np.where(within, base + 2 * src, 2 * host[src]), np.where(within, base + 2 * dst + 1, 2 * host[dst] + 1)


@dataclass(frozen=True)
class Outcome:
    """seconds: until the last byte is there. steps: of the simulation. moved: bytes over each resource."""

    seconds: float
    steps: int
    moved: Floats


def simulate(messages: Messages, net: Net, most_steps: int = 2000) -> Outcome:
    """Carry all ``messages`` over ``net``.

    most_steps: a step is not made shorter than the ideal time divided by this, so that time to simulate does not grow with
    the size of the data; a hop then counts as longer than it is.
    """
    capacity = net.capacity
    out, into = net.resources(messages.src, messages.dst)
    load = used(out, into, messages.size, len(capacity))
    dead = (capacity <= 0) & (load > 0)
    if dead.any():
        raise InvalidArgument(f"host_gbs = {net.host_gbs}: messages cross a host without bandwidth")
    ideal = float((load[capacity > 0] / capacity[capacity > 0]).max(initial=0.0))
    hop = net.alpha_us * 1e-6 + _chunk(messages, net) / (max(net.host_gbs) * 1e9)
    state = _State(messages, out, into, capacity, net.paced)
    dt = max(hop, ideal / most_steps)
    steps, idle, spent = 0, 0, 0.0
    while len(state.lanes):
        moved, worked = state.step(dt)
        steps += 1
        idle = 0 if moved else idle + 1
        if idle > STALLED:
            raise InternalError(f"{len(state.lanes)} lanes wait for each other after {steps} steps")
        spent += dt if len(state.lanes) else worked
    # A message is visible one step after it moved; the last hop has its latency, too.
    return Outcome(spent + net.alpha_us * 1e-6, steps, load)


def _chunk(messages: Messages, net: Net) -> float:
    """Chunks of about the given size that divide the longest message, so that steps end where messages do."""
    longest = float(messages.size.max(initial=1.0))
    return longest / max(1, math.ceil(longest / net.chunk_bytes))


class _State:
    """Progress of every message, and the message at the head of each busy lane."""

    def __init__(self, messages: Messages, out: Ints, into: Ints, capacity: Floats, paced: bool) -> None:
        self._m, self._out, self._into, self._capacity = messages, out, into, capacity
        self._arrived = np.where(messages.size > 0, 0.0, 1.0)  # as a fraction, as others may see it
        pair = messages.src * (int(messages.dst.max(initial=0)) + 1) + messages.dst
        self._pair = np.unique(pair, return_inverse=True)[1]
        self._pace = np.maximum(np.bincount(self._pair, messages.size), 1.0) if paced else None
        self._sent = np.zeros(len(messages.size))
        self._head = messages.first[:-1].copy()
        self._end = messages.first[1:]
        self.lanes = np.arange(len(self._head))

    def step(self, dt: float) -> tuple[bool, float]:
        """(whether anything moved or ended, how long the busiest resource worked)."""
        left = self._capacity * dt
        touched = []
        ended_any = False
        for _ in range(PASSES):
            head = self._head[self.lanes]
            can = self._available(head)
            go = np.minimum(can, self._m.size[head]) - self._sent[head]
            out, into = self._out[head], self._into[head]
            amount = self._shared(head, np.maximum(go, 0.0), left)
            left = np.maximum(left - used(out, into, amount, len(left)), 0.0)
            self._sent[head] += amount
            touched.append(head[amount > 0])
            ended = (self._sent[head] >= self._m.size[head] * (1 - 1e-9)) & (can >= self._m.size[head] * (1 - 1e-9))
            self._sent[head[ended]] = self._m.size[head[ended]]
            self._head[self.lanes[ended]] += 1
            ended_any = ended_any or bool(ended.any())
            self.lanes = self.lanes[self._head[self.lanes] < self._end[self.lanes]]
            if not len(self.lanes) or not ended.any():
                break
        moved = np.concatenate(touched)
        self._arrived[moved] = self._sent[moved] / self._m.size[moved]
        worked = 1 - float((left[self._capacity > 0] / self._capacity[self._capacity > 0]).min(initial=dt)) / dt
        return ended_any or bool(len(moved)), worked * dt

    def _shared(self, head: Ints, go: Floats, left: Floats) -> Floats:
        """How far each message gets with what is left of each resource: pairs of ranks share fairly, then a pair's lanes."""
        pair = self._pair[head]
        first = np.flatnonzero(np.diff(pair, prepend=-1))  # lanes of a pair are next to each other
        lane = np.cumsum(np.diff(pair, prepend=-1) != 0) - 1
        want = np.add.reduceat(go, first) if len(first) else go
        pace = None if self._pace is None else self._pace[pair[first]]
        link = max_min(self._out[head[first]], self._into[head[first]], want, left, ROUNDS, pace)
        if len(first) == len(head):
            return link
        everyone = np.full(len(head), len(link))
        return max_min(lane, everyone, go, np.append(link, np.inf), ROUNDS)

    def _available(self, head: Ints) -> Floats:
        """Bytes of each message that its rank has to send."""
        m = self._m
        begin, count = m.need_first[head], m.need_first[head + 1] - m.need_first[head]
        part = np.ones(len(head))
        at = spans(begin, count)
        if len(at):
            seen = self._arrived[m.need[at]]
            seen = np.where((m.need_whole[at] != 0) & (seen < 1 - 1e-9), 0.0, seen)
            some = np.flatnonzero(count)
            part[some] = np.minimum.reduceat(seen, (np.cumsum(count) - count)[some])
        result: Floats = part * m.size[head]
        return result
