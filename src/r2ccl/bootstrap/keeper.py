"""Answers at the door of a communicator that has shrunk: who comes now is told that the others went on without it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from ..threads import start_quiet
from .acceptor import Acceptor
from .auth import Hello
from .channel import Channel
from .door import Door
from .group import judge_comer, out_on_wire
from .loop import READ, Loop

LATE = "the survivors had gone on when it came"
_STOP_S = 2.0


class Keeper:
    """A thread, from construction until ``stop``. Owns the door."""

    def __init__(self, door: Door, out: Mapping[int, str]) -> None:
        """out: why ranks were left out."""
        self._door = door
        self._out = dict(out)
        self._loop = Loop()
        self._wake_out, self._wake_in = socket.socketpair()
        self._stop = False
        self._pid = os.getpid()
        self._channels: set[Channel] = set()
        self._thread = start_quiet(self._run, "r2ccl-door")

    def stop(self) -> None:
        """Ends the thread and closes the door. Idempotent; in a process that was forked off it only closes."""
        if os.getpid() == self._pid:
            self._stop = True
            with contextlib.suppress(OSError):
                self._wake_out.send(b"\0")
            self._thread.join(_STOP_S)
        else:
            self._close()

    def _run(self) -> None:
        keys = self._door.keys
        acceptor = Acceptor(
            self._loop, keys.secret, keys.job, self._judge, self._on_comer, purpose="door", limit=512, quiet=True
        )
        for listener in self._door.sockets:
            acceptor.listen(listener)
        self._loop.watch(self._wake_in, READ, lambda _events: None)
        try:
            while not self._stop:
                self._loop.run_once(3600.0)
        finally:
            acceptor.close()
            for channel in self._channels:
                channel.close()
            self._loop.close()
            self._close()

    def _close(self) -> None:
        self._door.close()
        self._wake_in.close()
        self._wake_out.close()

    def _judge(self, hello: Hello) -> str | None:
        return judge_comer(self._door, hello)

    def _on_comer(self, sock: socket.socket, hello: Hello, _listener: socket.socket) -> None:
        # The one that dialled speaks first; whatever it says, the answer is the same.
        self._channels.add(
            Channel(
                self._loop,
                sock,
                hello["rank"],
                lambda channel, _message: self._answer(channel),
                self._channels.discard,
                dialled=False,
            )
        )

    def _answer(self, channel: Channel) -> None:
        out = {**self._out, channel.rank: self._out.get(channel.rank, LATE)}
        channel.send({"out": out_on_wire(out)})
        channel.close()
        self._channels.discard(channel)
