"""What plans send, as arrays: every message of every rank, the lane it queues in, and what must have arrived before it.

A SEND waits for the messages whose content it forwards: those of the RECV and RECV_REDUCE ops that it depends on, directly
or through other ops of its rank. That a receiver has room, and that reducing keeps pace, is taken for granted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidArgument
from ..plan.ir import Flag, OpKind, Plan
from .fair import Floats, Ints

MOST_LANES = 256  # of a pair of ranks; Plan.ops keeps a lane in one byte


@dataclass(frozen=True)
class Local:
    """One rank's messages. to, lane_out, size: of each SEND; frm, lane_in: of each receiving op, in program order.

    needs: for each SEND the receiving ops (their number among them) that it waits for; whole: it waits for their end.
    """

    to: Ints
    lane_out: Ints
    size: Floats
    frm: Ints
    lane_in: Ints
    needs: tuple[tuple[tuple[int, bool], ...], ...]

    def turned(self, by: int, nranks: int) -> Local:
        """The same for the rank ``by`` places further, in a schedule that looks alike from all ranks."""
        to, frm = (self.to + by) % nranks, (self.frm + by) % nranks
        return Local(to, self.lane_out, self.size, frm, self.lane_in, self.needs)


@dataclass(frozen=True)
class Messages:
    """All messages, those of one lane of one pair next to each other and in order.

    src, dst: ranks. size: bytes. first: where each lane's messages begin, and their number at the end.
    need, need_whole, need_first: messages that message m waits for are need[need_first[m] : need_first[m + 1]].
    """

    src: Ints
    dst: Ints
    size: Floats
    first: Ints
    need: Ints
    need_whole: Ints
    need_first: Ints


def local_of(plan: Plan, nbytes: int, wide: float = 2.0) -> Local:
    """Messages of ``plan`` when its main space has ``nbytes``; ``wide``: growth of a payload in the accumulation type."""
    starts = np.array(plan.space0.starts(nbytes), np.float64)
    ops = plan.ops
    sends = ops["kind"] == OpKind.SEND
    takes = (ops["kind"] == OpKind.RECV) | (ops["kind"] == OpKind.RECV_REDUCE)
    out = ops[sends]
    first = out["src"].astype(np.int64)
    size = starts[first + out["parts"].astype(np.int64)] - starts[first]
    size = np.where(out["flags"] & Flag.WIDE != 0, size * wide, size)
    into = ops[takes]
    return Local(
        out["peer"].astype(np.int64),
        out["lane"].astype(np.int64),
        size,
        into["peer"].astype(np.int64),
        into["lane"].astype(np.int64),
        _needs(plan),
    )


def gather(ranks: Sequence[Local]) -> Messages:
    """The messages of all ranks, each SEND joined to its receiving op."""
    n = len(ranks)
    sent = np.array([len(r.to) for r in ranks], np.int64)
    taken = np.array([len(r.frm) for r in ranks], np.int64)
    src, to = np.repeat(np.arange(n), sent), np.concatenate([r.to for r in ranks])
    at, frm = np.repeat(np.arange(n), taken), np.concatenate([r.frm for r in ranks])
    key_out = (src * n + to) * MOST_LANES + np.concatenate([r.lane_out for r in ranks])
    key_in = (frm * n + at) * MOST_LANES + np.concatenate([r.lane_in for r in ranks])
    order, order_in = np.argsort(key_out, kind="stable"), np.argsort(key_in, kind="stable")
    if len(order) != len(order_in) or (key_out[order] != key_in[order_in]).any():
        raise InvalidArgument(
            f"{len(order)} SENDs and {len(order_in)} RECVs of {n} plans do not match: plan all ranks alike"
        )
    arrives = np.empty(len(order_in), np.int64)  # the message that a receiving op takes
    arrives[order_in] = np.arange(len(order_in))
    counts = np.concatenate([[len(needs) for needs in r.needs] for r in ranks]).astype(np.int64)
    base = np.cumsum(taken) - taken
    flat = [(base[i] + op, whole) for i, r in enumerate(ranks) for needs in r.needs for op, whole in needs]
    pairs = np.array(flat, np.int64).reshape(-1, 2)
    begin = np.cumsum(counts) - counts
    counts = counts[order]
    need_first = np.concatenate([[0], np.cumsum(counts)])
    index = spans(begin[order], counts)
    keys = key_out[order]
    first = np.append(np.flatnonzero(np.diff(keys, prepend=-1)), len(keys))
    size = np.concatenate([r.size for r in ranks])[order]
    return Messages(src[order], to[order], size, first, arrives[pairs[index, 0]], pairs[index, 1], need_first)


def spans(begin: Ints, counts: Ints) -> Ints:
    """begin[0] .. begin[0] + counts[0] - 1, begin[1] .. and so on, in one array."""
    ends = np.cumsum(counts)
    result: Ints = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begin - (ends - counts), counts)
    return result


def _needs(plan: Plan) -> tuple[tuple[tuple[int, bool], ...], ...]:
    kinds = plan.ops["kind"].tolist()
    first, count = plan.ops["dep_first"].tolist(), plan.ops["dep_count"].tolist()
    deps = list(zip(plan.deps["op"].tolist(), plan.deps["whole"].tolist(), strict=True))
    reached: list[dict[int, bool]] = []
    needs, number = [], 0
    for op, kind in enumerate(kinds):
        mine: dict[int, bool] = {}
        for d, whole in deps[first[op] : first[op] + count[op]]:
            if kinds[d] == OpKind.SEND:
                continue  # its memory was to be free; what overwrites it comes later anyhow
            for message, all_of_it in reached[d].items():
                mine[message] = mine.get(message, False) or all_of_it or bool(whole)
        if kind == OpKind.SEND:
            needs.append(tuple(mine.items()))
        elif kind == OpKind.RECV:
            mine = {number: False}
        elif kind == OpKind.RECV_REDUCE:
            mine[number] = False
        number += kind in (OpKind.RECV, OpKind.RECV_REDUCE)
        reached.append(mine)
    return tuple(needs)
