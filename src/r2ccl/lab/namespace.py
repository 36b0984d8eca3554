"""Anonymous namespaces, entered by a thread of the lab.

The kernel keeps namespaces per thread. So each emulated host has one thread here that has left the machine's own
namespaces; whatever it starts is born on that host, and is a plain child process of the lab all the same. Nothing has a
name or a mount, so nothing stays behind when the lab is killed.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .requirements import LabError

T = TypeVar("T")
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000,
    0x4000000,
    0x8000000,
    0x20000000,
    0x40000000,
)
_TOOL_TIMEOUT_S = 20.0
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class LinkCounters:
    """What one interface has carried since the fabric was built, in bytes and frames of its own view."""

    rx_bytes: int = 0
    rx_packets: int = 0
    tx_bytes: int = 0
    tx_packets: int = 0

    def __add__(self, other: LinkCounters) -> LinkCounters:
        return LinkCounters(*(a + b for a, b in zip(self.values(), other.values(), strict=True)))

    def __sub__(self, other: LinkCounters) -> LinkCounters:
        return LinkCounters(*(a - b for a, b in zip(self.values(), other.values(), strict=True)))

    def values(self) -> tuple[int, int, int, int]:
        """The four numbers, in the order of the fields."""
        return self.rx_bytes, self.rx_packets, self.tx_bytes, self.tx_packets

    @property
    def total_bytes(self) -> int:
        """Both directions, with headers."""
        return self.rx_bytes + self.tx_bytes

    @property
    def payload_bytes(self) -> int:
        """About the TCP payload in it: a frame has 66 bytes of headers (14 Ethernet, 20 IPv4, 32 TCP with timestamps).

        Empty acknowledgements come out as 0, an ARP frame (42 bytes) as slightly less: never above what was carried.
        """
        return max(0, self.total_bytes - 66 * (self.rx_packets + self.tx_packets))


class Namespace:
    """A network namespace (plus ``flags``) and the thread inside it. Methods may be called from any thread."""

    def __init__(self, name: str, flags: int = CLONE_NEWNET) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"r2ccl-lab-{name}")
        self._descriptors: list[int] = []
        try:
            self.call(lambda: self._enter(flags))
        except BaseException:
            self.close()
            raise
        self.net_fd, self._device_fd = self._descriptors

    def _enter(self, flags: int) -> None:
        if _libc.unshare(flags) != 0:
            number = ctypes.get_errno()
            raise LabError(
                f"the kernel refuses new namespaces for {self.name}: {os.strerror(number)}. Run as root, or in a "
                "container with --privileged; see also sysctl user.max_net_namespaces"
            )
        # Opened once: these follow the namespace even when another /proc is mounted over this one.
        for path in ("/proc/thread-self/ns/net", "/proc/thread-self/net/dev"):
            self._descriptors.append(os.open(path, os.O_RDONLY))

    def call(self, function: Callable[[], T]) -> T:
        """Runs ``function`` in the namespace: sockets and processes it creates belong there."""
        return self._thread.submit(function).result()

    def run(
        self,
        argv: Sequence[str],
        text: str | None = None,
        pass_fds: Sequence[int] = (),
        before_input: Callable[[], None] | None = None,
    ) -> str:
        """Standard output of a tool run in the namespace with ``text`` as input. Raises ``LabError`` if it fails.

        ``before_input`` is called when the tool has been started and is about to get its input.
        """
        pipe = subprocess.PIPE
        env = {**os.environ, "LC_ALL": "C"}

        def run() -> tuple[int, str, str]:
            with subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, pass_fds=pass_fds, env=env
            ) as child:
                try:
                    if before_input is not None:
                        before_input()
                    out, err = child.communicate(text or "", _TOOL_TIMEOUT_S)
                except BaseException:
                    child.kill()
                    raise
                return child.returncode, out, err

        code, out, err = self.call(run)
        if code != 0:
            what = " ".join(argv) + (f" with input {text!r}" if text else "")
            raise LabError(f"on {self.name}: {what}: {err.strip() or code}")
        return out

    def write_sysctl(self, name: str, value: str) -> bool:
        """Sets ``net.…`` of this namespace (dots separate); False when the kernel lacks or refuses it."""

        def write() -> bool:
            try:
                Path("/proc/sys", *name.split(".")).write_text(value)
            except OSError:
                return False
            return True

        return self.call(write)

    def counters(self) -> dict[str, LinkCounters]:
        """Counters of every interface here, by name. Takes about 20 µs: no process is started."""
        blocks = []
        offset = 0
        while block := os.pread(self._device_fd, 1 << 16, offset):
            blocks.append(block)
            offset += len(block)
        found = {}
        for line in b"".join(blocks).decode().splitlines()[2:]:
            name, numbers = re.split(r":\s*", line.strip(), maxsplit=1)
            n = [int(number) for number in numbers.split()]
            found[name] = LinkCounters(n[0], n[1], n[8], n[9])
        return found

    def close(self) -> None:
        """Leaves the namespace; the kernel removes it once its last process is gone."""
        self._thread.shutdown(wait=True)
        while self._descriptors:
            os.close(self._descriptors.pop())


class Host(Namespace):
    """An emulated host: network, host name, /etc/hosts, /dev/shm, /proc and /sys of its own, and a PID namespace.

    Two steps, so that several hosts start side by side: the constructor starts it, ``wait_ready`` waits for it.
    """

    def __init__(self, name: str, hosts_text: str) -> None:
        super().__init__(name, CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
        self.notes: list[str] = []
        self._children: list[subprocess.Popen[Any]] = []
        holder = str(Path(__file__).with_name("holder.py"))
        argv = [sys.executable, "-I", "-S", holder, name, hosts_text, str(uuid.uuid4())]
        pipe = subprocess.PIPE
        # The first process that is born in a new PID namespace is its PID 1.
        self._holder: subprocess.Popen[str] = self.call(
            lambda: subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        )

    def wait_ready(self) -> None:
        """Returns when the host is set up. Raises ``LabError`` when it cannot be."""
        assert self._holder.stdout is not None
        for line in self._holder.stdout:
            word, _, rest = line.strip().partition(": ")
            if word == "ready":
                return
            if word == "error":
                raise LabError(f"cannot set up {self.name}: {rest}. Run as root or, in a container, with --privileged")
            self.notes.append(f"{self.name}: {rest}")
        raise LabError(f"the first process of {self.name} ended with code {self._holder.wait()}")

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """``subprocess.Popen`` on this host. The process, and all it starts, is killed with the host at the latest."""
        self._children = [child for child in self._children if child.poll() is None]
        child: subprocess.Popen[Any] = self.call(lambda: subprocess.Popen(argv, **options))
        self._children.append(child)
        return child

    def close(self) -> None:
        """Ends every process of the host, then the host."""
        holder = getattr(self, "_holder", None)
        if holder is not None:
            holder.kill()  # the kernel kills the rest of the PID namespace with its PID 1,
            for child in self._children:
                child.wait()  # and PID 1 is not gone before those who are the lab's own children are reaped
            holder.wait()
            for stream in (holder.stdin, holder.stdout):
                stream.close()
        super().close()
