"""The verifier's model of memory: how many elements each part has, and what an element holds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InternalError
from ..types import Collective
from .ir import Buf, OpKind, Plan

Range = tuple[int, int]


class Sizes:
    """Element numbers: where parts lie, and how ops are cut into chunks of ``chunk`` elements."""

    def __init__(self, plans: Sequence[Plan], chunk: int, sizes: Sequence[int] | None, rng: random.Random) -> None:
        first = plans[0]
        for plan in plans:
            if _shape(plan) != _shape(first):
                raise InternalError(f"rank {plan.rank}: another plan than rank {first.rank}: {plan!r} / {first!r}")
        self.chunk = chunk
        self.nranks = first.nranks
        parts = first.space0.parts
        self._starts: dict[tuple[int, int], list[int]] = {}
        if first.space1 is None:
            per_part = list(sizes) if sizes is not None else [rng.randint(0, 3) for _ in range(parts)]
            if first.collective is Collective.BARRIER:
                per_part = [1] * parts  # a barrier moves no element; one stands for "has heard of"
            if len(per_part) != parts:
                raise InternalError(f"{len(per_part)} sizes for {parts} parts")
            for rank in range(self.nranks):
                self._starts[rank, 0] = _cumulative(per_part)
        else:
            split = first.space0.split
            matrix = [[rng.randint(0, 3) for _ in range(parts)] for _ in range(self.nranks)]
            for rank in range(self.nranks):
                self._starts[rank, 0] = _cumulative(matrix[rank])
                columns = [matrix[frm][rank * split + j] for frm in range(self.nranks) for j in range(split)]
                self._starts[rank, 1] = _cumulative(columns)

    def span(self, plan: Plan, buf: int, first: int, parts: int) -> Range:
        """Elements of parts of one buffer, counted from part 0 of its space."""
        starts = self._starts[plan.rank, space_of(plan, buf)]
        return starts[first], starts[first + parts]

    def total(self, plan: Plan, buf: int) -> int:
        """Elements of the space that lays out one buffer."""
        return self._starts[plan.rank, space_of(plan, buf)][-1]

    def part_at(self, plan: Plan, buf: int, element: int) -> int:
        """The part that holds an element."""
        starts = self._starts[plan.rank, space_of(plan, buf)]
        return next(p for p in range(len(starts) - 1) if starts[p] <= element < starts[p + 1])

    def chunks(self, plan: Plan, op: int) -> int:
        """Chunks of an op: at least one, which may be empty."""
        start, end = self.span(plan, *here(plan, op))
        return max(1, -(-(end - start) // self.chunk))

    def elements(self, plan: Plan, op: int, chunk: int, buf: int, first: int) -> Range:
        """Elements that one chunk of an op covers on its dst or src side."""
        start, end = self.span(plan, buf, first, int(plan.ops[op]["parts"]))
        return min(end, start + chunk * self.chunk), min(end, start + (chunk + 1) * self.chunk)


def space_of(plan: Plan, buf: int) -> int:
    """The space that lays out a buffer."""
    return 1 if plan.space1 is not None and buf == Buf.RECV else 0


def here(plan: Plan, op: int) -> tuple[int, int, int]:
    """(buffer, first part, parts) of the side on which an op's chunks are counted: dst, or src of a SEND."""
    row = plan.ops[op]
    side = "src" if row["kind"] == OpKind.SEND else "dst"
    return int(row[f"{side}_buf"]), int(row[side]), int(row["parts"])


class Value(NamedTuple):
    """What an element holds: contributions (sorted, with repetition), whether FINAL, and the order of summation."""

    terms: tuple[tuple[int, object], ...]
    final: bool
    shape: object


Memory = dict[tuple[int, int], list[Value | None]]  # by rank and buffer: the elements of its space


def leaf(rank: int, element: object) -> Value:
    """One rank's own contribution to one element."""
    return Value(((rank, element),), False, (rank, element))


def combine(a: Value, b: Value, seen: dict[object, int]) -> Value:
    """a o b; o is commutative but not associative, so equal shapes mean equal bits. ``seen`` numbers the shapes."""
    pair = frozenset((a.shape, b.shape))
    return Value(tuple(sorted(a.terms + b.terms)), False, seen.setdefault(pair, len(seen)))


def _shape(plan: Plan) -> tuple[object, ...]:
    two_ranks = plan.collective in (Collective.SEND, Collective.RECV)
    return plan.space0, plan.space1, plan.nranks, plan.wide, "send/recv" if two_ranks else plan.collective


def _cumulative(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts
