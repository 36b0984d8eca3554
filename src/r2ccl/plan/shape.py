"""The cluster as the planner sees it: who shares a host, and what paths cost."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..errors import InvalidArgument


@dataclass(frozen=True)
class ClusterShape:
    """Values on which the choice of a plan rests; equal on all ranks, since the choice must be.

    hosts: the ranks of each host. host_gbs: what each host can send, and as much receive, over its healthy rails in
    GB/s; one value for all hosts, or one for each. alpha_*_us: time from a rank's send until the peer can act on it.
    overhead_*_us: what each further message costs a rank. shm_gbs: what one core copies. cores: of a host, for all its
    ranks. chunk_bytes: Config.chunk_bytes. Raises InvalidArgument for values that cannot be.
    """

    hosts: tuple[tuple[int, ...], ...]
    host_gbs: tuple[float, ...] = (3.0,)
    alpha_shm_us: float = 3.0
    alpha_net_us: float = 25.0
    overhead_shm_us: float = 0.5
    overhead_net_us: float = 5.0
    shm_gbs: float = 6.0
    cores: int = 64
    chunk_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        if sorted(r for host in self.hosts for r in host) != list(range(self.nranks)) or not self.nranks:
            raise InvalidArgument(f"hosts = {self.hosts}: must hold each rank from 0 exactly once")
        if len(self.host_gbs) not in (1, len(self.hosts)):
            raise InvalidArgument(f"host_gbs = {self.host_gbs}: one value, or one for each of {len(self.hosts)} hosts")
        if min(*self.host_gbs, self.shm_gbs, self.cores, self.chunk_bytes) <= 0:
            raise InvalidArgument(f"{self}: bandwidths, cores and chunk_bytes must be positive")

    @cached_property
    def nranks(self) -> int:
        """Ranks of all hosts."""
        return sum(len(host) for host in self.hosts)

    @cached_property
    def weakest_gbs(self) -> float:
        """Bandwidth of the weakest host, which bounds every symmetric algorithm."""
        return min(self.host_gbs)

    @cached_property
    def most_local(self) -> int:
        """Ranks of the fullest host."""
        return max(len(host) for host in self.hosts)

    @cached_property
    def columns(self) -> int:
        """Ranks of the emptiest host: how many hierarchical rings can share a host's work evenly."""
        return min(len(host) for host in self.hosts)
