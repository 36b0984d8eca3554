"""Listening sockets under attack: strangers cost bounded time and memory, and real peers never wait for them."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from r2ccl.bootstrap.acceptor import Acceptor
from r2ccl.bootstrap.address import listen_on
from r2ccl.bootstrap.auth import ClientHandshake, Hello, job_id
from r2ccl.bootstrap.dial import Dial
from r2ccl.bootstrap.loop import Loop
from r2ccl.bootstrap.user import other_user

pytestmark = pytest.mark.timeout(20)
JOB = job_id("test")
KEY = b"secret"
HANDSHAKE_S = 0.3


class Server:
    """An acceptor in the test's own thread; ``run`` drives it together with the dials of the test."""

    def __init__(self, limit: int = 8, own_user_only: bool = False) -> None:
        self.loop = Loop()
        self.listener = listen_on(socket.AF_INET, ("127.0.0.1", 0), 128)
        self.address = self.listener.getsockname()
        self.peers: list[tuple[socket.socket, Hello]] = []
        self.acceptor = Acceptor(
            self.loop,
            KEY,
            JOB,
            lambda hello: None,
            self._on_peer,
            purpose="test",
            limit=limit,
            handshake_s=HANDSHAKE_S,
            own_user_only=own_user_only,
        )
        self.acceptor.listen(self.listener)

    def _on_peer(self, sock: socket.socket, hello: Hello, listener: socket.socket) -> None:
        assert listener is self.listener
        self.peers.append((sock, hello))

    def run(self, until: Callable[[], bool], limit_s: float = 5.0) -> float:
        """Seconds until the condition held; fails after ``limit_s``."""
        start_s = time.monotonic()
        while not until():
            assert time.monotonic() - start_s < limit_s, "the condition never came true"
            self.loop.run_once(0.02)
        return time.monotonic() - start_s

    def dial(self, key: bytes = KEY, hello: Hello | None = None) -> list[tuple[socket.socket | None, str | None]]:
        ended: list[tuple[socket.socket | None, str | None]] = []
        machine = ClientHandshake(key, JOB, hello or {"rank": 1})
        Dial(self.loop, socket.AF_INET, self.address, machine, lambda sock, why: ended.append((sock, why)))
        return ended

    def stranger(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=5)

    def close(self) -> None:
        self.acceptor.close()
        self.listener.close()
        for sock, _hello in self.peers:
            sock.close()
        self.loop.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def joins(server: Server) -> float:
    """A real peer connects; seconds that it took."""
    before = len(server.peers)
    ended = server.dial()
    took_s = server.run(lambda: bool(ended) and len(server.peers) > before)
    sock = ended[0][0]
    assert sock is not None, ended
    server.peers[-1][0].setblocking(True)
    sock.setblocking(True)
    server.peers[-1][0].sendall(b"after the handshake")
    assert sock.recv(64) == b"after the handshake"
    sock.close()
    return took_s


def test_case_11_silent_strangers_do_not_delay_a_real_peer(server: Server) -> None:
    silent = [server.stranger() for _ in range(6)]
    assert joins(server) < HANDSHAKE_S
    server.run(lambda: server.acceptor.pending == 0)
    for sock in silent:
        assert sock.recv(1) == b""  # dropped at the deadline
        sock.close()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(4096), b"r2ccl\0hs" + b"\xff" * 500])
def test_case_11_junk_is_dropped_at_once(server: Server, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "r2ccl"):
        sock = server.stranger()
        sock.sendall(data)
        server.run(lambda: server.acceptor.pending == 1, 1)
        assert server.run(lambda: server.acceptor.pending == 0) < HANDSHAKE_S
        joins(server)
    assert f"refused 127.0.0.1:{sock.getsockname()[1]}" in caplog.text
    sock.close()


def test_case_11_reset_and_plain_close_are_forgotten(server: Server) -> None:
    for _ in range(5):
        sock = server.stranger()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()  # RST
        server.stranger().close()
    joins(server)
    server.run(lambda: server.acceptor.pending == 0)


def test_case_11_a_slow_loris_is_cut_off_by_the_deadline_of_the_whole_handshake(server: Server) -> None:
    sock = server.stranger()
    start_s = time.monotonic()
    dropped = False
    first = bytes(ClientHandshake(KEY, JOB, {}).outgoing)
    for byte in first:
        try:
            sock.sendall(bytes([byte]))
        except OSError:
            dropped = True
            break
        time.sleep(0.02)
        server.loop.run_once(0)
    assert dropped
    assert time.monotonic() - start_s < 4 * HANDSHAKE_S
    sock.close()
    joins(server)


def test_case_11_a_flood_is_bounded_and_the_server_stays_usable(server: Server) -> None:
    flood = []
    for _ in range(100):
        flood.append(server.stranger())
        server.loop.run_once(0.01)
        assert server.acceptor.pending <= 8
    joins(server)
    for sock in flood:
        sock.close()


def test_case_11_a_wrong_secret_is_logged_with_the_address_and_only_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "r2ccl"):
        for _ in range(3):
            ended = server.dial(key=b"wrong")
            server.run(lambda ended=ended: bool(ended))
            assert ended[0][0] is None
            assert "R2CCL_SECRET" in str(ended[0][1])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, lines
    assert "refused 127.0.0.1:" in lines[0]
    assert "wrong secret" in lines[0]


def test_a_dial_to_nobody_fails_with_the_systems_words(server: Server) -> None:
    free = listen_on(socket.AF_INET, ("127.0.0.1", 0), 1)
    server.address = free.getsockname()
    free.close()
    ended = server.dial()
    server.run(lambda: bool(ended))
    assert ended == [(None, "Connection refused")]


def test_a_dial_to_a_mute_program_ends(server: Server) -> None:
    mute = socket.create_server(("127.0.0.1", 0))
    server.address = mute.getsockname()
    ended: list[tuple[socket.socket | None, str | None]] = []
    machine = ClientHandshake(KEY, JOB, {})
    Dial(server.loop, socket.AF_INET, server.address, machine, lambda s, why: ended.append((s, why)), handshake_s=0.2)
    server.run(lambda: bool(ended))
    assert "did not finish the handshake within 0.2 s" in str(ended[0][1])
    mute.close()


def test_other_users_of_the_machine_are_told_apart(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("127.0.0.1", "::1"):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family) as listener:
            with socket.create_connection(listener.getsockname()[:2]) as client:
                served, _ = listener.accept()
                with served:
                    assert other_user(served) is None
                    assert other_user(client) is None
                    monkeypatch.setattr("os.getuid", lambda: 123456)
                    assert "this rank as user 123456" in str(other_user(served))
                    assert "this rank as user 123456" in str(other_user(client))
                    monkeypatch.undo()
    one, two = socket.socketpair()
    with one, two:
        assert other_user(one) is None


def test_without_a_secret_another_user_stays_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(own_user_only=True)
    try:
        joins(server)
        monkeypatch.setattr("os.getuid", lambda: 123456)
        with caplog.at_level(logging.WARNING, "r2ccl"):
            ended = server.dial()
            server.run(lambda: bool(ended) and "this rank as user 123456" in caplog.text)
        assert len(server.peers) == 1
    finally:
        server.close()
