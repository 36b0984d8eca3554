"""Which connections a communicator needs, from the descriptions of all ranks: pure, equal on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import NoRails
from ..topology.model import RailInfo, RankInfo
from ..topology.pairing import addresses_of, pair_rails

OOB = -1  # stands for a rail's index in the key of a control connection


@dataclass(frozen=True)
class Wanted:
    """One connection that this rank is to have.

    The lower rank listens, the higher one dials. ``my_rail`` and ``peer_rail`` are ``OOB`` for control connections,
    whose addresses are chosen among those that the listener announces.
    """

    peer: int
    my_rail: int = OOB
    peer_rail: int = OOB
    my_address: str = ""
    peer_address: str = ""
    down: str = ""
    """Why it is known beforehand that it cannot come up now; empty: it should."""
    control: bool = False
    """Over two rails, for control frames: it is to take the place of a control connection."""

    @property
    def place(self) -> tuple[int, int, int]:
        """Peer, and rails here and there."""
        return self.peer, self.my_rail, self.peer_rail

    @property
    def is_oob(self) -> bool:
        """Whether it is a control connection."""
        return self.my_rail == OOB


def needs_rails(a: RankInfo, b: RankInfo, shm: bool) -> bool:
    """Whether two ranks talk over rails: on different hosts, or on one without shared memory."""
    return a.host_id != b.host_id or not shm


def rail_pairs(a: RankInfo, b: RankInfo) -> list[tuple[int, int]]:
    """(rail of a, rail of b) to be joined."""
    return pair_rails(a.rails, b.rails, same_machine=a.netns == b.netns)


def wanted_by(me: RankInfo, ranks: Sequence[RankInfo], shm: bool) -> list[Wanted]:
    """All connections of one rank: a control connection to every peer, and the links over rails."""
    wanted = [Wanted(peer.rank) for peer in ranks if peer.rank != me.rank]
    for peer in ranks:
        if peer.rank != me.rank and needs_rails(me, peer, shm):
            wanted += [link_between(me, peer, *pair) for pair in rail_pairs(me, peer)]
    return wanted


def require_rails(ranks: Sequence[RankInfo], shm: bool) -> None:
    """Raise ``NoRails``, the same on every rank, when two ranks that need rails have none in common."""
    kinds: dict[tuple[object, ...], RankInfo] = {}  # ranks that differ in nothing that matters here: one stands for all
    for info in ranks:
        kinds.setdefault((info.host_id, info.netns, info.rails), info)
    for a in kinds.values():
        for b in kinds.values():
            if a.rank <= b.rank and _some_pair(ranks, a, b, shm) and not rail_pairs(a, b):
                raise NoRails(no_rails_text(a, b, "share no rail"))


def _some_pair(ranks: Sequence[RankInfo], a: RankInfo, b: RankInfo, shm: bool) -> bool:
    """Whether some pair of ranks like ``a`` and ``b`` needs rails; a rank needs none to itself."""
    if a is not b:
        return needs_rails(a, b, shm)
    alike = sum(info.host_id == a.host_id and info.rails == a.rails for info in ranks)
    return not shm and alike > 1


def lonely_rails(me: RankInfo, ranks: Sequence[RankInfo], wanted: Sequence[Wanted]) -> list[str]:
    """For each own rail with no partner on some other host: a sentence that says where, and what was left out there."""
    hosts = {info.host_id: info for info in reversed(ranks) if info.host_id != me.host_id}
    joined = {(ranks[entry.peer].host_id, entry.my_rail) for entry in wanted}
    sentences = []
    for rail in me.rails:
        without = [info for host_id, info in hosts.items() if (host_id, rail.index) not in joined]
        if without:
            first = "; ".join(_candidates(info) for info in without[:2])
            sentences.append(
                f"rail {rail.name} ({rail.address}/{rail.prefix_len}) has no partner on {len(without)} of {len(hosts)} "
                f"other hosts. {first}"
            )
    return sentences


def no_rails_text(a: RankInfo, b: RankInfo, what: str) -> str:
    """Both hosts, their rails, and the candidates that were left out, with the remedy."""
    return (
        f"{a.host_name} and {b.host_name} {what}. {_candidates(a)}. {_candidates(b)}. "
        "Choose rails with R2CCL_RAILS (names, globs or addresses, comma-separated)"
        + ("" if a.host_id != b.host_id else ", such as 127.0.0.1, or share memory with R2CCL_SHM=1")
    )


def _candidates(info: RankInfo) -> str:
    rails = ", ".join(f"{rail.name} {rail.address}/{rail.prefix_len} ({rail.state})" for rail in info.rails) or "none"
    left = ", ".join(f"{entry.name}: {entry.reason}" for entry in info.left_out)
    return f"Rails of {info.host_name}: {rails}" + (f"; left out: {left}" if left else "")


def link_between(me: RankInfo, peer: RankInfo, my_rail: int, peer_rail: int) -> Wanted:
    """The link that joins two rails."""
    mine, theirs = me.rails[my_rail], peer.rails[peer_rail]
    my_address, peer_address = addresses_of(mine, theirs)
    down = "; ".join(
        f"{rail.name} is {rail.state} on {info.host_name}"
        for info, rail in ((me, mine), (peer, theirs))
        if _is_down(rail)
    )
    return Wanted(peer.rank, my_rail, peer_rail, my_address, peer_address, down)


def _is_down(rail: RailInfo) -> bool:
    return rail.state != "up"
