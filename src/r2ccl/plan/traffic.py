"""What a plan moves, counted from its ops: for checks of formulas, reports and the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .ir import Buf, Flag, OpKind, Plan


@dataclass(frozen=True)
class Traffic:
    """Elements that one rank moves. sent, received: to and from each peer. reduced, copied: written by those ops.

    wide: those of ``sent`` that travel in the accumulation type. messages: SENDs.
    """

    sent: dict[int, int]
    received: dict[int, int]
    reduced: int
    copied: int
    wide: int
    messages: int

    @property
    def total_sent(self) -> int:
        """Elements sent to all peers."""
        return sum(self.sent.values())

    @property
    def total_received(self) -> int:
        """Elements received from all peers."""
        return sum(self.received.values())


def traffic(plan: Plan, elements: int) -> Traffic:
    """Count what ``plan`` moves when its main space has so many elements (all spaces, where it has two)."""
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    reduced = copied = wide = messages = 0
    starts = plan.space0.starts(elements)
    other = plan.space1.starts(elements) if plan.space1 else starts
    for op in plan.ops:
        kind, peer = OpKind(int(op["kind"])), int(op["peer"])
        side = "src" if kind is OpKind.SEND else "dst"
        at = other if op[f"{side}_buf"] == Buf.RECV else starts
        size = at[int(op[side]) + int(op["parts"])] - at[int(op[side])]
        if kind is OpKind.SEND:
            sent[peer] = sent.get(peer, 0) + size
            wide += size if op["flags"] & Flag.WIDE else 0
            messages += 1
        elif kind in (OpKind.RECV, OpKind.RECV_REDUCE):
            received[peer] = received.get(peer, 0) + size
        reduced += size if kind in (OpKind.RECV_REDUCE, OpKind.REDUCE) else 0
        copied += size if kind is OpKind.COPY else 0
    return Traffic(sent, received, reduced, copied, wide, messages)


def between_hosts(plans: Sequence[Plan], hosts: Sequence[Sequence[int]], elements: int) -> list[tuple[int, int]]:
    """(elements sent to, received from) other hosts, by host; ``plans`` of all ranks."""
    host_of = {rank: h for h, host in enumerate(hosts) for rank in host}
    out = [[0, 0] for _ in hosts]
    for plan in plans:
        moved = traffic(plan, elements)
        h = host_of[plan.rank]
        out[h][0] += sum(n for peer, n in moved.sent.items() if host_of[peer] != h)
        out[h][1] += sum(n for peer, n in moved.received.items() if host_of[peer] != h)
    return [(a, b) for a, b in out]
