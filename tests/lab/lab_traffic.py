"""Traffic between emulated hosts, for tests of the lab: everything runs in the test's own process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from r2ccl.lab import Fabric


def echo(fabric: Fabric, sender: int, receiver: int, rail: int, timeout_s: float = 0.25) -> tuple[bool, bool]:
    """A datagram there and one back: (it arrived, so did the one sent back whether or not the first arrived)."""

    def open_at(host: int) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.settimeout(timeout_s)
        try:
            opened.bind((fabric.address(host, rail), 0))
        except OSError:
            opened.close()
            raise
        return opened

    def transfer(source: socket.socket, target: socket.socket) -> bool:
        try:
            source.sendto(b"lab", target.getsockname())
            return target.recv(16) == b"lab"
        except OSError:
            return False

    with contextlib.ExitStack() as stack:
        try:
            near, far = (stack.enter_context(fabric.call(h, lambda h=h: open_at(h))) for h in (sender, receiver))
        except OSError:  # the NIC with the address is gone
            return False, False
        return transfer(near, far), transfer(far, near)


def connects(fabric: Fabric, client: int, server: int, rail: int, timeout_s: float = 0.25) -> bool | str:
    """Whether a TCP connection opens; the name of the error if it fails at once."""
    with fabric.call(server, lambda: socket.create_server((fabric.address(server, rail), 0))) as listener:
        try:
            fabric.call(client, lambda: socket.create_connection(listener.getsockname(), timeout_s)).close()
        except TimeoutError:
            return False
        except OSError as error:
            return type(error).__name__
        return True


@contextlib.contextmanager
def bulk(fabric: Fabric, sender: int, receiver: int, rails: list[int]) -> Iterator[None]:
    """One TCP stream per rail, as fast as it goes, while the context lasts."""
    stop = threading.Event()
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []
    for rail in rails:
        address = fabric.address(receiver, rail)
        with fabric.call(receiver, lambda address=address: socket.create_server((address, 0))) as listener:
            out = fabric.call(sender, lambda listener=listener: socket.create_connection(listener.getsockname(), 2.0))
            into, _ = listener.accept()
        sockets += [out, into]
        threads += [
            threading.Thread(target=_pump, args=(out, stop, lambda out=out: out.send(bytes(65536)))),
            threading.Thread(target=_pump, args=(into, stop, lambda into=into: into.recv(1 << 20))),
        ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for opened in sockets:
            opened.close()


def _pump(opened: socket.socket, stop: threading.Event, step) -> None:
    opened.settimeout(0.05)
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            step()


def sent_bytes(fabric: Fabric, host: int, rails: list[int], seconds: float) -> list[int]:
    """Bytes that a host's NICs send in the given time."""
    before = fabric.counters(drops=False)
    time.sleep(seconds)
    after = fabric.counters(drops=False)
    return [after[host, rail].nic.tx_bytes - before[host, rail].nic.tx_bytes for rail in rails]
