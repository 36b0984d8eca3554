"""What the wires carry while a fault acts, whoever uses them; and programs that take the processors."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from r2ccl.lab import Fabric

EVERY_S = 0.01
STOPPED = 0.05  # below this part of the usual rate the traffic stands still
FRAMING = 0.957  # TCP payload in a full frame of 1514 bytes


@dataclass
class Traffic:
    """Bytes that had arrived, sampled about every 10 ms."""

    samples: list[tuple[int, int]] = field(default_factory=list)

    def rate(self, begin_ns: int, end_ns: int) -> float:
        """Bytes per second in that time; 0 without samples."""
        inside = [s for s in self.samples if begin_ns <= s[0] <= end_ns]
        if len(inside) < 2 or inside[-1][0] == inside[0][0]:
            return 0.0
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) * 1e9

    def gap_ms(self, begin_ns: int, end_ns: int, usual: float) -> float:
        """The longest time without traffic; ``usual`` bytes per second."""
        longest_ns = 0
        since_ns: int | None = None
        inside = [s for s in self.samples if begin_ns <= s[0] <= end_ns]
        for (t, n), (t1, n1) in pairwise(inside):
            if (n1 - n) / max(t1 - t, 1) * 1e9 > STOPPED * usual:
                since_ns = None
                continue
            since_ns = t if since_ns is None else since_ns
            longest_ns = max(longest_ns, t1 - since_ns)
        return longest_ns * 1e-6


def received(fabric: Fabric) -> int:
    """Payload bytes that the rails' NICs of all hosts have received so far."""
    return sum(max(0, c.nic.rx_bytes - 66 * c.nic.rx_packets) for c in fabric.counters(drops=False).values())


@contextlib.contextmanager
def watched(read: Callable[[], int]) -> Iterator[Traffic]:
    """Samples a count of bytes meanwhile."""
    traffic, stop = Traffic(), threading.Event()

    def sample() -> None:
        while not stop.wait(EVERY_S):
            traffic.samples.append((time.time_ns(), read()))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield traffic
    finally:
        stop.set()
        thread.join()


def stream(fabric: Fabric, sender: int, receiver: int, rail: int, protocol: int = 0) -> tuple[socket.socket, ...]:
    """A connection between two hosts over a rail: the sender's socket, the receiver's, and the listening one.

    It listens on every address and for as long as the stream lives: Multipath TCP has more connections come in.
    """

    def listen() -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
        listener.bind(("", 0))
        listener.listen()
        listener.settimeout(5.0)
        return listener

    def connect() -> socket.socket:
        out = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
        out.bind((fabric.address(sender, rail), 0))
        out.settimeout(5.0)
        out.connect((fabric.address(receiver, rail), listener.getsockname()[1]))
        return out

    listener = fabric.call(receiver, listen)
    out = fabric.call(sender, connect)
    return out, listener.accept()[0], listener


@contextlib.contextmanager
def flowing(out: socket.socket, into: socket.socket, listener: socket.socket) -> Iterator[list[int]]:
    """Sends as fast as it goes meanwhile; the one number yielded counts the bytes that arrived."""
    stop, arrived = threading.Event(), [0]
    block = bytes(1 << 18)
    for end in (out, into):
        end.settimeout(0.05)

    def send() -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                out.send(block)

    def receive() -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                arrived[0] += len(into.recv(1 << 20))

    def until_stopped(body: object) -> None:
        with contextlib.suppress(OSError):  # an error ends a stream, and the numbers say so
            body()  # type: ignore[operator]

    threads = [threading.Thread(target=until_stopped, args=(b,), daemon=True) for b in (send, receive)]
    for thread in threads:
        thread.start()
    try:
        yield arrived
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for end in (out, into, listener):
            end.close()


def carried(fabric: Fabric, kind: str, arguments: tuple[Any, ...], rail_mbit: int, seconds: float = 2.5) -> float:
    """What one TCP stream each way carries over a rail with a fault: the worse one, as a share of the rate."""
    ends = stream(fabric, 0, 1, 0), stream(fabric, 1, 0, 0)  # before the fault, which may refuse them
    with flowing(*ends[0]) as there, flowing(*ends[1]) as back:
        fabric.fault(kind, 0, 0, *arguments)
        time.sleep(1.0)
        begin, before = time.monotonic(), (there[0], back[0])
        time.sleep(seconds)
        elapsed_s = time.monotonic() - begin
        worse = min(there[0] - before[0], back[0] - before[1]) / elapsed_s
    fabric.heal(0, 0)
    return min(1.0, worse / (rail_mbit * 1e6 / 8 * FRAMING))


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    """One program per processor that computes without end."""
    argv = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(argv) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
        for hog in hogs:
            hog.wait()
