"""The cluster as the planner sees it: who shares a host, and what paths cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ..costs import ACROSS_HOSTS
from ..errors import InvalidArgument
from .reach import any_apart, masks, ring_order

EVEN = 0.02  # bandwidths that differ by less count as equal


@dataclass(frozen=True)
class ClusterShape:
    """Values on which the choice of a plan rests; equal on all ranks, since the choice must be.

    hosts: the ranks of each host. host_gbs: what each host can send, and as much receive, over its healthy rails in
    GB/s; one value for all hosts, or one for each. alpha_*_us, overhead_*_us, shm_gbs: see Costs. cores: of a host, for
    all its ranks. chunk_bytes: Config.chunk_bytes.

    rail_gbs: the same rail by rail, for each host, 0 for a lost rail; where it is given, host_gbs follows from it.
    connected: every rail reaches every other; else rail i of a host reaches only rail i of the others. full_gbs: what
    rail_gbs is when nothing is lost; empty: the same. Raises InvalidArgument for values that cannot be.
    """

    hosts: tuple[tuple[int, ...], ...]
    host_gbs: tuple[float, ...] = (3.0,)
    alpha_shm_us: float = ACROSS_HOSTS.alpha_shm_us
    alpha_net_us: float = ACROSS_HOSTS.alpha_net_us
    overhead_shm_us: float = ACROSS_HOSTS.overhead_shm_us
    overhead_net_us: float = ACROSS_HOSTS.overhead_net_us
    shm_gbs: float = ACROSS_HOSTS.shm_gbs
    cores: int = 64
    chunk_bytes: int = 256 << 10
    rail_gbs: tuple[tuple[float, ...], ...] = ()
    connected: bool = True
    full_gbs: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.rail_gbs:
            check_rails(self.rail_gbs, self.full_gbs or self.rail_gbs, len(self.hosts))
            object.__setattr__(self, "host_gbs", tuple(sum(rails) for rails in self.rail_gbs))
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
    def gbs(self) -> tuple[float, ...]:
        """Bandwidth of each host."""
        return self.host_gbs if len(self.host_gbs) == len(self.hosts) else self.host_gbs * len(self.hosts)

    @cached_property
    def uneven(self) -> bool:
        """Whether some host has so much less bandwidth than another that it pays to spare it."""
        return min(self.host_gbs) < (1 - EVEN) * max(self.host_gbs)

    @cached_property
    def rails_apart(self) -> tuple[int, ...]:
        """Masks of each host's healthy rails where some two hosts share none and so cannot speak; empty elsewhere."""
        if self.connected or not self.rail_gbs:
            return ()
        found = masks(self.rail_gbs)
        return found if any_apart(found) else ()

    @cached_property
    def in_ring_order(self) -> ClusterShape | None:
        """The same cluster with its hosts in an order in which neighbours share a rail; None where there is none."""
        order = ring_order(self.rails_apart) if self.rails_apart else tuple(range(len(self.hosts)))
        if order is None or order == tuple(range(len(self.hosts))):
            return self if order else None
        full = self.full_gbs and tuple(self.full_gbs[h] for h in order)
        rails = tuple(self.rail_gbs[h] for h in order)
        return replace(self, hosts=tuple(self.hosts[h] for h in order), rail_gbs=rails, full_gbs=full)

    @cached_property
    def undamaged(self) -> ClusterShape:
        """The same cluster with nothing lost: what plans follow that must not change with its health."""
        return replace(self, rail_gbs=self.full_gbs) if self.full_gbs else self

    def with_rail(self, host: int, rail: int, gbs: float = 0.0) -> ClusterShape:
        """The same cluster with another bandwidth of one rail (0: lost), and the memory of what it was at first."""
        rails = [list(row) for row in self.rail_gbs]
        if not (0 <= host < len(rails) and 0 <= rail < len(rails[host])):
            raise InvalidArgument(f"rail {rail} of host {host}: rail_gbs = {self.rail_gbs} has no such rail")
        rails[host][rail] = gbs
        return self.with_rails(tuple(map(tuple, rails)))

    def with_rails(self, rail_gbs: tuple[tuple[float, ...], ...]) -> ClusterShape:
        """The same cluster with other bandwidths of its rails, and the memory of what they were at first."""
        return replace(self, rail_gbs=rail_gbs, full_gbs=self.full_gbs or self.rail_gbs)

    @cached_property
    def weakest_gbs(self) -> float:
        """Bandwidth of the weakest host, which bounds every symmetric algorithm."""
        return min(self.host_gbs)

    @cached_property
    def narrowest_gbs(self) -> float:
        """What two neighbours of a ring of all hosts can say to each other, of the pair that can say least.

        Less than ``weakest_gbs`` where rails are separate and neighbours lost different ones.
        """
        ring = self.in_ring_order
        if self.connected or not self.rail_gbs or ring is None or len(set(self.rail_gbs)) == 1:
            return self.weakest_gbs
        rows = ring.rail_gbs
        return min(sum(map(min, row, rows[i - 1])) for i, row in enumerate(rows))

    @cached_property
    def most_local(self) -> int:
        """Ranks of the fullest host."""
        return max(len(host) for host in self.hosts)

    @cached_property
    def columns(self) -> int:
        """Ranks of the emptiest host: how many hierarchical rings can share a host's work evenly."""
        return min(len(host) for host in self.hosts)


def check_rails(now: tuple[tuple[float, ...], ...], full: tuple[tuple[float, ...], ...], hosts: int) -> None:
    """Raise InvalidArgument unless both give every host at least one rail, and something is left on each host."""
    if len(now) != hosts or [len(row) for row in now] != [len(row) for row in full]:
        raise InvalidArgument(
            f"rail_gbs = {now} and full_gbs = {full}: one row for each of {hosts} hosts, of equal lengths"
        )
    if any(not row or min(row) < 0 for row in (*now, *full)):
        raise InvalidArgument(f"rail_gbs = {now} and full_gbs = {full}: each host has rails, and none is negative")
    gone = [host for host, row in enumerate(now) if sum(row) <= 0]
    if gone:
        raise InvalidArgument(f"rail_gbs = {now}: hosts {gone} have no rail left; no plan can reach them")
