"""Whole starts with real processes: the mesh on loopback, missing ranks and rails, strangers, what is left behind."""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from r2ccl.bootstrap import Deadline, resolve
from r2ccl.bootstrap.agree import check_agreed
from r2ccl.bootstrap.mesh import LinkEnd, Mesh, connect_mesh, relink
from r2ccl.bootstrap.shared import segment_bytes
from r2ccl.config import Config
from r2ccl.topology import RankInfo
from r2ccl.topology.discover import describe_self

pytestmark = pytest.mark.timeout(60)
FORK = multiprocessing.get_context("fork")
THREE_RAILS = "127.0.0.1,127.0.0.2,127.0.0.3"
_PORTS = iter(range(21000 + os.getpid() % 400 * 20, 32000, 20))
Configure = Callable[[int], Config]
Work = Callable[[Mesh, list[RankInfo]], Any]


def start(rank: int, size: int, port: int, config: Config, work: Work, keep_listening: bool, host: str) -> Any:
    """One rank: everything that ``init`` does before the native core takes over."""
    deadline = Deadline(config.init_timeout_s)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR=host, MASTER_PORT=str(port))
    boot = resolve(None, config, deadline)
    try:
        me = describe_self(config, rank)
        answers = boot.all_gather("init", me.to_bytes(), deadline)
        ranks = [RankInfo.from_bytes(answer, r) for r, answer in enumerate(answers)]
        check_agreed(boot, config, deadline)
        mesh = connect_mesh(boot, config, me, ranks, deadline, keep_listening=keep_listening)
        try:
            result = work(mesh, ranks)
            boot.all_gather("done", b"", Deadline(10))
            return result
        finally:
            mesh.close()
    finally:
        boot.close()


@contextmanager
def job(
    size: int,
    configure: Configure,
    work: Work,
    ranks: list[int] | None = None,
    keep_listening: bool = False,
    port: int = 0,
    host: str = "127.0.0.1",
) -> Iterator[tuple[dict[int, Any], dict[int, Connection]]]:
    """Processes of the given ranks and the pipes by which each sends its result or error and its warnings."""
    port = port or next(_PORTS)
    pipes: dict[int, Connection] = {}
    processes: dict[int, Any] = {}

    def child(rank: int, pipe: Connection) -> None:
        lines: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("r2ccl").addHandler(handler)
        try:
            result = start(rank, size, port, configure(rank), work, keep_listening, host)
        except Exception as error:
            result = error
        pipe.send((result, lines))

    for rank in range(size) if ranks is None else ranks:
        pipes[rank], end = FORK.Pipe()
        processes[rank] = FORK.Process(target=child, args=(rank, end), daemon=True)
        processes[rank].start()
        end.close()
    try:
        yield processes, pipes
    finally:
        for process in processes.values():
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(5)


def results(pipes: dict[int, Connection], limit_s: float = 20.0) -> tuple[dict[int, Any], dict[int, list[str]]]:
    """(result or error, warnings) by rank."""
    found, logs = {}, {}
    end_s = time.monotonic() + limit_s
    for rank, pipe in pipes.items():
        assert pipe.poll(max(0.0, end_s - time.monotonic())), f"rank {rank} does not answer"
        found[rank], logs[rank] = pipe.recv()
    return found, logs


def run(size: int, configure: Configure, work: Work, **rest: Any) -> tuple[dict[int, Any], dict[int, list[str]]]:
    with job(size, configure, work, **rest) as (_processes, pipes):
        return results(pipes)


def talk(fd: int, text: str) -> str:
    """Send a text to the other end and return its text: shows which socket is joined to which."""
    assert not os.get_blocking(fd), "descriptors are handed over non-blocking"
    os.set_blocking(fd, True)
    sock = socket.socket(fileno=os.dup(fd))
    sock.settimeout(5)
    with sock:
        sock.sendall(text.encode().ljust(32))
        return sock.recv(32, socket.MSG_WAITALL).decode().strip()


def check_mesh(mesh: Mesh, ranks: list[RankInfo], me: int) -> dict[str, Any]:
    """Use every connection, and check that the other end is what it says."""
    families = {}
    for peer, fd in mesh.oob.items():
        assert talk(fd, f"oob {me}-{peer}") == f"oob {peer}-{me}"
        with socket.socket(fileno=os.dup(fd)) as sock:
            families[peer] = "unix" if sock.family == socket.AF_UNIX else "tcp"
    rails = {}
    for link in mesh.links:
        answer = talk(link.fd, f"{me}.{link.my_rail}-{link.peer}.{link.peer_rail}")
        assert answer == f"{link.peer}.{link.peer_rail}-{me}.{link.my_rail}"
        with socket.socket(fileno=os.dup(link.fd)) as sock:
            assert sock.getsockname()[0] == ranks[me].rails[link.my_rail].address
            assert sock.getpeername()[0] == ranks[link.peer].rails[link.peer_rail].address
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        rails.setdefault(link.peer, []).append((link.my_rail, link.peer_rail))
    for peer, fd in mesh.shm.items():
        size = segment_bytes(Config())
        assert os.fstat(fd).st_size == size
        with mmap.mmap(fd, size) as memory:
            memory[me * 8 : me * 8 + 8] = b"rank %3d" % me
            talk(mesh.oob[peer], "written")
            assert memory[peer * 8 : peer * 8 + 8] == b"rank %3d" % peer
            talk(mesh.oob[peer], "read")
    return {"oob": families, "rails": rails, "shm": sorted(mesh.shm), "missing": mesh.missing}


def checked(mesh: Mesh, ranks: list[RankInfo]) -> dict[str, Any]:
    me = int(os.environ["RANK"])
    return check_mesh(mesh, ranks, me)


def test_one_host_shares_memory_and_talks_over_unix_sockets() -> None:
    found, logs = run(4, lambda rank: Config(init_timeout_s=8), checked)
    for rank, result in found.items():
        others = [peer for peer in range(4) if peer != rank]
        assert result == {"oob": dict.fromkeys(others, "unix"), "rails": {}, "shm": others, "missing": []}, result
    assert not any(logs.values())


def test_two_hosts_with_three_rails_each() -> None:
    def configure(rank: int) -> Config:
        return Config(rails=THREE_RAILS, host_id=f"host {rank // 2}", init_timeout_s=8)

    found, _logs = run(4, configure, checked)
    for rank, result in found.items():
        mate = rank ^ 1
        remote = [peer for peer in range(4) if peer // 2 != rank // 2]
        assert result["oob"] == {mate: "unix", **dict.fromkeys(remote, "tcp")}
        assert result["rails"] == {peer: [(0, 0), (1, 1), (2, 2)] for peer in remote}
        assert result["shm"] == [mate]
        assert result["missing"] == []


@pytest.mark.parametrize("rails", [THREE_RAILS, "", "::1"])
def test_one_host_without_shared_memory_uses_rails(rails: str) -> None:
    found, _logs = run(2, lambda rank: Config(rails=rails, shm=False, init_timeout_s=8), checked)
    for rank, result in found.items():
        assert result["shm"] == []
        assert result["rails"][1 - rank][: 3 if rails == THREE_RAILS else 1]


def test_case_18_everything_over_ipv6() -> None:
    def configure(rank: int) -> Config:
        return Config(rails="::1", host_id=str(rank), secret="s", init_timeout_s=8, oob_interface="::1")

    found, _logs = run(2, configure, checked, host="::1")
    assert found[0]["rails"] == {1: [(0, 0)]}, found
    assert found[0]["oob"] == {1: "tcp"}


def test_case_15_hosts_with_other_numbers_of_rails_use_the_common_ones() -> None:
    def configure(rank: int) -> Config:
        return Config(rails=THREE_RAILS if rank else "127.0.0.8,127.0.0.9", host_id=str(rank), init_timeout_s=8)

    found, _logs = run(2, configure, checked)
    assert found[0]["rails"] == {1: [(0, 0), (1, 1)]}, found
    assert found[1]["rails"] == {0: [(0, 0), (1, 1)]}


def test_case_15_no_common_rail_is_an_error_with_both_hosts_and_all_candidates() -> None:
    def configure(rank: int) -> Config:
        return Config(rails="127.0.0.1" if rank else "::1", host_id=f"host {rank}", init_timeout_s=8)

    found, _logs = run(2, configure, checked)
    for error in found.values():
        assert type(error).__name__ == "NoRails", error
        for word in ("(rank 0)", "(rank 1)", "127.0.0.1", "::1", "lo", "R2CCL_RAILS"):
            assert word in str(error)


def test_case_16_a_rail_that_cannot_be_reached_is_a_warning_and_a_degraded_start() -> None:
    """Rank 0 cannot listen on its third address; the two others connect and the job starts."""

    def configure(rank: int) -> Config:
        config = Config(rails=THREE_RAILS, host_id=str(rank), init_timeout_s=4)
        if rank == 0:
            import r2ccl.bootstrap.listeners as listeners

            original = listeners.listen_on

            def refuse_one(family: int, address: Any, backlog: int, **rest: Any) -> socket.socket:
                if address[0] == "127.0.0.3":
                    raise OSError(99, "Cannot assign requested address")
                return original(family, address, backlog, **rest)

            listeners.listen_on = refuse_one  # in this process only
        return config

    start_s = time.monotonic()
    found, logs = run(2, configure, checked)
    assert time.monotonic() - start_s < 6
    for rank in range(2):
        assert found[rank]["rails"] == {1 - rank: [(0, 0), (1, 1)]}, found
        ((peer, mine, theirs, reason),) = found[rank]["missing"]
        assert (peer, mine, theirs) == (1 - rank, 2, 2)
        assert reason
        assert any("degraded start: no link from 127.0.0.3" in line for line in logs[rank]), logs
    assert "cannot listen on 127.0.0.3: Cannot assign requested address" in found[1]["missing"][0][3]


def test_case_24_a_missing_rank_is_named_by_all_others_at_the_deadline() -> None:
    start_s = time.monotonic()
    found, _logs = run(4, lambda rank: Config(init_timeout_s=1), checked, ranks=[0, 1, 2])
    assert time.monotonic() - start_s < 5
    assert {str(error) for error in found.values()} == {"init: rank 3 of 4 did not arrive within 1 s"}


def test_case_23_24_a_rank_killed_during_the_start_is_named_and_nobody_waits_for_it() -> None:
    def work(mesh: Mesh, ranks: list[RankInfo]) -> None:
        raise AssertionError("the start cannot succeed")

    def configure(rank: int) -> Config:
        if rank == 2:
            import r2ccl.bootstrap.mesh as module

            def die(*_args: Any) -> Any:
                os.kill(os.getpid(), signal.SIGKILL)

            module.settle = die  # after its connections are up, before the last step
        return Config(rails=THREE_RAILS, host_id=str(rank), init_timeout_s=15)

    start_s = time.monotonic()
    with job(3, configure, work) as (_processes, pipes):
        pipes.pop(2)
        found, _logs = results(pipes)
    assert time.monotonic() - start_s < 8
    for error in found.values():
        assert type(error).__name__ == "PeerLost", error
        assert "connect: rank 2 of 3 left before this step" in str(error)


def test_case_11_a_port_scanner_during_the_start_disturbs_nobody() -> None:
    """It sends junk, nothing, or a reset to every port that listens, from before the start until its end."""
    own = _listening_ports()
    stop = threading.Event()
    touched: set[int] = set()

    def scan() -> None:
        held: list[socket.socket] = []
        turn = 0
        while not stop.is_set():
            for port in _listening_ports() - own:
                turn += 1
                try:
                    sock = socket.create_connection(("127.0.0.1", port), timeout=0.2)
                except OSError:
                    continue
                touched.add(port)
                if turn % 3 == 0:
                    sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
                elif turn % 3 == 1:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    sock.close()
                    continue
                held.append(sock)
                held, old = held[-200:], held[:-200]
                for sock in old:
                    sock.close()
            time.sleep(0.002)
        for sock in held:
            sock.close()

    def configure(rank: int) -> Config:
        time.sleep(0.4 * rank)  # the store and the listeners of the early ranks are scanned meanwhile
        return Config(rails=THREE_RAILS, host_id=str(rank), init_timeout_s=12)

    scanner = threading.Thread(target=scan)
    with job(3, configure, checked) as (_processes, pipes):
        scanner.start()
        try:
            found, logs = results(pipes)
        finally:
            stop.set()
            scanner.join(10)
    for rank, result in found.items():
        assert result["rails"] == {p: [(0, 0), (1, 1), (2, 2)] for p in range(3) if p != rank}, result
        assert result["missing"] == []
    assert touched, "the scanner never met a port"
    assert any("refused 127.0.0.1:" in line for lines in logs.values() for line in lines)


def _listening_ports() -> set[int]:
    ports = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[1].startswith("0100007F"):
            ports.add(int(fields[1].partition(":")[2], 16))
    return ports


def test_case_11_a_rank_with_the_wrong_secret_stays_out_and_is_logged() -> None:
    def configure(rank: int) -> Config:
        return Config(secret="wrong" if rank == 2 else "right", init_timeout_s=1)

    found, logs = run(3, configure, checked)
    assert "rank 2 of 3 did not arrive within 1 s" in str(found[0])
    assert "R2CCL_SECRET" in str(found[2])
    assert any("refused 127.0.0.1:" in line and "wrong secret" in line for line in logs[0]), logs


def test_two_jobs_at_once_on_the_same_master_port() -> None:
    port = next(_PORTS)

    def configured(secret: str) -> Configure:
        return lambda rank: Config(rails=THREE_RAILS, host_id=str(rank), secret=secret, init_timeout_s=12)

    with (
        job(2, configured("a"), checked, port=port) as (_one, first),
        job(2, configured("b"), checked, port=port) as (_two, second),
    ):
        for pipes in (first, second):
            found, _logs = results(pipes)
            assert found[0]["rails"] == {1: [(0, 0), (1, 1), (2, 2)]}, found


def test_nothing_is_left_in_dev_shm_after_sigkill_and_no_descriptor_after_close() -> None:
    before = set(os.listdir("/dev/shm"))

    def work(mesh: Mesh, ranks: list[RankInfo]) -> None:
        for fd in mesh.shm.values():
            os.pwrite(fd, b"x", 100)
        time.sleep(30)

    with job(2, lambda rank: Config(init_timeout_s=8), work) as (processes, _pipes):
        time.sleep(0.8)
        assert {p for p in os.listdir("/dev/shm") if p.startswith("r2ccl")} <= before
        for process in processes.values():
            os.kill(process.pid, signal.SIGKILL)
    assert {p for p in os.listdir("/dev/shm") if p.startswith("r2ccl")} <= before

    def configure(rank: int) -> Config:
        os.environ["FDS"] = str(len(os.listdir("/proc/self/fd")))
        return Config(rails=THREE_RAILS, host_id=str(rank // 2), init_timeout_s=8)

    def count(mesh: Mesh, ranks: list[RankInfo]) -> int:
        """Descriptors beyond those of before that are neither the mesh's nor the bootstrap's."""
        held = len(mesh.oob) + len(mesh.links) + len(mesh.shm)
        return len(os.listdir("/proc/self/fd")) - int(os.environ["FDS"]) - held

    found, _logs = run(3, configure, count)
    store = 2 + 1 + 1 + 2 + 2  # rank 0: listeners, selector, the other ranks, its own wake-up pair
    assert found[1] == found[2] == 1, found
    assert 0 < found[0] <= store


def test_links_can_be_dialled_again_through_listeners_that_were_kept_open() -> None:
    def work(mesh: Mesh, ranks: list[RankInfo]) -> list[tuple[int, int]]:
        me = int(os.environ["RANK"])
        lost = next(link for link in mesh.links if link.my_rail == 1)
        os.close(lost.fd)
        mesh.links.remove(lost)
        assert mesh.around is not None
        assert mesh.listeners is not None
        bound = {sock.getsockname()[0] for sock in mesh.listeners.sockets}
        assert bound <= {"127.0.0.1", "127.0.0.2", "127.0.0.3", "::1"}, "a job on one machine listens on loopback only"
        assert "secret" not in repr(mesh)
        fresh: list[LinkEnd] = []
        relink(mesh.around, [(1 - me, 1, 1)], Deadline(5), fresh.append)
        mesh.links += fresh
        check_mesh(mesh, ranks, me)
        return [(link.my_rail, link.peer_rail) for link in fresh]

    def configure(rank: int) -> Config:
        return Config(rails=THREE_RAILS, host_id=str(rank), init_timeout_s=8)

    found, _logs = run(2, configure, work, keep_listening=True)
    assert found == {0: [(1, 1)], 1: [(1, 1)]}


def test_a_link_is_handed_over_at_once_and_again_when_the_dialler_begins_anew() -> None:
    """Case of a soak: an end that waited for another link kept this one to itself, and then refused the next one; the
    dialler saw no sign of life on the first, gave it up, and so on for ever."""

    def work(mesh: Mesh, ranks: list[RankInfo]) -> list[float]:
        me = int(os.environ["RANK"])
        assert mesh.around is not None
        times: list[float] = []

        def on_up(end: LinkEnd) -> None:
            assert (end.my_rail, end.peer_rail) == (1, 1)
            times.append(time.monotonic() - begin)
            os.close(end.fd)

        begin = time.monotonic()
        if me == 0:
            relink(mesh.around, [(1, 1, 1), (1, 2, 2)], Deadline(3), on_up)  # nobody dials the second one
        else:
            for _ in range(3):
                relink(mesh.around, [(0, 1, 1)], Deadline(2), on_up)
        return times

    def configure(rank: int) -> Config:
        return Config(rails=THREE_RAILS, host_id=str(rank), init_timeout_s=8)

    found, logs = run(2, configure, work, keep_listening=True)
    assert [len(times) for times in found.values()] == [3, 3], found
    assert max(found[0]) < 2.5, "before the run is over"
    assert not [line for line in logs[0] if "a later attempt was quicker" in line], "a later run is no earlier attempt"


def test_ranks_of_one_host_must_agree_on_shared_memory() -> None:
    def configure(rank: int) -> Config:
        return Config(shm=rank == 0, rails=THREE_RAILS, init_timeout_s=5)

    found, _logs = run(2, configure, checked)
    for error in found.values():
        assert type(error).__name__ == "Mismatch", error
        assert "Config.shm is False at rank 1 and True at rank 0" in str(error)


def test_case_07_rails_that_exist_but_do_not_connect_are_an_error_on_every_rank() -> None:
    def configure(rank: int) -> Config:
        if rank == 0:
            import r2ccl.bootstrap.listeners as listeners

            def refuse(*_args: Any, **_rest: Any) -> socket.socket:
                raise OSError(99, "Cannot assign requested address")

            listeners.listen_on = refuse  # in this process only
        return Config(rails="127.0.0.1,127.0.0.2", host_id=f"host {rank}", init_timeout_s=2)

    found, _logs = run(3, configure, checked)
    for error in found.values():
        assert type(error).__name__ == "PeerUnreachable", error
        assert "cannot reach each other over any rail (127.0.0.1 - 127.0.0.1: cannot listen on 127.0.0.1" in str(error)
