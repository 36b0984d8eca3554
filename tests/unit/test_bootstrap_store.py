"""Rank 0's store and its clients, as threads of one process."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from r2ccl.bootstrap.agree import check_agreed
from r2ccl.bootstrap.base import Bootstrap, Deadline
from r2ccl.bootstrap.env import env_bootstrap
from r2ccl.bootstrap.tcp import Meeting, TcpClient, TcpRank0, tcp_bootstrap
from r2ccl.config import Config
from r2ccl.errors import BootstrapError, Mismatch, PeerLost, R2cclError, Timeout

pytestmark = pytest.mark.timeout(30)


def free_port(count: int = 17) -> int:
    """The first of ``count`` ports in a row that are free now."""
    for base in range(10000 + (time.time_ns() // 1000) % 8000, 20900, 31):
        with ExitStack() as stack:
            try:
                for port in range(base, base + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports")


def meeting(size: int, secret: bytes | None = None, host: str = "127.0.0.1", ports: int = 2) -> Meeting:
    base = free_port()
    return Meeting(host, tuple(range(base, base + ports)), size, secret=secret)


def run_ranks(
    where: Meeting, work: Callable[[Bootstrap], Any], ranks: list[int], within_s: float = 10.0
) -> dict[int, Any]:
    """Result or r2ccl error of ``work(bootstrap)`` by rank."""

    def one(rank: int) -> Any:
        try:
            boot = tcp_bootstrap(where, rank, Deadline(within_s))
        except R2cclError as error:
            return error
        try:
            return work(boot)
        except R2cclError as error:
            return error
        finally:
            boot.close()

    with ThreadPoolExecutor(len(ranks)) as pool:
        return dict(zip(ranks, pool.map(one, ranks), strict=True))


@pytest.mark.parametrize("secret", [None, b"s"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_case_18_all_gather_over_both_families(secret: bytes | None, host: str) -> None:
    def work(boot: Bootstrap) -> tuple[list[bytes], list[bytes], bytes]:
        first = boot.all_gather("init", b"v%d" % boot.rank, Deadline(5))
        return first, boot.all_gather("init", bytes([boot.rank]) * 300_000, Deadline(5)), boot.secret

    found = run_ranks(meeting(3, secret, host), work, [0, 1, 2])
    assert found[0] == found[1] == found[2]
    first, second, key = found[0]
    assert first == [b"v0", b"v1", b"v2"]
    assert second == [bytes([rank]) * 300_000 for rank in range(3)]
    assert len(key) == 32


def test_case_24_every_rank_names_the_missing_one_at_the_deadline() -> None:
    start_s = time.monotonic()
    found = run_ranks(meeting(4), lambda boot: boot.all_gather("init", b"", Deadline(0.6)), [0, 1, 2])
    assert time.monotonic() - start_s < 3
    for error in found.values():
        assert isinstance(error, Timeout)
        assert str(error) == "init: rank 3 of 4 did not arrive within 0.6 s"


def test_case_24_rank_0_missing() -> None:
    where = meeting(2)
    error = run_ranks(where, lambda boot: None, [1], within_s=0.5)[1]
    assert isinstance(error, Timeout)
    assert f"rank 1 of 2 found no store of rank 0 within 0.5 s (127.0.0.1:{where.ports[0]}" in str(error)
    assert "Connection refused" in str(error)


def test_case_24_a_rank_that_dies_fails_the_others_before_their_deadline() -> None:
    def work(boot: Bootstrap) -> list[bytes]:
        boot.all_gather("init", b"", Deadline(10))
        if boot.rank == 2:
            raise BootstrapError("dies here")
        return boot.all_gather("next", b"", Deadline(10))

    start_s = time.monotonic()
    found = run_ranks(meeting(3), work, [0, 1, 2])
    assert time.monotonic() - start_s < 5
    for rank in (0, 1):
        assert isinstance(found[rank], PeerLost)
        assert "next: rank 2 of 3 left before this step" in str(found[rank])


def test_rank_0_that_gives_up_tells_the_waiting_ones_why() -> None:
    def work(boot: Bootstrap) -> list[bytes]:
        return boot.all_gather("init", b"", Deadline(0.4 if boot.rank == 0 else 8))

    found = run_ranks(meeting(3), work, [0, 1])
    assert "rank 2 of 3 did not arrive within 0.4 s" in str(found[0])
    assert isinstance(found[1], Timeout | PeerLost)
    assert "rank 2 of 3" in str(found[1])


def test_case_11_a_wrong_secret_is_named_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    where = meeting(2, b"right", ports=1)
    with caplog.at_level(logging.WARNING, "r2ccl"):
        rank_0 = TcpRank0(where)
        wrong = Meeting(where.host, where.ports, 2, secret=b"wrong")
        with pytest.raises(Timeout, match="R2CCL_SECRET must be equal everywhere"):
            TcpClient(wrong, 1, Deadline(0.5))
        with pytest.raises(Timeout, match="rank 1 of 2"):
            rank_0.all_gather("init", b"", Deadline(0.1))
        rank_0.close()
    assert "bootstrap store: refused 127.0.0.1:" in caplog.text
    assert "wrong secret" in caplog.text


def test_a_rank_number_used_twice_is_refused() -> None:
    where = meeting(3, ports=1)
    rank_0 = TcpRank0(where)
    first = TcpClient(where, 1, Deadline(5))
    with pytest.raises(Timeout, match="rank 1 has joined already"):
        TcpClient(where, 1, Deadline(0.5))
    first.close()
    time.sleep(0.1)
    second = TcpClient(where, 1, Deadline(5))  # one that left without a word may come again
    second.close()
    rank_0.close()


def test_another_world_size_is_refused_with_both() -> None:
    where = meeting(3, ports=1)
    rank_0 = TcpRank0(where)
    other = Meeting(where.host, where.ports, 4)
    with pytest.raises(Timeout, match="WORLD_SIZE=4 there, 3 at rank 0"):
        TcpClient(other, 1, Deadline(0.4))
    rank_0.close()


def test_two_jobs_share_the_same_ports_without_mixing() -> None:
    base = free_port()
    ports = tuple(range(base, base + 4))
    jobs = [
        Meeting("127.0.0.1", ports, 3, run=f"job {n}", secret=secret) for n, secret in enumerate((None, b"a", b"b"))
    ]

    def job(where: Meeting) -> dict[int, Any]:
        return run_ranks(where, lambda b: b.all_gather("init", where.run.encode(), Deadline(8)), [2, 1, 0])

    with ThreadPoolExecutor(3) as pool:
        for where, found in zip(jobs, pool.map(job, jobs), strict=True):
            assert all(values == [where.run.encode()] * 3 for values in found.values()), found


def test_two_communicators_of_one_job_get_stores_of_their_own() -> None:
    where = meeting(2, ports=3)

    def one(rank: int) -> list[bytes]:
        boots = []
        for n in range(2):
            boot = tcp_bootstrap(where, rank, Deadline(8))
            boots.append(boot)
            boot.all_gather("init", b"%d" % n, Deadline(8))
        values = [boot.all_gather("again", b"%d" % n, Deadline(8)) for n, boot in enumerate(boots)]
        keys = {boot.secret for boot in boots}
        for boot in boots:
            boot.close()
        assert len(keys) == 2
        return [b"".join(v) for v in values]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, range(2))) == [[b"00", b"11"]] * 2


def test_torchruns_own_store_on_master_port_is_left_alone() -> None:
    """Its port is skipped when the variable says so, and passed over when another program merely holds it."""
    for agent_store in ("True", "False"):
        base = free_port()
        with socket.create_server(("127.0.0.1", base)) as agent:
            env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(base)}
            env["TORCHELASTIC_USE_AGENT_STORE"] = agent_store
            closing = threading.Event()

            def serve(agent: socket.socket = agent, closing: threading.Event = closing) -> None:
                agent.settimeout(0.1)
                while not closing.is_set():
                    with contextlib.suppress(TimeoutError):
                        agent.accept()[0].close()

            def one(rank: int, env: dict[str, str] = env) -> list[bytes]:
                boot = env_bootstrap(Config(), Deadline(8), {**env, "RANK": str(rank)})
                values = boot.all_gather("init", b"", Deadline(8))
                boot.close()
                return values

            server = threading.Thread(target=serve)
            server.start()
            try:
                with ThreadPoolExecutor(2) as pool:
                    assert list(pool.map(one, range(2))) == [[b"", b""]] * 2
            finally:
                closing.set()
                server.join()


def test_without_a_free_port_rank_0_says_what_to_set() -> None:
    base = free_port()
    with (
        socket.create_server(("127.0.0.1", base)),
        pytest.raises(BootstrapError, match=rf"{base}: Address already in use.*R2CCL_PORT"),
    ):
        TcpRank0(Meeting("127.0.0.1", (base,), 2))


def test_without_a_secret_the_store_is_closed_to_other_machines() -> None:
    where = meeting(2, host="node1.example")
    rank_0 = TcpRank0(where)
    assert {sock.getsockname()[0] for sock in rank_0._store._listeners} <= {"127.0.0.1", "::1"}
    with pytest.raises(Timeout, match="set R2CCL_SECRET"):
        rank_0.all_gather("init", b"", Deadline(0.05))
    rank_0.close()


def test_settings_that_must_agree_are_compared_on_all_ranks() -> None:
    def work(boot: Bootstrap) -> None:
        check_agreed(boot, Config(rails=f"eth{boot.rank}"), Deadline(5))
        check_agreed(boot, Config(chunk_bytes=65536 if boot.rank == 1 else 131072), Deadline(5))

    for error in run_ranks(meeting(3), work, [0, 1, 2]).values():
        assert isinstance(error, Mismatch)
        assert str(error).startswith("Config.chunk_bytes is 65536 at rank 1 and 131072 at rank 0")


def test_no_thread_is_left_behind() -> None:
    run_ranks(meeting(2), lambda boot: boot.all_gather("init", b"", Deadline(5)), [0, 1])
    assert not [thread for thread in threading.enumerate() if thread.name == "r2ccl-store"]
