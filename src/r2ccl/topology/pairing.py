"""Which rail of one rank belongs to which rail of another. Pure, and the same whichever side computes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .model import RailInfo

Pair = tuple[int, int]
_POINT_TO_POINT_BITS = {4: 31, 6: 127}


def pair_rails(mine: Sequence[RailInfo], theirs: Sequence[RailInfo], *, same_machine: bool | None = None) -> list[Pair]:
    """(my index, their index) of the rails to be joined, ordered by my index; each rail at most once.

    1. Rails in the same network, by equal interface name first, then in order.
    2. Of the rest, those from which a gateway leads further (or whose network is a bare point-to-point one): by equal
       name, then in order if both sides have equally many left or nothing is paired yet. Whether such a pair really
       is connected shows when it is dialled.

    Rails are never crossed otherwise: separate networks stay separate. ``same_machine`` False rules out loopback rails
    and equal addresses (two docker bridges called 172.17.0.1 do not meet); None: unknown, equal addresses are left out.
    """
    joint = _Joint(mine, theirs, same_machine)
    for fabric in _common_fabrics(mine, theirs):
        left = [rail for rail in joint.mine if fabric in rail.networks]
        right = [rail for rail in joint.theirs if fabric in rail.networks]
        joint.join_by_name(left, right)
        joint.join_in_order(left, right)
    left, right = [r for r in joint.mine if _leads_on(r)], [r for r in joint.theirs if _leads_on(r)]
    joint.join_by_name(left, right)
    left, right = [r for r in left if r in joint.mine], [r for r in right if r in joint.theirs]
    if not joint.pairs or len(left) == len(right):
        joint.join_in_order(left, right)
    return sorted(joint.pairs)


def addresses_of(mine: RailInfo, theirs: RailInfo) -> tuple[str, str]:
    """(my address, their address) for the link of a pair: of a common network, or else of one family."""
    my_networks, their_networks = mine.networks, theirs.networks
    for fabric, address in my_networks.items():
        if fabric in their_networks:
            return address, their_networks[fabric]
    for address in my_networks.values():
        for other in their_networks.values():
            if (":" in address) == (":" in other):
                return address, other
    return mine.address, theirs.address


class _Joint:
    """The rails that are still free on both sides, and the pairs so far."""

    def __init__(self, mine: Sequence[RailInfo], theirs: Sequence[RailInfo], same_machine: bool | None) -> None:
        self.mine = list(mine)
        self.theirs = list(theirs)
        self.pairs: list[Pair] = []
        self._same_machine = same_machine

    def join_by_name(self, left: Sequence[RailInfo], right: Sequence[RailInfo]) -> None:
        for a in left:
            for b in right:
                if a.name == b.name:
                    self._join(a, b)

    def join_in_order(self, left: Sequence[RailInfo], right: Sequence[RailInfo]) -> None:
        free_left = [r for r in left if r in self.mine]
        free_right = [r for r in right if r in self.theirs]
        for a, b in zip(free_left, free_right, strict=False):
            self._join(a, b)

    def _join(self, a: RailInfo, b: RailInfo) -> None:
        if a in self.mine and b in self.theirs and self._may_meet(a, b):
            self.mine.remove(a)
            self.theirs.remove(b)
            self.pairs.append((a.index, b.index))

    def _may_meet(self, a: RailInfo, b: RailInfo) -> bool:
        if a.is_loopback or b.is_loopback:
            return self._same_machine is not False and a.family == b.family
        my_address, their_address = addresses_of(a, b)
        if (":" in my_address) != (":" in their_address):
            return False
        return bool(self._same_machine) or my_address.partition("%")[0] != their_address.partition("%")[0]


def _common_fabrics(mine: Iterable[RailInfo], theirs: Iterable[RailInfo]) -> list[str]:
    """Networks that both sides are in, in an order that both compute: primary networks first, then by name."""
    left = {fabric for rail in mine for fabric in rail.networks}
    right = {fabric for rail in theirs for fabric in rail.networks}
    primary = {rail.fabric for rail in mine} & {rail.fabric for rail in theirs}
    return sorted(left & right, key=lambda fabric: (fabric not in primary, fabric))


def _leads_on(rail: RailInfo) -> bool:
    return rail.routed or rail.prefix_len >= _POINT_TO_POINT_BITS[rail.family]
