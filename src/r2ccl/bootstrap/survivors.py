"""How the survivors of a lost rank find each other, without the lost one, rank 0's store or MPI.

Every rank dials the doors of all lower ranks that may live, and takes in the higher ones. The lowest leads: once
everybody has come, or the time is up, it names the members of the new group, and the connections to it remain.

- Who is out (lost, excluded, too late) is told to everybody at once, with the reason, and only ever grows. So ranks whose
  views differ come to the same one, and a rank that is out learns it instead of a group of its own.
- Refused connections prove the end of a process (``door.Refusals``); silence proves nothing, since a rank may be
  computing, and is out only when the time is up. The earliest deadline of those present holds for all.
- A leader that ends, or does not go on, is out like any other, and the next rank leads.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Mapping
from functools import partial

from ..errors import Aborted
from .acceptor import Acceptor
from .auth import Hello
from .base import Deadline
from .channel import Channel, Message
from .door import Door, Refusals, Refused
from .group import Group, judge_comer, out_off_wire, out_on_wire
from .knock import Knock
from .loop import Loop

_GRACE_S = 5.0  # beyond the deadline, for a leader to name the members
_PROBE_S = 0.3
_FIRST_PAUSE_S = 0.05
_SLOWEST_S = 2.0
_NONCE_BYTES = 32
ENDED = "its process has ended, or has closed its communicator"


class Meeting:
    """One attempt of a rank to find the others; ``run`` once. ``out`` is what it knows at first, and grows."""

    def __init__(self, door: Door, out: Mapping[int, str], deadline: Deadline) -> None:
        self._door = door
        self._me = door.around.me.rank
        self._size = len(door.around.ranks)
        self._out = dict(out)
        self._deadline = deadline
        self._grace = Deadline(deadline.remaining() + _GRACE_S)
        self._loop = Loop()
        self._knocks: dict[int, Knock] = {}
        self._refusals = Refusals()
        self._here: dict[int, Channel] = {}
        self._strangers: set[Channel] = set()  # authenticated, and yet to say what they know
        self._pauses_s: dict[int, float] = {}
        self._group: Group | None = None

    def run(self) -> Group:
        """The group that this rank belongs to. ``Aborted`` when the others go on without it."""
        keys = self._door.keys
        acceptor = Acceptor(
            self._loop, keys.secret, keys.job, self._judge, self._on_comer, purpose="survivors", limit=512, quiet=True
        )
        try:
            for listener in self._door.sockets:
                acceptor.listen(listener)
            for rank in range(self._size):
                if rank < self._me:
                    self._knock(rank)
                elif rank > self._me:  # it should come by itself; knocking only tells whether it lives
                    self._loop.after(_PROBE_S, partial(self._knock, rank))
            while True:
                self._decide()
                if self._group is not None:
                    return self._group
                self._loop.run_once(self._until_next())
        finally:
            acceptor.close()
            for knock in self._knocks.values():
                knock.close()
            for channel in [*self._here.values(), *self._strangers]:
                channel.close()
            self._loop.close()

    # Deciding.

    def _decide(self) -> None:
        if self._group is not None:
            return
        if self._deadline.expired:
            for rank in range(self._me):
                if rank not in self._here:
                    self._leave_out(rank, f"it did not come within {self._deadline.seconds:g} s")
            if self._grace.expired and self._leader() != self._me:
                self._leave_out(self._leader(), "it did not go on")
                self._grace = Deadline(_GRACE_S)  # the next one may have waited for it just as long
        if self._me in self._out:
            raise Aborted(f"rank {self._me} is not among the survivors: {self._out[self._me]}")
        if self._leader() != self._me:
            return
        missing = [r for r in range(self._me + 1, self._size) if r not in self._out and r not in self._here]
        if missing and not self._deadline.expired:
            return
        for rank in missing:
            self._leave_out(rank, f"it did not come within {self._deadline.seconds:g} s")
        self._name_members()

    def _leader(self) -> int:
        return min(set(range(self._me + 1)) - set(self._out), default=self._me)

    def _name_members(self) -> None:
        members = sorted({self._me, *self._here})
        nonce = secrets.token_bytes(_NONCE_BYTES)
        message = {"members": members, "nonce": nonce.hex(), "out": out_on_wire(self._out)}
        sockets = {}
        for rank in members[1:]:
            channel = self._here.pop(rank)
            channel.send(message)
            sock = channel.take()
            if sock is not None:
                sockets[rank] = sock
        self._group = Group(tuple(members), nonce, sockets, dict(self._out))

    def _leave_out(self, rank: int, reason: str) -> None:
        if rank not in self._out:
            self._learn({rank: reason})

    def _learn(self, out: Mapping[int, str]) -> None:
        new = {rank: reason for rank, reason in out.items() if rank not in self._out}
        if not new:
            return
        self._out.update(new)
        for channel in list(self._here.values()):  # before those that are out are gone
            channel.send(self._view())
        for rank in new:
            knock = self._knocks.pop(rank, None)
            if knock is not None:
                knock.close()
            gone = self._here.pop(rank, None)
            if gone is not None:
                gone.close()

    def _view(self) -> Message:
        return {"out": out_on_wire(self._out), "left_s": self._deadline.remaining()}

    def _until_next(self) -> float:
        left_s = self._grace.remaining() if self._deadline.expired else self._deadline.remaining()
        return min(left_s + 0.001, _SLOWEST_S)

    # Ranks that come, and ranks that are knocked at.

    def _judge(self, hello: Hello) -> str | None:
        return judge_comer(self._door, hello)

    def _on_comer(self, sock: socket.socket, hello: Hello, _listener: socket.socket) -> None:
        self._meet(hello["rank"], sock, dialled=False)

    def _meet(self, rank: int, sock: socket.socket, *, dialled: bool) -> Channel:
        channel = Channel(self._loop, sock, rank, self._on_message, self._on_end, dialled=dialled)
        self._strangers.add(channel)
        return channel

    def _knock(self, rank: int) -> None:
        if self._group is None and rank not in self._out and rank not in self._here and rank not in self._knocks:
            self._knocks[rank] = Knock(self._loop, self._door, rank, self._deadline.remaining() + _GRACE_S, self._heard)

    def _knock_later(self, rank: int) -> None:
        pause_s = self._pauses_s[rank] = min(2 * self._pauses_s.get(rank, _FIRST_PAUSE_S / 2), _SLOWEST_S)
        self._loop.after(pause_s, partial(self._knock, rank))

    def _heard(self, rank: int, sock: socket.socket | None, refused: Refused) -> None:
        """A knock was answered (with a socket), or failed."""
        del self._knocks[rank]
        ended = self._refusals.prove_end(rank, refused, time.monotonic())
        if sock is not None:
            self._meet(rank, sock, dialled=True).send(self._view())  # the one that dialled speaks first
        elif ended:
            self._leave_out(rank, ENDED)
        else:
            self._knock_later(rank)

    def _on_message(self, channel: Channel, message: Message) -> None:
        rank = channel.rank
        try:
            out = out_off_wire(message.get("out"), self._size)
            left_s = float(message.get("left_s", self._deadline.remaining()))
        except (TypeError, ValueError):
            channel.close()
            self._on_end(channel)
            return
        if 0 <= left_s < self._deadline.remaining():
            self._deadline = _Shortened(left_s, self._deadline.seconds)
            self._grace = Deadline(left_s + _GRACE_S)
        self._learn(out)
        if channel in self._strangers:
            self._strangers.discard(channel)
            self._first_words(channel)
        elif "members" in message and self._here.get(rank) is channel:
            self._on_members(channel, message)

    def _first_words(self, channel: Channel) -> None:
        """Connections that a higher rank dialled remain; by the others a rank only learns whether the higher one lives."""
        rank = channel.rank
        if not channel.dialled:
            channel.send(self._view())
        if channel.dialled == (rank < self._me) and rank not in self._out:
            before = self._here.get(rank)
            if before is not None:
                before.close()
            self._here[rank] = channel
            return
        channel.close()
        if channel.dialled:
            self._knock_later(rank)

    def _on_members(self, channel: Channel, message: Message) -> None:
        members, nonce = message.get("members"), message.get("nonce")
        if not isinstance(members, list) or not isinstance(nonce, str) or self._me not in members:
            return
        sock = channel.take()
        del self._here[channel.rank]
        if sock is not None and members == sorted(members) and members[0] == channel.rank:
            self._group = Group(tuple(members), bytes.fromhex(nonce), {channel.rank: sock}, dict(self._out))

    def _on_end(self, channel: Channel) -> None:
        """The peer ended the connection: its process has ended, or it starts again."""
        self._strangers.discard(channel)
        if self._here.get(channel.rank) is channel:
            del self._here[channel.rank]
        elif not channel.dialled:
            return
        self._knock_later(channel.rank)


class _Shortened(Deadline):
    """A deadline that another rank's earlier one has cut short; messages keep the own allowance."""

    __slots__ = ()

    def __init__(self, left_s: float, seconds: float) -> None:
        super().__init__(left_s)
        self.seconds = seconds
