"""Proof of a plan by a symbolic interpreter over all its ranks.

``verify`` shows, for one division into parts and chunks, that

1. the records are well formed (``verify_local``): ops stay within their buffers, dependencies point backwards, chunk by
   chunk only between ops of the same parts, wide payloads come from SCRATCH, nobody writes the user's input;
2. any two ops of one rank that touch the same memory, one of them writing, are ordered by dependencies chunk by chunk
   (``verify_local``). A pending SEND counts as a reader until it is acknowledged. So the order of events cannot matter;
3. the lists of messages of each pair and lane match (``verify_messages``);
4. with one chunk of buffer per pair and lane everything finishes. An event once possible stays possible, so one run
   that finishes shows that all do, and more buffer only helps (``verify_run``);
5. every rank ends with every contribution exactly once where it should be, summed in the same order on all ranks,
   rounded once, and marked FINAL once (``verify_result``).

Raises PlanError, which names rank, op and part.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..errors import InternalError
from .ir import Plan
from .verify_local import PlanError, check_races, check_structure
from .verify_memory import Sizes
from .verify_messages import check_messages
from .verify_result import check_results
from .verify_run import Run

__all__ = ["PlanError", "verify"]


def verify(
    plans: Sequence[Plan], in_place: bool = False, *, chunk: int = 2, sizes: Sequence[int] | None = None, seed: int = 0
) -> None:
    """Prove that ``plans``, one for each rank (for SEND and RECV: of the two ranks), do what their collective says.

    chunk: elements of a chunk. sizes: elements of each part of space0 (all-to-all: drawn at random); default: random
    from 0 to 3, so that chunks of ops over several parts straddle parts. seed: of sizes and of the order of events.
    Raises PlanError at the first thing that is wrong.
    """
    if not plans:
        raise InternalError("verify needs the plans of all ranks")
    rng = random.Random(seed)
    space = Sizes(plans, chunk, sizes, rng)
    for plan in plans:
        check_structure(plan, in_place)
        check_races(plan, space, in_place)
    check_messages(plans, space)
    memory = Run(plans, space, in_place, rng).finish()
    check_results(plans, space, memory, in_place)
