"""Max-min fair rates of flows that each cross two resources and may want less than their share.

Bertsekas and Gallager, "Data Networks" (1992), section 6.5.2: fill all flows at the same pace; a flow stops where a resource
on its way is full or its demand is met. Here all resources that are the tightest of every flow on them fill at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NEAR = 1e-9  # relative difference below which two rates count as equal


def max_min(
    out: Ints, into: Ints, demand: Floats, capacity: Floats, rounds: int | None = None, weight: Floats | None = None
) -> Floats:
    """The rate of each flow.

    out, into: the two resources of each flow, indices into ``capacity``. demand: the most each can use (inf: no limit).
    rounds: stop filling after so many, with what is safe to give to all who are left; None: exact.
    weight: how fast each flow fills; None: all alike.
    """
    rate = np.zeros(len(out))
    left = capacity.astype(np.float64).copy()
    pace = np.ones(len(out)) if weight is None else weight
    todo = np.flatnonzero(demand > 0)
    number = 0
    while len(todo):
        a, b, want, w = out[todo], into[todo], demand[todo] / pace[todo], pace[todo]
        users = used(a, b, w, len(left))
        share = np.divide(left, users, out=np.full(len(left), np.inf), where=users > 0)
        fair = np.minimum(share[a], share[b])
        number += 1
        if rounds is not None and number >= rounds:
            rate[todo] = np.minimum(fair, want) * w
            break
        satisfied = want <= fair * (1 + NEAR)
        # The ends at which a flow gets least, and those that are so for all that cross them: they fill up now.
        at_a, at_b = (~satisfied & (fair >= share[side] * (1 - NEAR)) for side in (a, b))
        held = np.bincount(a[at_a], w[at_a], len(left)) + np.bincount(b[at_b], w[at_b], len(left))
        full = held >= users * (1 - NEAR)
        stop = satisfied | full[a] & at_a | full[b] & at_b
        given = (np.minimum(fair, want) * w)[stop]
        rate[todo[stop]] = given
        left -= used(a[stop], b[stop], given, len(left))
        np.maximum(left, 0.0, out=left)
        todo = todo[~stop]
    return rate


def used(out: Ints, into: Ints, amount: Floats, resources: int) -> Floats:
    """What flows of such amounts take of each resource."""
    total: Floats = np.zeros(resources)
    for side in (out, into):
        total += np.bincount(side, amount, resources)
    return total
