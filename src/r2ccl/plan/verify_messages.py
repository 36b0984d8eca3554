"""Messages: what each flow carries in program order, and whether both ends agree on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from .ir import Flag, OpKind, Plan
from .verify_local import PlanError
from .verify_memory import Sizes, here

Flow = tuple[int, int, int]  # sender, receiver, lane
INCOMING = (OpKind.RECV, OpKind.RECV_REDUCE)


def flows(plans: Sequence[Plan]) -> tuple[dict[Flow, list[int]], dict[Flow, list[int]]]:
    """Ops that send, and ops that receive, of each flow in program order."""
    sends: dict[Flow, list[int]] = defaultdict(list)
    recvs: dict[Flow, list[int]] = defaultdict(list)
    for plan in plans:
        for op, row in enumerate(plan.ops):
            peer, lane = int(row["peer"]), int(row["lane"])
            if row["kind"] == OpKind.SEND:
                sends[plan.rank, peer, lane].append(op)
            elif row["kind"] in INCOMING:
                recvs[peer, plan.rank, lane].append(op)
    return sends, recvs


def check_messages(plans: Sequence[Plan], sizes: Sizes) -> None:
    """Message k of the sender is message k of the receiver: same parts, same number of elements, same width."""
    by_rank = {plan.rank: plan for plan in plans}
    sends, recvs = flows(plans)
    for flow in sorted(set(sends) | set(recvs)):
        src, dst, lane = flow
        outgoing, incoming = sends.get(flow, []), recvs.get(flow, [])
        if len(outgoing) != len(incoming) or src not in by_rank or dst not in by_rank:
            what = f"sends {len(outgoing)} messages in lane {lane} to rank {dst}, which expects {len(incoming)}"
            raise PlanError(what, by_rank.get(src, plans[0]))
        for k, (a, b) in enumerate(zip(outgoing, incoming, strict=True)):
            sent, got = here(by_rank[src], a), here(by_rank[dst], b)
            one_space = by_rank[src].space1 is None
            lengths = [end - start for start, end in (sizes.span(by_rank[src], *sent), sizes.span(by_rank[dst], *got))]
            if (one_space and sent[1:] != got[1:]) or lengths[0] != lengths[1]:
                what = f"message {k} covers parts {sent[1:]}, but rank {dst} expects {got[1:]} (first, number)"
                raise PlanError(what, by_rank[src], a, sent[1])
            if (by_rank[src].ops[a]["flags"] ^ by_rank[dst].ops[b]["flags"]) & Flag.WIDE:
                raise PlanError(f"message {k}: rank {dst} expects the other width", by_rank[src], a, sent[1])
