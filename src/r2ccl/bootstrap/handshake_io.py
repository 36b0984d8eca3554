"""One handshake on one non-blocking socket, driven by the event loop and bounded in time and memory."""

from __future__ import annotations

import socket
from collections.abc import Callable

from .auth import HANDSHAKE_S, ClientHandshake, HandshakeError, ServerHandshake
from .loop import READ, WRITE, Loop

Machine = ClientHandshake | ServerHandshake
"""Both know the peer's or their own ``hello``, ``wanted``, ``outgoing`` and ``done``."""


class HandshakeIO:
    """Moves the bytes of a machine until it is done, fails, or ``HANDSHAKE_S`` have passed.

    ``on_end(self, error)`` is called once; without an error the socket is authenticated, unwatched and non-blocking,
    and nothing beyond the handshake has been read from it. With one the socket is closed already.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        machine: Machine,
        on_end: Callable[[HandshakeIO, str | None], None],
        limit_s: float = HANDSHAKE_S,
    ) -> None:
        self.sock = sock
        self.machine = machine
        self.started = False  # whether the peer has said anything
        self._loop = loop
        self._on_end = on_end
        self._in = bytearray()
        self._ended = False
        self._timer = loop.after(limit_s, lambda: self.fail(f"it did not finish the handshake within {limit_s:g} s"))
        self._wait()

    def fail(self, reason: str) -> None:
        """Give up: close the socket and report ``reason``."""
        self._end(reason)

    def _wait(self) -> None:
        self._loop.watch(self.sock, WRITE if self.machine.outgoing else READ, self._on_ready)

    def _on_ready(self, _events: int) -> None:
        try:
            while self._step():
                pass
        except HandshakeError as refusal:
            self._flush_quietly()
            self._end(str(refusal))
            return
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if self._ended:
            return
        if self.machine.done and not self.machine.outgoing:
            self._end(None)
        else:
            self._wait()

    def _step(self) -> bool:
        """Send or receive once; False when there is nothing more to do now."""
        machine = self.machine
        if machine.outgoing:
            sent = self.sock.send(machine.outgoing)
            del machine.outgoing[:sent]
            return True
        if machine.done:
            return False
        data = self.sock.recv(machine.wanted - len(self._in))
        if not data:
            said = "in the middle of the handshake" if self.started else "without a word"
            self._end(f"it closed the connection {said}")
            return False
        self.started = True
        self._in += data
        if len(self._in) == machine.wanted:
            taken, self._in = bytes(self._in), bytearray()
            machine.receive(taken)
        return True

    def _flush_quietly(self) -> None:
        """Tell a refused peer why, as far as one send goes."""
        try:
            if self.machine.outgoing:
                self.sock.send(self.machine.outgoing)
        except OSError:
            pass

    def _end(self, error: str | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        self._loop.forget(self.sock)
        if error is not None:
            self.sock.close()
        self._on_end(self, error)
