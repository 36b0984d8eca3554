"""The thread that serves whoever looks: it ends when told, and a reader that fails costs its socket only."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time

import pytest

from r2ccl.observe.loop import Loop


def test_a_reader_that_fails_loses_its_socket_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    before = len(os.listdir("/proc/self/fd"))
    ended = threading.Event()
    loop = Loop("r2ccl-test", ended.set)
    bad, bad_end = socket.socketpair()
    good, good_end = socket.socketpair()
    seen = []

    def fail(sock: socket.socket) -> None:
        sock.recv(10)
        raise ValueError("a bug")

    loop.watch(bad_end, fail)
    loop.watch(good_end, lambda sock: seen.append(sock.recv(10)))
    with caplog.at_level(logging.ERROR, "r2ccl"):
        loop.start()
        bad.sendall(b"x")
        assert bad.recv(1) == b"", "it is closed"
        good.sendall(b"y")
        deadline = time.monotonic() + 5
        while not seen:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert seen == [b"y"]
    assert "r2ccl-test gives up a socket" in caplog.text
    loop.end()
    loop.join()
    assert ended.is_set()
    assert good.recv(1) == b""
    loop.end()  # and again
    bad.close()
    good.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_thread_it_is_closed_by_hand() -> None:
    """As in a forked child."""
    before = len(os.listdir("/proc/self/fd"))
    loop = Loop("r2ccl-test", lambda: None)
    for _ in range(2):
        loop.close()
    loop.join()
    assert len(os.listdir("/proc/self/fd")) == before
