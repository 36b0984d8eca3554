"""Where others look at a process: the socket of r2ccl-top and the port of Prometheus.

A communicator and those split from it share one. Its thread sleeps until somebody asks, so it costs a running job nothing
but a stack. Nothing that fails here fails the job: it is a warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from . import place, protocol
from .loop import Loop
from .view import View

if TYPE_CHECKING:
    from .metrics import Endpoint

log = logging.getLogger("r2ccl.observe")

_MAX_CLIENTS = 16
_CLIENT_S = 1.0  # for a client that does not take its answer


class Station:
    """Both servers, from construction until the last view is removed, or collected: it holds none of them."""

    def __init__(self, *, top: bool, metrics_port: int, metrics_address: str) -> None:
        """metrics_port: 0 for none. ``path`` is the socket of r2ccl-top, None where there is none."""
        self._lock = threading.RLock()  # of the list; a collected view is removed wherever it is collected
        self._views: list[weakref.ref[View]] = []
        self._clients: dict[socket.socket, bytearray] = {}
        self._loop: Loop | None = None
        self.path: Path | None
        self.path, listener = _listen() if top else (None, None)
        self._endpoint = self._listen_for_metrics(metrics_address, metrics_port) if metrics_port else None
        if listener is None and self._endpoint is None:
            return
        try:
            self._loop = Loop("r2ccl-sight", self._remove_file)
            if listener is not None:
                self._loop.watch(listener, self._accept)
            if (endpoint := self._endpoint) is not None:
                self._loop.watch(endpoint.socket, lambda _: endpoint.handle_request())
            self._loop.start()
        except (OSError, RuntimeError) as error:  # no descriptor, no thread
            log.warning("neither r2ccl-top nor Prometheus can look at this rank: %s; raise ulimit -n and -u", error)
            self.forget()
            self._remove_file()

    def views(self) -> list[View]:
        """The communicators that are open now."""
        with self._lock:
            return [view for ref in self._views if (view := ref()) is not None]

    def add(self, view: View) -> None:
        """One more communicator to look at."""
        with self._lock:
            self._views.append(weakref.ref(view, self._collected))

    def remove(self, view: View) -> None:
        """The communicator is about to be closed. With the last one the servers end, before this returns."""
        with self._lock:
            last = self._drop(lambda ref: ref() is view)
        if last and self._loop is not None:
            self._loop.join()

    def forget(self) -> None:
        """In a forked child: closes what it inherited, and leaves the file to the parent."""
        self._views = []
        if self._loop is not None:
            self._loop.close()

    def _collected(self, dead: weakref.ref[View]) -> None:
        with self._lock:
            self._drop(lambda ref: ref is dead)

    def _drop(self, which: Callable[[weakref.ref[View]], bool]) -> bool:
        """Whether that was the last one; then the thread has been told to end."""
        before = len(self._views)
        self._views = [ref for ref in self._views if not which(ref)]
        last = before > 0 and not self._views
        if last and self._endpoint is not None:
            self._endpoint.interrupt()
        if last and self._loop is not None:
            self._loop.end()
        return last

    def _remove_file(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    # -- r2ccl-top -----------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        assert self._loop is not None
        try:
            client, _ = listener.accept()
        except OSError:  # it went away again, or no descriptor is left
            return
        if len(self._clients) >= _MAX_CLIENTS or not place.may_talk(client):
            client.close()
            return
        client.settimeout(_CLIENT_S)
        self._clients[client] = bytearray()
        self._loop.watch(client, self._serve)

    def _serve(self, client: socket.socket) -> None:
        """Reads what a client says and answers each full line."""
        pending = self._clients[client]
        try:
            data = client.recv(protocol.MAX_LINE)
            pending += data
            while b"\n" in pending:
                line, _, rest = bytes(pending).partition(b"\n")
                pending[:] = rest
                client.sendall(protocol.answer(line, self.views()))
            if data and len(pending) <= protocol.MAX_LINE:
                return
        except OSError:
            pass
        del self._clients[client]
        if self._loop is not None:
            self._loop.drop(client)

    # -- Prometheus ----------------------------------------------------------------------------------------------

    def _listen_for_metrics(self, address: str, port: int) -> Endpoint | None:
        try:
            from .metrics import Endpoint
        except ImportError:
            log.warning("no metrics at port %d: prometheus-client is missing: pip install r2ccl[metrics]", port)
            return None
        try:
            return Endpoint(address, port, self.views)
        except (OSError, OverflowError) as error:
            log.warning(
                "no metrics at %s port %d: %s; set Config.metrics_port (R2CCL_METRICS_PORT) to a free one and "
                "Config.metrics_address to an address of this host",
                address,
                port,
                error,
            )
            return None


def _listen() -> tuple[Path, socket.socket] | tuple[None, None]:
    folder = place.directory()
    try:
        place.make(folder)
        with contextlib.suppress(OSError):
            place.remove_stale(folder)
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{place.SUFFIX}"
        return path, place.listen(path)
    except OSError as error:
        log.warning(
            "r2ccl-top cannot look at this rank: %s; remove %s or set Config.top to False (R2CCL_TOP=0)", error, folder
        )
        return None, None
