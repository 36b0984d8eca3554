"""A thread that sleeps until one of its sockets can be read."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable

from ..threads import start_quiet

log = logging.getLogger("r2ccl.observe")

Reader = Callable[[socket.socket], None]
_END_S = 5.0


class Loop:
    """Runs from ``start`` to ``end``. Callbacks run in its thread, one at a time; it closes what it watches."""

    def __init__(self, name: str, at_end: Callable[[], None]) -> None:
        self._name = name
        self._at_end = at_end
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, sock: socket.socket, reader: Reader) -> None:
        """``reader(sock)`` is called whenever there is something to read. Before ``start``, or from a callback."""
        self._selector.register(sock, selectors.EVENT_READ, reader)

    def drop(self, sock: socket.socket) -> None:
        """The socket is watched no more, and closed. From a callback."""
        self._selector.unregister(sock)
        sock.close()

    def start(self) -> None:
        """Starts the thread, which takes no signals."""
        self._thread = start_quiet(self._run, self._name)

    def end(self) -> None:
        """Asks the thread to end; does not wait, and may be called anywhere."""
        if not self._closed:
            self._wake.send(b"x")

    def join(self) -> None:
        """Waits for the end, bounded."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def close(self) -> None:
        """Closes every socket. By the thread at its end, or where there is no thread: in a forked child."""
        if self._closed:
            return
        self._closed = True
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._wake.close()

    def _run(self) -> None:
        try:
            while not any(self._read(key) for key, _ in self._selector.select()):
                pass
        finally:
            self.close()
            self._at_end()

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Calls one reader; true: the thread shall end."""
        if key.data is None:
            return True
        sock: socket.socket = key.fileobj  # type: ignore[assignment]
        try:
            key.data(sock)
        except Exception:  # a bug: whoever looks must not hurt the job, nor be called again and again
            log.exception("%s gives up a socket", self._name)
            if sock.fileno() >= 0:
                self.drop(sock)
        return False
