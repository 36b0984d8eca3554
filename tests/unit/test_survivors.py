"""The parts of a shrink that need no communicator: messages, knocking, and what is known of a rank's end."""

from __future__ import annotations

import socket
import struct
import types
from collections.abc import Iterator
from typing import Any

import pytest

from r2ccl.bootstrap import door, knock
from r2ccl.bootstrap.channel import MAX_BYTES, Channel, packed
from r2ccl.bootstrap.group import out_off_wire, out_on_wire
from r2ccl.bootstrap.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


class Wire:
    """A channel and the socket at its other end."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.far, near = socket.socketpair()
        near.setblocking(False)
        self.messages: list[Any] = []
        self.ends = 0
        self.channel = Channel(
            loop, near, 3, lambda _channel, message: self.messages.append(message), self._ended, dialled=False
        )

    def _ended(self, _channel: Channel) -> None:
        self.ends += 1

    def feed(self, data: bytes) -> None:
        for i in range(0, len(data), 7):  # in pieces, as a network may
            self.far.sendall(data[i : i + 7])
            self.loop.run_once(0.05)


def test_messages_arrive_whole_and_nothing_beyond_them_is_read(loop: Loop) -> None:
    wire = Wire(loop)
    wire.feed(packed({"out": {}}) + packed({"members": [0, 3]}))
    assert wire.messages == [{"out": {}}, {"members": [0, 3]}]
    sock = wire.channel.take()
    assert sock is not None
    wire.far.sendall(b"next protocol")
    assert sock.recv(100) == b"next protocol"
    assert wire.channel.take() is None
    sock.close()
    wire.far.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        struct.pack("<I", 0),
        struct.pack("<I", MAX_BYTES + 1),
        struct.pack("<I", 4) + b"\xff\xff\xff\xff",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 20_000) + b"[" * 20_000,
    ],
    ids=["empty", "too long", "not text", "a list", "too deep"],
)
def test_nonsense_ends_a_channel(loop: Loop, nonsense: bytes) -> None:
    wire = Wire(loop)
    wire.feed(nonsense)
    assert wire.messages == []
    assert wire.ends == 1
    wire.far.close()


def test_the_end_is_reported_once_and_only_if_the_peer_ends_it(loop: Loop) -> None:
    wire = Wire(loop)
    wire.far.close()
    for _ in range(3):
        loop.run_once(0.01)
    assert wire.ends == 1
    other = Wire(loop)
    other.channel.close()
    other.channel.send({"out": {}})  # harmless
    loop.run_once(0.01)
    assert other.ends == 0
    other.far.close()


def test_reasons_by_rank_survive_the_wire() -> None:
    out = {0: "it is lost", 11: "x" * 500}
    assert out_off_wire(out_on_wire(out), 12) == {0: "it is lost", 11: "x" * 200}


@pytest.mark.parametrize(
    "bad", [None, [], {"x": "y"}, {"12": "y"}, {"-1": "y"}, {"1": 5}, {"1": "\n"}, {"1": "x" * 201}]
)
def test_malformed_reasons_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="out|invalid literal"):
        out_off_wire(bad, 12)


# -- whether a process has ended ---------------------------------------------------------------------------------------


def refused(monkeypatch: pytest.MonkeyPatch, *ways: door.Way, netns: str = "another") -> door.Refused:
    """What a look at the door of rank 1 shows."""
    monkeypatch.setattr(door, "ways_to", lambda _around, _peer: list(ways))
    me, peer = types.SimpleNamespace(netns="mine"), types.SimpleNamespace(netns=netns)
    return door.look_at_door(types.SimpleNamespace(me=me, ranks={1: peer}), 1, 0.3)  # type: ignore[arg-type]


def listening(family: int, address: Any) -> tuple[socket.socket, door.Way]:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.bind(address)
    sock.listen(1)
    return sock, (family, sock.getsockname() if family != socket.AF_UNIX else address)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_a_process_lives_while_its_door_is_open(monkeypatch: pytest.MonkeyPatch, family: int) -> None:
    sock, way = listening(int(family), ("127.0.0.1", 0) if family == socket.AF_INET else "\0r2ccl-test-door")
    assert not refused(monkeypatch, way).addresses
    # A full queue of a process that does not look is no end either.
    crowd = []
    for _ in range(5):
        comer = socket.socket(family, socket.SOCK_STREAM)
        comer.setblocking(False)
        comer.connect_ex(way[1])
        crowd.append(comer)
    assert not refused(monkeypatch, way).addresses
    for comer in crowd:
        comer.close()
    sock.close()
    assert refused(monkeypatch, way).addresses
    assert refused(monkeypatch, way, netns="mine").patience_s == 0
    if family == socket.AF_INET:  # a Unix name is reached within a host only
        assert refused(monkeypatch, way).patience_s != 0


def test_one_way_that_is_open_outweighs_others_that_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    sock, open_way = listening(socket.AF_INET, ("127.0.0.1", 0))
    gone, closed_way = listening(socket.AF_INET, ("127.0.0.2", 0))
    gone.close()
    assert not refused(monkeypatch, closed_way, open_way).addresses
    assert not refused(monkeypatch, open_way, closed_way).addresses
    sock.close()


def test_no_way_to_it_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not refused(monkeypatch).addresses
    assert not refused(monkeypatch, (int(socket.AF_INET), ("255.255.255.255", 9))).addresses


def test_two_addresses_that_refuse_are_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = []
    for address in ("127.0.0.1", "127.0.0.2"):
        sock, way = listening(socket.AF_INET, (address, 0))
        sock.close()
        ways.append(way)
    found = refused(monkeypatch, *ways)
    assert found == door.Refused(frozenset({"127.0.0.1", "127.0.0.2"}), 2)
    assert door.Refusals().prove_end(1, found, 100.0)


ONE, TWO, THREE = (frozenset("abc"[:n]) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("addresses", "asked", "reset", "patience_s"),
    [
        (ONE, 1, True, 0.0),  # the only address there is: a firewall there cuts off everything
        (ONE, 1, False, 5.0),
        (ONE, 2, True, 5.0),  # one firewall resets what stands and refuses what comes
        (TWO, 2, False, 0.0),
        (TWO, 3, True, 1.0),
        (TWO, 4, False, 5.0),  # as many are silent: two firewalls in a network that is broken otherwise
        (THREE, 4, False, 1.0),
    ],
)
def test_how_long_refusals_must_go_on(addresses: frozenset[str], asked: int, reset: bool, patience_s: float) -> None:
    assert door.Refused(addresses, asked, reset=reset).patience_s == patience_s


def test_no_firewall_stands_within_a_host() -> None:
    assert door.Refused(ONE, 1, here=True).patience_s == 0.0
    assert door.Refused(ONE, 2, here=True).patience_s == 5.0  # the other one may have moved elsewhere


@pytest.mark.parametrize("netns", ["mine", "another"])
def test_who_knocks_tells_whether_the_door_was_on_this_host(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, netns: str
) -> None:
    gone, way = listening(socket.AF_INET, ("127.0.0.1", 0))
    gone.close()
    monkeypatch.setattr(knock, "ways_to", lambda _around, _peer: [way])
    me, peer = (types.SimpleNamespace(netns=n, rank=r) for r, n in enumerate(("mine", netns)))
    around = types.SimpleNamespace(me=me, ranks={1: peer}, announcements={1: types.SimpleNamespace(token="t")})
    keys = types.SimpleNamespace(secret=b"s" * 32, job=b"j" * 16)
    heard: list[door.Refused] = []
    knock.Knock(
        loop,
        types.SimpleNamespace(around=around, keys=keys),  # type: ignore[arg-type]
        1,
        5.0,
        lambda _rank, _sock, refused: heard.append(refused),
    )
    for _ in range(100):
        if not heard:
            loop.run_once(0.05)
    assert heard == [door.Refused(frozenset({"127.0.0.1"}), 1, here=netns == "mine")]


def test_most_addresses_that_refuse_are_proof_after_a_second() -> None:
    most, few = door.Refused(TWO, 3), door.Refused(ONE, 3)
    weighed = door.Refusals()
    assert not weighed.prove_end(1, most, 100.0)
    assert not weighed.prove_end(1, few, 100.5)
    assert not weighed.prove_end(1, most, 100.6), "it did not go on"
    assert not weighed.prove_end(1, most, 101.5)
    assert weighed.prove_end(1, most, 101.6)
    assert weighed.prove_end(1, few, 105.0), "five seconds of both"


def test_one_address_that_refuses_may_be_a_firewall() -> None:
    """It is proof only when it goes on, and nothing else is heard meanwhile."""
    one, none = door.Refused(ONE, 2), door.Refused(asked=2)
    weighed = door.Refusals()
    assert not weighed.prove_end(1, one, 100.0)
    assert not weighed.prove_end(1, one, 104.9)
    assert not weighed.prove_end(2, one, 105.5)  # another rank
    assert weighed.prove_end(1, one, 105.1)
    weighed = door.Refusals()
    assert not weighed.prove_end(1, one, 100.0)
    assert not weighed.prove_end(1, none, 103.0)
    assert not weighed.prove_end(1, one, 106.0)
    assert weighed.prove_end(1, one, 111.0)
