"""The TCP bootstrap: rank 0 runs a store, the other ranks connect to it."""

from __future__ import annotations

import logging
import secrets
import select
import socket
from dataclasses import dataclass, field

from ..errors import BootstrapError, PeerLost, Timeout
from .address import (
    is_local,
    is_loopback,
    listen_everywhere,
    listen_on_loopback,
    local_address,
    peer_text,
    resolve,
)
from .auth import derive, job_id
from .base import Deadline, check_value
from .join import join_store
from .store import Store
from .wire import HEAD, GatherRequest, Kind, frame, max_result_bytes, pack_gather, parse_head, parse_result

log = logging.getLogger("r2ccl.bootstrap")
PORTS_TRIED = 17
_GRACE_S = 2.0
KEY_BYTES = 32


@dataclass(frozen=True)
class Meeting:
    """Where the ranks meet: equal on all of them."""

    host: str
    ports: tuple[int, ...]
    size: int
    run: str = ""
    """Tells jobs apart that share a machine and a port: the launcher's run id, if it has one."""
    secret: bytes | None = field(default=None, repr=False)

    @property
    def job(self) -> bytes:
        """Public name of the job, carried by every handshake."""
        return job_id(self.ports[0], self.run)

    @property
    def key(self) -> bytes:
        """Key of the store's handshakes; without a secret it keeps nobody out, and the store stays on loopback."""
        return derive(self.secret or b"", "store")


def candidate_ports(port: int, *, skip_first: bool) -> tuple[int, ...]:
    """The given port and the 16 after it; without the first when the launcher's own store holds it."""
    ports = range(port, min(port + PORTS_TRIED, 1 << 16))
    return tuple(ports)[1:] if skip_first else tuple(ports)


def tcp_bootstrap(meeting: Meeting, rank: int, deadline: Deadline) -> TcpRank0 | TcpClient:
    """This rank's bootstrap. Rank 0 returns at once; the others once they are connected to rank 0.

    Raises ``Timeout`` when rank 0 cannot be reached, ``BootstrapError`` when no port is free, MASTER_ADDR is no
    address, or the job spans machines without a secret.
    """
    return TcpRank0(meeting) if rank == 0 else TcpClient(meeting, rank, deadline)


class StoreOwner:
    """The bootstrap of the rank that runs the store: rank 0. Subclasses make the store."""

    rank = 0
    size: int
    secret: bytes
    _store: Store

    @property
    def local_hint(self) -> str | None:
        """The local address by which another rank came in."""
        return self._store.reached_at

    def all_gather(self, tag: str, value: bytes, deadline: Deadline) -> list[bytes]:
        """See ``Bootstrap.all_gather``."""
        check_value(tag, value)
        request = GatherRequest(tag, value, deadline.remaining(), deadline.seconds)
        return unpack(*self._store.gather(request, deadline), self.size)

    def close(self) -> None:
        """See ``Bootstrap.close``."""
        self._store.close()


class TcpRank0(StoreOwner):
    """Rank 0 of a job, which others find at MASTER_ADDR."""

    def __init__(self, meeting: Meeting) -> None:
        self.size = meeting.size
        self._meeting = meeting
        # With a secret the clients derive the key from this nonce; without, it is the key itself, over loopback only.
        nonce = secrets.token_bytes(KEY_BYTES)
        self.secret = derive(meeting.secret, "session", nonce) if meeting.secret else nonce
        listeners = _listen(meeting)
        self.port = int(listeners[0].getsockname()[1])
        if not meeting.secret:
            log.info("no secret: rank 0's store listens on loopback only (R2CCL_SECRET is needed for several machines)")
        self._store = Store(listeners, meeting.size, meeting.key, meeting.job, nonce, own_user_only=not meeting.secret)

    def all_gather(self, tag: str, value: bytes, deadline: Deadline) -> list[bytes]:
        """See ``Bootstrap.all_gather``."""
        try:
            return super().all_gather(tag, value, deadline)
        except Timeout as error:
            if self._meeting.secret or _is_loopback_name(self._meeting.host):
                raise
            raise Timeout(
                f"{error}; without a secret only ranks on rank 0's machine can join: "
                "set R2CCL_SECRET to the same value on every machine if there are others"
            ) from None


class StoreClient:
    """A rank's connection to a store in another process."""

    def __init__(self, sock: socket.socket, rank: int, size: int) -> None:
        """Takes over an authenticated, blocking socket."""
        self.rank = rank
        self.size = size
        self._sock = sock
        self._where = peer_text(sock)
        self.local_hint: str | None = None if sock.family == socket.AF_UNIX else local_address(sock)

    def welcome(self, deadline: Deadline) -> bytes:
        """The store's first words: the key or nonce of this bootstrap."""
        kind, body = self._receive(deadline, "the welcome of rank 0")
        if kind is Kind.LOST:
            raise PeerLost(body.decode(errors="replace"))
        if kind is not Kind.WELCOME or len(body) != KEY_BYTES:
            raise BootstrapError(f"rank 0's store at {self._where} sent a frame of kind {kind} as its welcome")
        return body

    def has_news(self) -> bool:
        """Whether the store has something to say, or is gone, though nothing was asked."""
        return bool(select.select([self._sock], [], [], 0)[0])

    def all_gather(self, tag: str, value: bytes, deadline: Deadline) -> list[bytes]:
        """See ``Bootstrap.all_gather``."""
        check_value(tag, value)
        request = GatherRequest(tag, value, deadline.remaining(), deadline.seconds)
        self._sock.settimeout(deadline.remaining() + _GRACE_S)
        try:
            self._sock.sendall(frame(Kind.GATHER, pack_gather(request)))
        except TimeoutError:
            raise Timeout(f"{tag}: rank 0's store at {self._where} takes no data") from None
        except OSError as error:
            raise PeerLost(f"{tag}: rank 0's store at {self._where} is gone ({error.strerror or error})") from error
        return unpack(*self._receive(deadline, tag), self.size)

    def close(self) -> None:
        """See ``Bootstrap.close``."""
        self._sock.close()

    def _receive(self, deadline: Deadline, what: str) -> tuple[Kind, bytes]:
        # The store answers at this rank's deadline, naming who is missing; the grace is for its answer to arrive.
        length, kind = parse_head(self._read(HEAD.size, deadline, what), max_result_bytes(self.size))
        return kind, self._read(length, deadline, what)

    def _read(self, wanted: int, deadline: Deadline, what: str) -> bytes:
        data = bytearray()
        end = Deadline(deadline.remaining() + _GRACE_S)
        while len(data) < wanted:
            self._sock.settimeout(max(0.001, end.remaining()))
            try:
                part = self._sock.recv(min(wanted - len(data), 1 << 20))
            except TimeoutError:
                raise Timeout(f"{what}: rank 0's store at {self._where} did not answer") from None
            except OSError as error:
                raise PeerLost(f"{what}: rank 0's store at {self._where} is gone ({error.strerror})") from error
            if not part:
                raise PeerLost(f"{what}: rank 0 at {self._where} closed its store (its process ended or gave up)")
            data += part
        return bytes(data)


class TcpClient(StoreClient):
    """The bootstrap of every other rank: one connection to rank 0."""

    def __init__(self, meeting: Meeting, rank: int, deadline: Deadline) -> None:
        hosts = resolve(meeting.host, 0, what="MASTER_ADDR")
        if not meeting.secret:
            if not any(is_local(address, family) for family, address in hosts):
                raise BootstrapError(
                    f"MASTER_ADDR={meeting.host} is another machine, and there is no secret, without which rank 0's "
                    "store is open to its own machine only: set R2CCL_SECRET (or R2CCL_SECRET_FILE) to the same value "
                    "on every machine"
                )
            hosts = [(int(socket.AF_INET), ("127.0.0.1", 0)), *(h for h in hosts if is_loopback(h[1][0]))]
        hello = {"for": "store", "rank": rank, "size": meeting.size}
        found = list(dict.fromkeys(hosts))
        sock = join_store(
            found, meeting.ports, meeting.key, meeting.job, hello, deadline, own_user_only=not meeting.secret
        )
        super().__init__(sock, rank, meeting.size)
        body = self.welcome(deadline)
        self.secret = derive(meeting.secret, "session", body) if meeting.secret else body


def unpack(kind: Kind, body: bytes, size: int) -> list[bytes]:
    """The values of a store's answer, or its error raised."""
    if kind is Kind.RESULT:
        return parse_result(body, size)
    text = body.decode(errors="replace")
    if kind is Kind.TIMEOUT:
        raise Timeout(text)
    if kind is Kind.LOST:
        raise PeerLost(text)
    raise BootstrapError(f"rank 0's store answered with a frame of kind {kind}: {text[:200]}")


def _listen(meeting: Meeting) -> list[socket.socket]:
    reasons = []
    for port in meeting.ports:
        try:
            return listen_everywhere(port) if meeting.secret else listen_on_loopback(port)
        except OSError as error:
            reasons.append(f"{port}: {error.strerror}")
    raise BootstrapError(
        f"rank 0 can listen on none of the ports {', '.join(reasons)}: choose another MASTER_PORT, or set R2CCL_PORT"
    )


def _is_loopback_name(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host in ("::1", "[::1]")
