"""Finding rank 0's store among the candidate addresses and ports."""

from __future__ import annotations

import itertools
import socket

from ..errors import Timeout
from .address import SocketAddress, address_text
from .auth import ClientHandshake, Hello
from .base import Deadline
from .dial import Dial
from .loop import Loop
from .user import other_user

_STAGGER_S = 0.25  # a candidate that neither answers nor refuses delays the next one by this much
_ROUND_S = 0.1  # pause between rounds, doubled up to
_MAX_ROUND_S = 1.0


def join_store(
    hosts: list[tuple[int, SocketAddress]],
    ports: tuple[int, ...],
    key: bytes,
    job: bytes,
    hello: Hello,
    deadline: Deadline,
    *,
    own_user_only: bool = False,
) -> socket.socket:
    """A blocking, authenticated connection to rank 0's store.

    All candidates are tried in turn, again and again, since rank 0 may start last and may have found its first ports
    taken. ``Timeout`` at the deadline tells what was found at each of them. ``own_user_only``: a store of another user
    of this machine is passed over.
    """
    joining = _Joining(hosts, ports, key, job, hello)
    joining.own_user_only = own_user_only
    try:
        sock = joining.run(deadline)
    finally:
        joining.close()
    sock.setblocking(True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class _Joining:
    def __init__(
        self, hosts: list[tuple[int, SocketAddress]], ports: tuple[int, ...], key: bytes, job: bytes, hello: Hello
    ) -> None:
        self._candidates = [(family, (a[0], port, *a[2:])) for port in ports for family, a in hosts]
        self._key, self._job, self._hello = key, job, hello
        self._loop = Loop()
        self._dials: dict[str, Dial] = {}
        self._reasons: dict[str, str] = {}
        self._found: socket.socket | None = None
        self.own_user_only = False

    def run(self, deadline: Deadline) -> socket.socket:
        for n in itertools.count():
            for family, address in self._candidates:
                self._start(family, address)
                self._wait(deadline.at_most(_STAGGER_S), address_text(address))
                if self._found is not None:
                    return self._found
            self._wait(deadline.at_most(min(_MAX_ROUND_S, _ROUND_S * 2 ** min(n, 10))), None)
            if self._found is not None:
                return self._found
            if deadline.expired:
                break
        rank, size = self._hello["rank"], self._hello["size"]
        raise Timeout(
            f"rank {rank} of {size} found no store of rank 0 within {deadline.seconds:g} s ({self._summary()}): "
            "is rank 0 running, and are MASTER_ADDR and MASTER_PORT (or R2CCL_PORT) the same on all ranks?"
        )

    def close(self) -> None:
        for dial in list(self._dials.values()):
            dial.close()
        self._loop.close()

    def _start(self, family: int, address: SocketAddress) -> None:
        where = address_text(address)
        if where in self._dials:
            return
        machine = ClientHandshake(self._key, self._job, self._hello)
        ended = False

        def on_end(sock: socket.socket | None, reason: str | None) -> None:
            nonlocal ended
            ended = True
            self._dials.pop(where, None)
            if sock is not None and self.own_user_only:
                reason = other_user(sock)
                if reason is not None:
                    sock.close()
                    sock = None
            if sock is None:
                self._reasons[where] = reason or "failed"
            elif self._found is None:
                self._found = sock
            else:
                sock.close()

        dial = Dial(self._loop, family, address, machine, on_end)
        if not ended:
            self._dials[where] = dial

    def _wait(self, until: Deadline, where: str | None) -> None:
        """Run until something is found, the time is up, or the candidate ``where`` has failed."""
        while self._found is None and not until.expired and (where is None or where in self._dials):
            self._loop.run_once(until.remaining())

    def _summary(self) -> str:
        grouped: dict[str, list[str]] = {}
        for where, reason in self._reasons.items():
            grouped.setdefault(reason, []).append(where)
        return "; ".join(f"{_span(places)}: {reason}" for reason, places in grouped.items()) or "nothing answered yet"


def _span(places: list[str]) -> str:
    return places[0] if len(places) == 1 else f"{places[0]} ... {places[-1]}"
