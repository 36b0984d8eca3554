"""Runs plans on real arrays, each rank one op after the other: a second opinion that shares no code with ``verify``."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np

from r2ccl.plan.ir import Buf, Flag, OpKind, Plan

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]


def run(
    plans: Sequence[Plan],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    starts: Callable[[Plan, int], list[int]],
    combine: Combine = np.add,
    divide: int = 1,
) -> None:
    """Executes ``plans``; ``inputs`` and ``outputs`` hold each rank's windows and may share memory.

    starts(plan, space): first element of each part, and the end. In a wide plan sums are float32. FINAL divides.
    """
    ranks = [_Rank(p, i, o, starts) for p, i, o in zip(plans, inputs, outputs, strict=True)]
    mail: dict[tuple[int, int, int], deque[np.ndarray]] = defaultdict(deque)
    while any(rank.at < len(rank.plan.ops) for rank in ranks):
        before = sum(rank.at for rank in ranks)
        for rank in ranks:
            while rank.step(mail, combine, divide):
                pass
        if sum(rank.at for rank in ranks) == before:
            raise AssertionError(f"nothing moves: ops {[rank.at for rank in ranks]}")
    assert not any(mail.values())


class _Rank:
    def __init__(
        self, plan: Plan, send: np.ndarray, recv: np.ndarray, starts: Callable[[Plan, int], list[int]]
    ) -> None:
        self.plan, self.at = plan, 0
        self._starts = {Buf.SEND: starts(plan, 0), Buf.SCRATCH: starts(plan, 0), Buf.RECV: starts(plan, 1)}
        kept = np.dtype(np.float32) if plan.wide else send.dtype
        first, end = plan.scratch_window or (0, 0)
        s0 = self._starts[Buf.SCRATCH]
        scratch = np.full(s0[end] - s0[first], 99, kept)
        self._buffers = {Buf.SEND: send, Buf.RECV: recv, Buf.SCRATCH: scratch}
        self._windows = {Buf.SEND: plan.send_window, Buf.RECV: plan.recv_window, Buf.SCRATCH: plan.scratch_window}

    def step(self, mail: dict[tuple[int, int, int], deque[np.ndarray]], combine: Combine, divide: int) -> bool:
        """Carry out the next op; False when it must wait or all are done."""
        if self.at == len(self.plan.ops):
            return False
        op = self.plan.ops[self.at]
        kind, me, peer, lane = OpKind(op["kind"]), self.plan.rank, int(op["peer"]), int(op["lane"])
        if kind is OpKind.SEND:
            mail[me, peer, lane].append(self._view(op, "src").copy())
        elif kind in (OpKind.RECV, OpKind.RECV_REDUCE):
            if not mail[peer, me, lane]:
                return False
            payload = mail[peer, me, lane].popleft()
            if self.plan.wide:
                assert payload.dtype == (np.float32 if op["flags"] & Flag.WIDE else self._buffers[Buf.RECV].dtype)
            self._write(op, payload if kind is OpKind.RECV else self._sum(op, "src", payload, combine), divide)
        elif kind is OpKind.COPY:
            self._write(op, self._view(op, "src"), divide)
        else:
            self._write(op, self._sum(op, "dst", self._view(op, "src"), combine), divide)
        self.at += 1
        return True

    def _sum(self, op: np.void, side: str, other: np.ndarray, combine: Combine) -> np.ndarray:
        own = self._view(op, side)
        return combine(own.astype(np.float32), other.astype(np.float32)) if self.plan.wide else combine(own, other)

    def _write(self, op: np.void, values: np.ndarray, divide: int) -> None:
        self._view(op, "dst")[...] = values / divide if op["flags"] & Flag.FINAL and divide > 1 else values

    def _view(self, op: np.void, side: str) -> np.ndarray:
        buf = Buf(op[f"{side}_buf"])
        starts, window = self._starts[buf], self._windows[buf]
        assert window is not None
        base = starts[window[0]]
        first = int(op[side])
        return self._buffers[buf][starts[first] - base : starts[first + int(op["parts"])] - base]
