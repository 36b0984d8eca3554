"""Environment variables, secrets, addresses, and what ``via`` may be."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from r2ccl.bootstrap import Deadline, SingleBootstrap, env_bootstrap, resolve
from r2ccl.bootstrap.address import (
    address_text,
    is_local,
    listen_on_loopback,
    local_address,
    socket_address,
)
from r2ccl.bootstrap.address import resolve as resolve_host
from r2ccl.bootstrap.secret import load_secret
from r2ccl.bootstrap.tcp import Meeting, TcpClient, candidate_ports
from r2ccl.config import Config
from r2ccl.errors import BootstrapError, InvalidArgument

pytestmark = pytest.mark.timeout(20)
GOOD = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": None}, ["RANK is not set", "torchrun"]),
        ({"RANK": "-1"}, ["RANK='-1'", "from 0 to"]),
        ({"RANK": "two"}, ["RANK='two'"]),
        ({"RANK": "4"}, ["RANK=4 with WORLD_SIZE=4", "0 to WORLD_SIZE - 1 = 3"]),
        ({"WORLD_SIZE": "0"}, ["WORLD_SIZE='0'", "from 1 to"]),
        ({"WORLD_SIZE": "1e3"}, ["WORLD_SIZE='1e3'"]),
        ({"WORLD_SIZE": "\u0664"}, ["WORLD_SIZE="]),
        ({"WORLD_SIZE": None}, ["RANK=1 is set, but WORLD_SIZE is not"]),
        ({"MASTER_ADDR": " "}, ["MASTER_ADDR is not set"]),
        ({"MASTER_PORT": None}, ["MASTER_PORT is not set"]),
        ({"MASTER_PORT": "70000"}, ["MASTER_PORT='70000'", "65535"]),
        ({"MASTER_PORT": "9" * 400}, ["MASTER_PORT="]),
    ],
)
def test_a_bad_variable_is_named_with_its_value_and_the_remedy(change: dict[str, str | None], words: list[str]) -> None:
    env = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(BootstrapError) as caught:
        env_bootstrap(Config(), Deadline(1), env)
    for word in words:
        assert word in str(caught.value)


def test_without_world_size_or_with_one_rank_nothing_is_opened() -> None:
    for env in ({}, {"RANK": "0"}, {**GOOD, "RANK": "0", "WORLD_SIZE": "1"}):
        boot = env_bootstrap(Config(), Deadline(1), env)
        assert isinstance(boot, SingleBootstrap)
        assert len(boot.secret) == 32


def test_candidate_ports() -> None:
    assert candidate_ports(100, skip_first=False) == tuple(range(100, 117))
    assert candidate_ports(100, skip_first=True) == tuple(range(101, 117))
    assert candidate_ports(65534, skip_first=False) == (65534, 65535)
    assert candidate_ports(65535, skip_first=True) == ()


def test_via_is_taken_or_refused() -> None:
    boot = SingleBootstrap(b"x")
    assert resolve(boot, Config(), Deadline(1)) is boot
    with pytest.raises(InvalidArgument, match="via=int: must be None"):
        resolve(3, Config(), Deadline(1))


def test_case_17_a_remote_master_without_a_secret_is_refused_with_the_remedy() -> None:
    # An address kept for documentation: never this machine.
    with pytest.raises(BootstrapError, match=r"198\.51\.100\.77 is another machine.*set R2CCL_SECRET"):
        TcpClient(Meeting("198.51.100.77", (29500,), 2), 1, Deadline(1))


def test_case_17_a_name_without_an_address_is_refused() -> None:
    with pytest.raises(BootstrapError, match=r"MASTER_ADDR='.*' has no address.*use the IP address"):
        resolve_host("does-not-exist.invalid", 1, what="MASTER_ADDR")


def test_case_18_addresses_of_both_families() -> None:
    assert socket_address("10.0.0.1", 5) == (socket.AF_INET, ("10.0.0.1", 5))
    assert socket_address("fe80::1%lo", 5) == (socket.AF_INET6, ("fe80::1", 5, 0, socket.if_nametoindex("lo")))
    assert socket_address("fe80::1%7", 5)[1][3] == 7
    for bad in ("node1", "10.0.0.1:5", "", "1.2.3", "fe80::1%nosuch"):
        with pytest.raises(ValueError, match=r".+"):
            socket_address(bad, 5)
    assert address_text(("::ffff:10.0.0.1", 5, 0, 0)) == "10.0.0.1:5"
    assert address_text(("fe80::1", 5, 0, 3)) == "[fe80::1%3]:5"
    assert resolve_host("[::1]", 9, what="x") == [(socket.AF_INET6, ("::1", 9, 0, 0))]
    assert is_local(("127.0.0.9", 0), socket.AF_INET)
    assert not is_local(("198.51.100.77", 0), socket.AF_INET)
    assert not is_local(("0.0.0.0", 0), socket.AF_INET)


def test_case_18_loopback_listens_on_both_families() -> None:
    sockets = listen_on_loopback(0)
    try:
        port = sockets[0].getsockname()[1]
        for sock in sockets:
            with socket.create_connection((sock.getsockname()[0], port), timeout=2) as peer:
                assert local_address(peer) == sock.getsockname()[0]
        with pytest.raises(OSError, match="in use"):
            listen_on_loopback(port)
    finally:
        for sock in sockets:
            sock.close()


def test_the_secret_comes_from_the_text_or_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_secret(Config()) is None
    assert load_secret(Config(secret="s")) == b"s"
    file = tmp_path / "secret"
    file.write_bytes(b" hush\n")
    file.chmod(0o600)
    with caplog.at_level(logging.WARNING, "r2ccl"):
        assert load_secret(Config(secret_file=str(file))) == b"hush"
        assert not caplog.text
        file.chmod(0o644)
        assert load_secret(Config(secret_file=str(file))) == b"hush"
    assert "chmod 600" in caplog.text
    file.write_bytes(b"\n")
    with pytest.raises(InvalidArgument, match="is empty"):
        load_secret(Config(secret_file=str(file)))
    with pytest.raises(InvalidArgument, match="R2CCL_SECRET_FILE"):
        load_secret(Config(secret_file=os.fspath(tmp_path / "none")))
