"""Ranks grouped into hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .model import RankInfo


@dataclass(frozen=True)
class Host:
    """The ranks that share one machine.

    Attributes:
        index: 0-based, in the order of each host's lowest rank.
        host_id: the identity that they share.
        label: host name, for messages.
        ranks: ascending.
    """

    index: int
    host_id: str
    label: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Cluster:
    """All ranks and hosts of a communicator. Hosts may have different numbers of ranks and rails."""

    ranks: tuple[RankInfo, ...]
    hosts: tuple[Host, ...]

    @classmethod
    def of(cls, ranks: Sequence[RankInfo]) -> Cluster:
        """Group ``ranks`` (ranks[i] is rank i) by host identity."""
        members: dict[str, list[int]] = {}
        for info in ranks:
            members.setdefault(info.host_id, []).append(info.rank)
        hosts = tuple(
            Host(index, host_id, ranks[own[0]].label, tuple(own))
            for index, (host_id, own) in enumerate(members.items())
        )
        return cls(tuple(ranks), hosts)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def is_uniform(self) -> bool:
        """Whether all hosts have the same number of ranks."""
        return len({len(host.ranks) for host in self.hosts}) == 1

    def host_of(self, rank: int) -> Host:
        """The host of a rank."""
        return next(host for host in self.hosts if rank in host.ranks)

    def local_rank(self, rank: int) -> int:
        """Position of a rank among the ranks of its host."""
        return self.host_of(rank).ranks.index(rank)

    def local_size(self, rank: int) -> int:
        """Number of ranks on the host of a rank."""
        return len(self.host_of(rank).ranks)

    def same_host(self, a: int, b: int) -> bool:
        """Whether two ranks share a host."""
        return self.ranks[a].host_id == self.ranks[b].host_id
