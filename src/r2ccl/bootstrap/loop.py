"""A small event loop over ``selectors``: sockets and timers of the start, in one thread, without asyncio."""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import time
from collections.abc import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Timer:
    """A call that is due at a time on the monotonic clock, unless it is cancelled."""

    __slots__ = ("call", "cancelled", "due_s")

    def __init__(self, due_s: float, call: Callable[[], None]) -> None:
        self.due_s = due_s
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        """Make it do nothing."""
        self.cancelled = True


class Loop:
    """Handlers run in ``run_once``; they may watch, forget and set timers, but must not block."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def watch(self, sock: socket.socket, events: int, handler: Callable[[int], None]) -> None:
        """Call ``handler(ready events)`` when the socket is ready; replaces an earlier watch of it. 0: not now."""
        known = sock in self._selector.get_map()
        if events == 0:
            self.forget(sock)
        elif known:
            self._selector.modify(sock, events, handler)
        else:
            self._selector.register(sock, events, handler)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching; harmless when it is not watched. To be called before the socket is closed."""
        if sock.fileno() >= 0 and sock in self._selector.get_map():
            self._selector.unregister(sock)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call once, ``seconds`` from now."""
        timer = Timer(time.monotonic() + seconds, call)
        heapq.heappush(self._timers, (timer.due_s, next(self._order), timer))
        return timer

    def run_once(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for something to do, and do it."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if self._timers:
            timeout_s = min(timeout_s, self._timers[0][0] - time.monotonic())
        for key, ready in self._selector.select(max(0.0, timeout_s)):
            # A handler of this round may have forgotten this socket already.
            if key.fd in self._selector.get_map() and self._selector.get_map()[key.fd] == key:
                key.data(ready)
        now_s = time.monotonic()
        while self._timers and self._timers[0][0] <= now_s:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                timer.call()

    def close(self) -> None:
        """Release the selector; watched sockets stay open."""
        self._timers.clear()
        self._selector.close()
