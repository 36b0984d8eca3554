"""Deadlines, names of ranks, the store's frames, and its book-keeping."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.bootstrap.agree import check_agreed
from r2ccl.bootstrap.base import MAX_TAG_BYTES, Bootstrap, Deadline, SingleBootstrap, check_value, name_ranks
from r2ccl.bootstrap.gathers import Gathers
from r2ccl.bootstrap.mesh import connect_mesh
from r2ccl.bootstrap.wire import (
    HEAD,
    GatherRequest,
    Kind,
    frame,
    pack_gather,
    pack_result,
    parse_gather,
    parse_head,
    parse_result,
)
from r2ccl.config import Config
from r2ccl.errors import BootstrapError, InvalidArgument, Timeout
from r2ccl.topology.discover import describe_self

pytestmark = pytest.mark.timeout(20)


def test_deadline_counts_down_and_says_what_was_waited_for() -> None:
    deadline = Deadline(100)
    assert 99 < deadline.remaining() <= 100
    assert not deadline.expired
    assert deadline.at_most(5).remaining() <= 5
    assert deadline.at_most(500).remaining() <= 100
    deadline.check("nothing")
    with pytest.raises(Timeout, match=r"init: rank 3 did not arrive within 0 s"):
        Deadline(0).check("init: rank 3 did not arrive")
    with pytest.raises(InvalidArgument, match="nan"):
        Deadline(float("nan"))


def test_names_of_ranks_are_bounded() -> None:
    assert name_ranks([3], 4) == "rank 3 of 4"
    assert name_ranks([1, 2], 4) == "ranks 1, 2 of 4"
    assert name_ranks(list(range(100)), 200).endswith("15 and 84 more of 200")


def test_a_world_of_one_rank() -> None:
    boot = SingleBootstrap(b"k")
    assert isinstance(boot, Bootstrap)
    assert boot.all_gather("x", b"v", Deadline(1)) == [b"v"]


def test_values_that_are_too_large_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="1048577 bytes"):
        check_value("x", bytes((1 << 20) + 1))
    with pytest.raises(InvalidArgument, match="tag"):
        check_value("x" * (MAX_TAG_BYTES + 1), b"")


@given(st.text(min_size=1, max_size=60), st.binary(max_size=300), st.integers(0, 10**6), st.integers(0, 10**6))
def test_case_22_gather_frames_survive_the_wire(tag: str, value: bytes, left_ms: int, given_ms: int) -> None:
    tag = tag.encode(errors="replace").decode()
    request = GatherRequest(tag, value, left_ms / 1000, given_ms / 1000)
    packed = frame(Kind.GATHER, pack_gather(request))
    length, kind = parse_head(packed[: HEAD.size], len(packed))
    assert (length, kind) == (len(packed) - HEAD.size, Kind.GATHER)
    assert parse_gather(packed[HEAD.size :]) == request


@given(st.binary(max_size=64))
def test_case_22_any_bytes_are_refused_or_parsed_but_never_break(data: bytes) -> None:
    """Bytes from 128 up included: the wire format has no signs and one byte order."""
    for parse in (parse_gather, lambda d: parse_result(d, 3), lambda d: parse_head(d[:5].ljust(5, b"\xff"), 100)):
        with contextlib.suppress(BootstrapError):
            parse(data)


def test_case_22_numbers_are_little_endian_whatever_the_machine() -> None:
    assert frame(Kind.RESULT, b"\x80\xff") == bytes([2, 0, 0, 0, 2, 0x80, 0xFF])
    assert pack_result([b"\xff", b""]) == bytes([1, 0, 0, 0, 0xFF, 0, 0, 0, 0])
    assert parse_result(pack_result([b"\xff", b"", b"abc"]), 3) == [b"\xff", b"", b"abc"]


def test_a_frame_beyond_the_limit_is_refused_before_it_is_stored() -> None:
    with pytest.raises(BootstrapError, match="4294967295"):
        parse_head(b"\xff\xff\xff\xff\x01", 1000)


def request(tag: str, value: bytes = b"") -> GatherRequest:
    return GatherRequest(tag, value, 5.0, 5.0)


def test_gathers_complete_with_the_last_value_and_keep_repeated_tags_apart() -> None:
    gathers = Gathers(2)
    assert gathers.add(1, request("a", b"one")) == []
    assert gathers.add(0, request("b")) == []  # another step: both wait
    ((ranks, kind, body),) = gathers.add(0, request("a", b"zero"))
    assert sorted(ranks) == [0, 1]
    assert (kind, parse_result(body, 2)) == (Kind.RESULT, [b"zero", b"one"])
    assert gathers.add(1, request("a", b"again")) == []  # its second use of the tag waits for rank 0's second
    assert gathers.waits(1)


def test_case_24_an_expired_gather_names_missing_and_late_ranks() -> None:
    gathers = Gathers(4)
    gathers.joined(2)
    gathers.add(0, request("init"))
    gathers.add(1, request("init"))
    ((ranks, kind, body),) = gathers.expire(0)
    assert (ranks, kind) == ([0], Kind.TIMEOUT)
    assert body.decode() == (
        "init: ranks 2, 3 of 4 did not arrive within 5 s (rank 2 of 4 connected, but not this far)"
    )
    assert gathers.expire(0) == []
    assert gathers.waits(1)


def test_case_24_a_rank_that_leaves_fails_only_the_steps_that_need_it() -> None:
    gathers = Gathers(3)
    gathers.add(1, request("init", b"v"))
    assert gathers.left(1, "closed its connection") == []  # its value is there
    assert gathers.add(2, request("init")) == []
    assert gathers.add(0, request("init"))[0][1] is Kind.RESULT
    ((ranks, kind, body),) = gathers.add(0, request("next"))
    assert (ranks, kind) == ([0], Kind.LOST)
    assert "rank 1 of 3 left before this step: rank 1 closed its connection" in body.decode()


def test_a_mesh_of_one_rank_is_empty() -> None:
    boot, config = SingleBootstrap(b"k"), Config()
    me = describe_self(config, 0)
    check_agreed(boot, config)
    mesh = connect_mesh(boot, config, me, [me], Deadline(5))
    assert (mesh.oob, mesh.links, mesh.shm, mesh.missing) == ({}, [], {}, [])
    mesh.close()
    mesh.close()
