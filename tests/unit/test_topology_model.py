"""Values that travel between ranks: what is accepted, grouping into hosts, identity."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.config import Config
from r2ccl.errors import BootstrapError
from r2ccl.topology import Cluster, LeftOut, RailInfo, RankInfo
from r2ccl.topology.identity import Identity, read_identity
from r2ccl.topology.model import fabric_of

RAIL = RailInfo("eth0", 0, "10.0.1.2", 24, 4, "10.0.1.0/24", ("fd00::2/64",), 100_000, 1, "0000:3b:00.0", 3, True)
INFO = RankInfo(
    2, "host", "netns", 77, "node", (RAIL, replace(RAIL, name="eth1", index=1)), (LeftOut("lo", "loopback"),)
)


def test_a_description_survives_the_wire() -> None:
    assert RankInfo.from_bytes(INFO.to_bytes(), 2) == INFO


def changed(path: list[Any], value: Any) -> bytes:
    raw = json.loads(INFO.to_bytes())
    at = raw
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(raw).encode()


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (["rank"], 3, "rank"),
        (["rank"], True, "rank"),
        (["host_id"], 5, "host_id"),
        (["host_id"], "x" * 200, "host_id"),
        (["label"], "a\nb", "label"),
        (["pid"], -1, "pid"),
        (["rails"], {}, "rails"),
        (["rails"], [{}] * 65, "rails"),
        (["rails", 0, "address"], "node1", "address"),
        (["rails", 0, "address"], 7, "address"),
        (["rails", 0, "family"], 6, "family"),
        (["rails", 0, "prefix_len"], 33, "10.0.1.2"),
        (["rails", 0, "index"], 1, "index"),
        (["rails", 0, "others"], ["10.0.0.1"], ""),
        (["rails", 0, "others"], [None], ""),
        (["rails", 0, "speed_mbps"], -1, "speed_mbps"),
        (["rails", 0, "speed_mbps"], 1.5, "speed_mbps"),
        (["rails", 0, "routed"], 1, "routed"),
        (["rails", 0, "state"], "sideways", "state"),
        (["left_out", 0], "lo", "left_out"),
    ],
)
def test_a_malformed_description_is_refused_with_rank_and_field(path: list[Any], value: Any, word: str) -> None:
    with pytest.raises(BootstrapError, match=f"rank 2 sent .*{word}"):
        RankInfo.from_bytes(changed(path, value), 2)


@given(st.one_of(st.binary(max_size=60), st.from_type(type(None)).map(lambda _: b"[" * 100_000)))
def test_case_22_any_bytes_are_refused_cleanly(data: bytes) -> None:
    with pytest.raises(BootstrapError):
        RankInfo.from_bytes(data, 0)


def test_ranks_are_grouped_by_host_identity_whatever_their_order_and_number() -> None:
    ids = ["a", "b", "a", "c", "b", "a"]
    cluster = Cluster.of([replace(INFO, rank=rank, host_id=host) for rank, host in enumerate(ids)])
    assert [host.ranks for host in cluster.hosts] == [(0, 2, 5), (1, 4), (3,)]
    assert [cluster.local_rank(rank) for rank in range(6)] == [0, 0, 1, 0, 1, 2]
    assert [cluster.local_size(rank) for rank in range(6)] == [3, 2, 3, 1, 2, 3]
    assert cluster.host_of(4).index == 1
    assert cluster.same_host(0, 5)
    assert not cluster.same_host(0, 1)
    assert not cluster.is_uniform
    assert cluster.size == 6


def test_fabrics_and_networks() -> None:
    assert fabric_of("10.1.2.3", 20) == "10.1.0.0/20"
    assert fabric_of("fe80::1%eth0", 64) == "fe80::/64"
    assert RAIL.networks == {"10.0.1.0/24": "10.0.1.2", "fd00::/64": "fd00::2"}


def test_case_17_identity_is_what_is_shared_and_never_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    own = read_identity(Config())
    assert own == read_identity(Config())
    assert own.netns > 0
    same = {Identity("b", 1, 2).host_id, Identity("b", 1, 2).host_id}
    other = {Identity("c", 1, 2).host_id, Identity("b", 3, 2).host_id, Identity("b", 1, 4).host_id}
    assert len(same) == 1
    assert len(same | other) == 4
    assert Identity("b", 1, 2).netns_id == Identity("b", 1, 4).netns_id
    assert read_identity(Config(host_id="mine")).host_id == "mine"
    assert read_identity(Config(host_id="mine")).netns_id == own.netns_id
