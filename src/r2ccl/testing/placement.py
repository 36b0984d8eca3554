"""Where emulated ranks live: hosts, rails, ports and the variables that say so."""

from __future__ import annotations

import socket


def host_of(rank: int, n: int, hosts: int) -> int:
    """Index of the emulated host that a rank belongs to: consecutive ranks share a host."""
    return rank * hosts // n


def rail_addresses(rails: int) -> str:
    """``Config.rails`` for emulated rails: one loopback address each."""
    return ",".join(f"127.0.0.{i + 1}" for i in range(rails))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def variables_of(rank: int, n: int, hosts: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets, for a rank of an emulated host."""
    host = host_of(rank, n, hosts)
    neighbours = [r for r in range(n) if host_of(r, n, hosts) == host]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(n),
        "LOCAL_RANK": str(rank - neighbours[0]),
        "LOCAL_WORLD_SIZE": str(len(neighbours)),
        "GROUP_RANK": str(host),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
