"""What a plan is asked to do: the values that every algorithm takes, and nothing about sizes or buffers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..errors import InvalidArgument
from ..types import Collective

REDUCING = frozenset({Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER})
ROOTED = frozenset({Collective.REDUCE, Collective.BROADCAST, Collective.GATHER, Collective.SCATTER})


@dataclass(frozen=True)
class Task:
    """One rank's view of one collective.

    nranks, rank: of the communicator. root: for rooted collectives, else ignored.
    wide: sums of low-precision floats are kept and travel in the accumulation type (reducing collectives only).
    in_place: SEND and RECV share memory wherever both hold the same part.
    hosts: the ranks of each host; empty: all on one host. peer: the other rank of SEND and RECV.
    host_gbs: bandwidth of each host, in any unit; empty: all have the same. rails: of each host, a bit mask of its rails,
    where two hosts must share one to speak to each other; empty: all reach each other.
    Raises InvalidArgument when the values contradict each other.
    """

    collective: Collective
    nranks: int
    rank: int
    root: int = 0
    wide: bool = False
    in_place: bool = False
    hosts: tuple[tuple[int, ...], ...] = ()
    peer: int = -1
    host_gbs: tuple[float, ...] = ()
    rails: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.nranks:
            raise InvalidArgument(f"rank {self.rank} is not one of {self.nranks} ranks")
        if not 0 <= self.root < self.nranks:
            raise InvalidArgument(f"root {self.root} is not one of {self.nranks} ranks")
        if self.hosts and sorted(r for host in self.hosts for r in host) != list(range(self.nranks)):
            raise InvalidArgument(f"hosts {self.hosts} do not hold each of {self.nranks} ranks exactly once")
        if self.host_gbs and (len(self.host_gbs) != max(1, len(self.hosts)) or min(self.host_gbs) <= 0):
            raise InvalidArgument(f"host_gbs {self.host_gbs}: one positive value for each of {len(self.hosts)} hosts")
        if self.wide and self.collective not in REDUCING:
            raise InvalidArgument(f"{self.collective.name} does not reduce, so it cannot be wide")
        if self.in_place and self.collective is Collective.ALL_TO_ALL:
            raise InvalidArgument("all_to_all is never planned in place: the caller copies its input")
        if self.collective in (Collective.SEND, Collective.RECV) and not 0 <= self.peer < self.nranks:
            raise InvalidArgument(f"peer {self.peer} is not one of {self.nranks} ranks")

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @property
    def speeds(self) -> tuple[float, ...]:
        """Bandwidth of each host."""
        return self.host_gbs or (1.0,) * max(1, len(self.hosts))

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """All ranks, host after host, so that a ring enters and leaves each host once."""
        return tuple(r for host in self.hosts for r in host) if self.hosts else tuple(range(self.nranks))

    @cached_property
    def ring_from_root(self) -> tuple[int, ...]:
        """The ring, turned so that the root's host comes first and the root is first in it."""
        hosts = self.hosts or (tuple(range(self.nranks)),)
        at = next(i for i, host in enumerate(hosts) if self.root in host)
        first = (self.root, *(r for r in hosts[at] if r != self.root))
        return first + tuple(r for host in hosts[at + 1 :] + hosts[:at] for r in host)
