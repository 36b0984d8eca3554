"""What every rank must hold when all is done, by collective."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import Collective
from .ir import Buf, Plan
from .task import REDUCING
from .verify_local import PlanError
from .verify_memory import Memory, Sizes, Value


def check_results(plans: Sequence[Plan], sizes: Sizes, memory: Memory, in_place: bool) -> None:
    """Raise PlanError unless the output of each rank is what its collective says, with the same bits everywhere."""
    for plan in plans:
        if plan.recv_window is None:
            continue
        for part in range(*plan.recv_window):
            start, end = sizes.span(plan, Buf.RECV, part, 1)
            for element in range(start, end):
                value = memory[plan.rank, Buf.RECV][element]
                if value is None:
                    raise PlanError("the result is never written", plan, None, part)
                if plan.collective is Collective.BARRIER:
                    _check_barrier(plan, part, value)
                elif plan.collective in REDUCING:
                    first = memory[0, Buf.RECV][element] if plan.collective is Collective.ALL_REDUCE else value
                    _check_sum(plan, part, element, value, first, in_place)
                else:
                    _check_block(plan, sizes, part, element, value)


def _check_barrier(plan: Plan, part: int, value: Value) -> None:
    heard = sorted({rank for rank, _ in value.terms})
    if heard != list(range(plan.nranks)):
        raise PlanError(f"has heard of ranks {heard} only", plan, None, part)


def _check_sum(plan: Plan, part: int, element: int, value: Value, first: Value | None, in_place: bool) -> None:
    alone = plan.nranks == 1 and in_place  # nothing to do, and an average of one is itself
    if value.terms != tuple((rank, element) for rank in range(plan.nranks)) or not (value.final or alone):
        raise PlanError(f"holds {value}, not the finished sum of {plan.nranks} ranks", plan, None, part)
    if first is None or first.shape != value.shape:
        raise PlanError("was summed in another order than on rank 0", plan, None, part)


def _check_block(plan: Plan, sizes: Sizes, part: int, element: int, value: Value) -> None:
    split = plan.space0.split
    source = {
        Collective.BROADCAST: plan.root,
        Collective.SCATTER: plan.root,
        Collective.RECV: value.terms[0][0],  # whoever it came from: check_messages has matched the two
    }.get(plan.collective, part // split)
    place: object = element
    if plan.space1 is not None:
        place = (plan.rank * split + part % split, element - sizes.span(plan, Buf.RECV, part, 1)[0])
    if value.terms != ((source, place),):
        raise PlanError(f"holds {value}, not the block of rank {source}", plan, None, part)
