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


def max_min(out: Ints, into: Ints, demand: Floats, capacity: Floats, rounds: int | None = None) -> Floats:
    """The rate of each flow.

    out, into: the two resources of each flow, indices into ``capacity``. demand: the most each can use (inf: no limit).
    rounds: stop filling after so many, with what is safe to give to all who are left; None: exact.
    """
    rate = np.zeros(len(out))
    left = capacity.astype(np.float64).copy()
    todo = np.flatnonzero(demand > 0)
    number = 0
    while len(todo):
        a, b, want = out[todo], into[todo], demand[todo]
        users = np.bincount(a, minlength=len(left)) + np.bincount(b, minlength=len(left))
        share = np.divide(left, users, out=np.full(len(left), np.inf), where=users > 0)
        fair = np.minimum(share[a], share[b])
        number += 1
        if rounds is not None and number >= rounds:
            rate[todo] = np.minimum(fair, want)
            break
        held = share * (1 + NEAR)
        tight = np.bincount(a[fair >= share[a] * (1 - NEAR)], minlength=len(left))
        tight += np.bincount(b[fair >= share[b] * (1 - NEAR)], minlength=len(left))
        full = tight >= users  # the bottleneck of all that cross it
        satisfied = want <= np.minimum(held[a], held[b])
        stop = satisfied | full[a] & (fair >= share[a] * (1 - NEAR)) | full[b] & (fair >= share[b] * (1 - NEAR))
        given = np.minimum(fair, want)[stop]
        rate[todo[stop]] = given
        left -= np.bincount(a[stop], given, len(left)) + np.bincount(b[stop], given, len(left))
        np.maximum(left, 0.0, out=left)
        todo = todo[~stop]
    return rate
