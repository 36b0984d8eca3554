"""The words of survivors to each other: who comes, who is out and why, and the group that results."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from .auth import Hello
from .base import name_ranks
from .door import Door

log = logging.getLogger("r2ccl.bootstrap")
_MAX_REASON = 200


@dataclass
class Group:
    """The survivors, in order of their old ranks; the first one leads.

    ``sockets``: the leader's by member; a member's own to the leader. ``out``: the others, and why.
    """

    members: tuple[int, ...]
    nonce: bytes
    sockets: dict[int, socket.socket]
    out: dict[int, str]

    def close(self) -> None:
        """Release the sockets."""
        for sock in self.sockets.values():
            sock.close()


def judge_comer(door: Door, hello: Hello) -> str | None:
    """Whether a hello is that of a rank that looks for survivors, or why not."""
    me, rank = door.around.me.rank, hello.get("rank")
    if hello.get("for") != "survivors" or hello.get("to") != me:
        return f"this is rank {me}, where survivors meet"
    if hello.get("token") != door.around.announcements[me].token:
        return f"this is rank {me} of another communicator"
    if type(rank) is not int or not 0 <= rank < len(door.around.ranks) or rank == me:
        return f"rank {rank!r} is none of the others"
    return None


def tell(group: Group, me: int, excluded: set[int], size: int) -> None:
    """One line, at the leader, about the ranks that are left out and that its caller did not exclude."""
    others = {rank: reason for rank, reason in sorted(group.out.items()) if rank not in excluded}
    if others and me == group.members[0]:
        reasons = "; ".join(f"rank {rank}: {reason}" for rank, reason in list(others.items())[:16])
        log.warning("shrink leaves out %s (%s)", name_ranks(list(others), size), reasons)


def out_on_wire(out: Mapping[int, str]) -> dict[str, str]:
    """As it travels."""
    return {str(rank): reason[:_MAX_REASON] for rank, reason in out.items()}


def out_off_wire(value: object, size: int) -> dict[int, str]:
    """``ValueError`` for anything but reasons by rank."""
    if not isinstance(value, dict):
        raise ValueError("out")
    out: dict[int, str] = {}
    for key, reason in value.items():
        rank = int(key)
        if not 0 <= rank < size or not isinstance(reason, str) or not reason.isprintable() or len(reason) > _MAX_REASON:
            raise ValueError("out")
        out[rank] = reason
    return out
