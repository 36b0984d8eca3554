"""The handshake as a state machine: who gets in, and that nobody else does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.bootstrap.auth import (
    MAX_HELLO_BYTES,
    ClientHandshake,
    HandshakeError,
    Hello,
    Refusal,
    ServerHandshake,
    derive,
    job_id,
)

pytestmark = pytest.mark.timeout(30)
JOB = job_id("test")
KEY = b"secret"


def accept_all(_hello: Hello) -> str | None:
    return None


def take(machine: ClientHandshake | ServerHandshake) -> bytes:
    data = bytes(machine.outgoing)
    machine.outgoing.clear()
    return data


def feed(machine: ClientHandshake | ServerHandshake, data: bytes) -> None:
    """Exactly what the machine asks for, as long as it lasts."""
    while data and machine.wanted:
        part, data = data[: machine.wanted], data[machine.wanted :]
        machine.receive(part)


def pump(client: ClientHandshake, server: ServerHandshake) -> None:
    """Carry bytes until both are done or one raises."""
    to_server, to_client = bytearray(), bytearray()
    while not (client.done and server.done):
        to_server += take(client)
        to_client += take(server)
        moved = False
        for machine, pipe in ((server, to_server), (client, to_client)):
            if machine.wanted and len(pipe) >= machine.wanted:
                part = bytes(pipe[: machine.wanted])
                del pipe[: len(part)]
                machine.receive(part)
                moved = True
        assert moved or client.outgoing or server.outgoing, "stuck"
    assert not to_server
    assert not to_client


def test_both_sides_agree_on_the_hello() -> None:
    hello = {"for": "rail", "rank": 1, "rail": 2}
    client, server = ClientHandshake(KEY, JOB, hello), ServerHandshake(KEY, JOB, accept_all)
    pump(client, server)
    assert server.hello == hello


def test_case_11_a_wrong_secret_is_refused_and_told() -> None:
    client, server = ClientHandshake(b"other", JOB, {}), ServerHandshake(KEY, JOB, accept_all)
    with pytest.raises(HandshakeError, match="wrong secret"):
        pump(client, server)
    with pytest.raises(HandshakeError, match="R2CCL_SECRET"):
        client.receive(take(server))
    assert server.hello is None
    assert not client.done


def test_another_job_is_told_apart_from_a_wrong_secret() -> None:
    client, server = ClientHandshake(KEY, job_id("else"), {}), ServerHandshake(KEY, JOB, accept_all)
    with pytest.raises(HandshakeError, match="another job"):
        pump(client, server)
    with pytest.raises(HandshakeError, match="another job"):
        client.receive(take(server))


def test_a_refusal_carries_its_reason() -> None:
    client = ClientHandshake(KEY, JOB, {"rank": 9})
    server = ServerHandshake(KEY, JOB, lambda hello: f"rank {hello['rank']} is too large")
    with pytest.raises(Refusal, match="rank 9 is too large"):
        pump(client, server)
    with pytest.raises(Refusal, match="rank 9 is too large"):
        feed(client, take(server))


def test_an_impostor_of_the_server_is_found_out() -> None:
    """It passes for ours until it must prove the secret; the client then refuses."""
    client, impostor = ClientHandshake(KEY, JOB, {}), ServerHandshake(b"guess", JOB, accept_all)
    feed(impostor, take(client))
    client.receive(take(impostor))
    take(client)
    with pytest.raises(HandshakeError, match="does not know the job's secret"):
        client.receive(bytes([0, 0, 0]) + bytes(32))


def test_a_proof_cannot_be_replayed_or_reflected() -> None:
    client, server = ClientHandshake(KEY, JOB, {"rank": 1}), ServerHandshake(KEY, JOB, accept_all)
    first = take(client)
    feed(server, first)
    client.receive(take(server))
    proof = take(client)
    server.receive(proof)
    fresh = ServerHandshake(KEY, JOB, accept_all)
    feed(fresh, first)
    with pytest.raises(HandshakeError, match="wrong secret"):
        fresh.receive(proof)  # another nonce
    with pytest.raises(HandshakeError):
        client.receive(bytes([0, 0, 0]) + proof)  # the client's own proof as the server's


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"\0", b"\xff"])
def test_case_11_junk_is_refused_without_an_answer(junk: bytes) -> None:
    server = ServerHandshake(KEY, JOB, accept_all)
    with pytest.raises(HandshakeError, match="not a peer of r2ccl"):
        server.receive(junk.ljust(server.wanted, b"\n"))
    assert not server.outgoing


def test_lengths_are_bounded_before_they_are_used() -> None:
    with pytest.raises(HandshakeError, match="at most 1024"):
        ClientHandshake(KEY, JOB, {"x": "y" * MAX_HELLO_BYTES})
    first = take(ClientHandshake(KEY, JOB, {}))
    for length in (0, MAX_HELLO_BYTES + 1, 0xFFFF):
        with pytest.raises(HandshakeError, match=f"hello of {length} bytes"):
            feed(ServerHandshake(KEY, JOB, accept_all), first[:10] + length.to_bytes(2, "little") + first[12:])


@given(st.lists(st.integers(0, 1 << 30), max_size=8), st.binary(min_size=1, max_size=200))
@settings(max_examples=60, deadline=None)
def test_case_22_flipped_bytes_never_authenticate(positions: list[int], noise: bytes) -> None:
    client, server = ClientHandshake(KEY, JOB, {"rank": 1}), ServerHandshake(KEY, JOB, accept_all)
    first = bytearray(take(client))
    for position, byte in zip(positions, noise, strict=False):
        first[position % len(first)] ^= byte
    tampered = bytes(first)
    try:
        feed(server, tampered)
        client.receive(take(server))
        server.receive(take(client))
    except HandshakeError:
        return
    assert server.hello == {"rank": 1}, "accepted something that the client did not say"


def test_keys_of_different_purposes_differ() -> None:
    keys = {derive(b"s", "store"), derive(b"s", "mesh"), derive(b"t", "mesh"), derive(b"s", "mesh", b"x")}
    assert len(keys) == 4
    assert len(job_id(1, 2)) == 8
    assert job_id(1, 23) != job_id(12, 3)
