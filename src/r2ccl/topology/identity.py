"""Which host a process is on: by what it shares with its neighbours, never by host name."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from ..config import Config


@dataclass(frozen=True)
class Identity:
    """Attributes:

    boot_id: of the running kernel.
    netns: inode of the network namespace.
    shm_device: device number of /dev/shm; 0 without one.
    override: ``Config.host_id``; empty: none.
    """

    boot_id: str
    netns: int
    shm_device: int
    override: str = ""

    @property
    def host_id(self) -> str:
        """Ranks for which this is equal are grouped into one host."""
        return self.override or _digest("host", self.boot_id, self.netns, self.shm_device)

    @property
    def netns_id(self) -> str:
        """Names the network stack; equal means that addresses of the other are local here."""
        return _digest("netns", self.boot_id, self.netns)


def read_identity(config: Config) -> Identity:
    """Of this process."""
    return Identity(_boot_id(), _inode("/proc/self/ns/net"), _device("/dev/shm"), config.host_id)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # sandboxes hide it; the boot time, in seconds, is the next best
        lines = Path("/proc/stat").read_text().splitlines()
        return next((line for line in lines if line.startswith("btime")), "unknown boot")


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return 0


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
