"""A program that shares no code with r2ccl, on pyverbs, speaks the handshake and the write protocol to a link."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from r2ccl import Config
from r2ccl._native.core import Engine
from r2ccl.plan.shares import shares
from r2ccl.planner import Planner
from r2ccl.topology import Cluster, RankInfo
from r2ccl.types import Collective
from tools.rdma_guest.rails import Rails

PROGRAM = Path(__file__).with_name("foreign") / "link_end.py"
CHUNK = 16 << 10
COUNT = 5 * CHUNK // 4 + 100  # elements of float32: six chunks, the last one short


@pytest.fixture
def peer(rails: Rails) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """The program as the peer on host 1, and the connected socket that its handshake comes over."""
    with socket.create_server((rails.address(0, 0), 0)) as listener:
        port = listener.getsockname()[1]
        command = ["/usr/bin/python3", str(PROGRAM), rails.device(1, 0), rails.address(1, 0), rails.address(0, 0)]
        program = subprocess.Popen(
            [*command, str(port), "6"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            listener.settimeout(30)
            yield program, listener.accept()[0]
        finally:
            program.kill()
            program.wait()


def test_an_independent_program_is_the_other_end_of_a_link(
    rails: Rails, peer: tuple[subprocess.Popen[str], socket.socket]
) -> None:
    program, connection = peer
    control, silent = socket.socketpair()
    config = Config(chunk_bytes=CHUNK, staging_bytes=64 * CHUNK, eager_bytes=0)
    ranks = [RankInfo(rank, f"host{rank}", "", 0, "") for rank in range(2)]
    engine = Engine(0, 2, config, Planner(0, Cluster.of(ranks), config, 1, 1), False)
    engine.add_rail(0, rails.nic(0, 0), 0, "", 1.0)
    engine.set_rail_port(0, rails.device(0, 0), 1, 1)
    engine.add_control(1, control.detach(), False)
    connection.setblocking(False)
    engine.add_verbs_link(1, 0, connection.detach())
    assert engine.take_warnings() == []
    engine.set_shares(1, shares([1.0]).table.astype("f8"))
    engine.start()
    try:
        sent = np.random.default_rng(5).integers(0, 1 << 32, COUNT, np.uint32).view(np.float32)
        received = np.zeros(COUNT, np.float32)
        works = [
            engine.run_p2p(Collective.RECV, received, 1, True, 40.0),
            engine.run_p2p(Collective.SEND, sent, 1, True, 40.0),
        ]
        for work in works:
            work.wait()
        assert np.array_equal(received.view(np.uint32), ~sent.view(np.uint32))
        out, err = program.communicate(timeout=30)
        assert program.returncode == 0, err
        assert out.startswith(f"6 chunks of {sent.nbytes} bytes taken, 6 sent, 6 confirmed"), out
    finally:
        engine.close(0.0)
        silent.close()
        if program.poll() is None:
            program.kill()
        print(program.communicate()[1])
