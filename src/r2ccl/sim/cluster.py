"""The hardware of a modelled cluster, and what lost NICs leave of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidArgument


@dataclass(frozen=True)
class Cluster:
    """Equal servers on one connected fabric.

    nic_gbs: payload of a NIC each way. inside_gbs: of a GPU to the others of its server, each way (NVLink, or PCIe where there
    is none). alpha_us: of a hop between servers; alpha_inside_us: inside. tflops: of a GPU, peak, dense, 16 bit.
    memory_gbs: of a GPU's own memory. chunk_bytes: Config.chunk_bytes.
    """

    servers: int
    gpus: int
    nics: int
    nic_gbs: float
    inside_gbs: float
    alpha_us: float = 5.0
    alpha_inside_us: float = 2.0
    tflops: float = 989.0
    memory_gbs: float = 3350.0
    chunk_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        if min(self.servers, self.gpus, self.nics, self.nic_gbs, self.inside_gbs, self.chunk_bytes) <= 0:
            raise InvalidArgument(f"{self}: numbers and bandwidths must be positive")

    @property
    def server_gbs(self) -> float:
        """Bandwidth of an undamaged server, each way."""
        return self.nics * self.nic_gbs

    def lost_of(self, failures: Mapping[int, int]) -> tuple[int, ...]:
        """NICs lost by each server, from {server: number}, the most damaged first: servers are alike but for that."""
        for server, number in failures.items():
            if not 0 <= server < self.servers:
                raise InvalidArgument(f"server {server}: this cluster has servers 0 to {self.servers - 1}")
            if not 0 <= number < self.nics:
                raise InvalidArgument(f"{number} NICs lost by server {server}: it has {self.nics} and must keep one")
        lost = sorted(failures.values(), reverse=True)
        return tuple(lost + [0] * (self.servers - len(lost)))

    def share_left(self, lost: int) -> float:
        """Of a server's bandwidth, with the load spread over the NICs that are left."""
        return 1 - lost / self.nics

    def share_on_backups(self, lost: int) -> float:
        """The same where each lost NIC's load moves to one other: the fullest of them carries whole shares."""
        return 1 / -(-self.nics // (self.nics - lost))
