"""Shares: how the chunks for one peer divide over the links to it, with a ready row for the loss of each.

In proportion to bandwidth, so that all links finish together (Balance in arXiv 2512.25059, section 5); never equal
over unequal paths. The fast loop switches rows by itself, so no loss waits for Python.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument


@dataclass(frozen=True, eq=False)
class Shares:
    """``table``: float32 array (1 + links, links), C-contiguous and read-only, as the core reads it.

    Row 0 is for all links alive, row 1 + i for link i lost. A row sums to 1, or is all 0 when no usable link is left.
    """

    table: npt.NDArray[np.float32]

    @property
    def links(self) -> int:
        """How many links the table divides over."""
        return int(self.table.shape[1])

    def row(self, lost: Collection[int] = ()) -> npt.NDArray[np.float32]:
        """Weights with these links lost: a row of the table; beyond it the survivors of row 0, renormalised."""
        gone = sorted(set(lost))
        if any(not 0 <= link < self.links for link in gone):
            raise InvalidArgument(f"lost links {gone} of {self.links}")
        if len(gone) < 2:
            ready: npt.NDArray[np.float32] = self.table[gone[0] + 1 if gone else 0]
            return ready
        weights = self.table[0].astype(np.float64)
        weights[gone] = 0.0
        return _normal(weights)


def shares(link_gbs: Sequence[float]) -> Shares:
    """Shares over links of these bandwidths (any unit; 0: known but not to be used now).

    Raises InvalidArgument when a bandwidth is negative or not finite, or when there is no link.
    """
    speed = np.array(link_gbs, np.float64)
    if speed.ndim != 1 or not speed.size or not np.isfinite(speed).all() or (speed < 0).any():
        raise InvalidArgument(f"link bandwidths {list(link_gbs)}: at least one, each finite and not negative")
    table = np.zeros((speed.size + 1, speed.size), np.float32)
    table[0] = _normal(speed)
    for lost in range(speed.size):
        left = speed.copy()
        left[lost] = 0.0
        table[lost + 1] = _normal(left)
    table.flags.writeable = False
    return Shares(table)


def _normal(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    most = weights.max()
    if most <= 0:
        return np.zeros(weights.size, np.float32)
    scaled = weights / most  # first to at most 1: a sum of huge values must not overflow
    return np.asarray(scaled / scaled.sum(), np.float32)
