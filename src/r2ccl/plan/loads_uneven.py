"""The load of all-reduce algorithms for hosts of different bandwidths; like ``loads``, in the symbols of ``cost.Model``.

``Load.net`` is what the weakest host would have to move to take as long as the slowest host does.
"""

from __future__ import annotations

from . import optcc, partial_rings
from .across import PIECES
from .cost import Load, Model, Steps
from .forest import forest
from .packing import Kind, best_kind, packing

# Transfers that may not all begin at once share the links otherwise than they should: of trees of several levels, as
# simulated with 9 to 20 hosts and max-min fair links. Stars come within 2 % of their time.
UNFAIR = 1.12


def all_reduce_packing(m: Model, kind: Kind | None) -> Load:
    """Each class up its tree and down again: what a host sends and receives is in proportion to its bandwidth."""
    rails = m.shape.rails_apart
    kind = kind or (Kind.STAR if rails else best_kind(m.H))
    packed, trees = packing(m.shape.gbs, kind), forest(m.shape.gbs, kind, rails)
    degree = float(packed.degrees.max())
    messages = 2 * (m.H - 1) if kind is Kind.STAR else 2 * degree * trees.classes
    time = trees.time(packed.weights) * (1.0 if kind is Kind.STAR else UNFAIR)
    return _across(m, time, degree, 2 * trees.depth, messages, max(PIECES, trees.classes))


def all_reduce_optcc(m: Model) -> Load:
    """The fast hosts in a ring, the slow ones beside it."""
    fast, _ = optcc.split_hosts(m.shape.gbs)
    pieces = max(1, optcc.PIECES // len(fast))
    degree = 1 + (m.H - 2) / len(fast)
    messages = 2 * degree * len(fast) * pieces
    return _across(m, optcc.time(m.shape.gbs), degree, 2 * len(fast), messages, len(fast) * pieces)


def all_reduce_partial_rings(m: Model) -> Load:
    """A ring of all hosts and rings of the faster ones, then the tail."""
    blocks = sum(len(level.members) for level in partial_rings.levels(m.shape.gbs))
    pieces = max(1, partial_rings.PIECES // blocks)
    return _across(m, partial_rings.time(m.shape.gbs, pieces), 2.0, 3 * m.H, 6 * blocks * pieces, blocks * pieces)


def _across(m: Model, time: float, degree: float, steps: int, messages: float, inside: float) -> Load:
    """time: on the wire for one unit of data. degree: how often the busiest host sends the data, half of it partial sums.

    steps, messages: between hosts, of the busiest rank. inside: messages from it to each other rank of its host, one way.
    """
    half = degree / 2 * m.D / m.columns
    local = (m.L - 1) / m.L * m.D
    return Load(
        Steps(steps, 2 * (m.L > 1)),
        net=time * m.shape.weakest_gbs * m.D * (1 + m.w) / 2,
        sent=2 * local + half * (1 + m.w),
        received=local + half,
        reduced=local + half,
        messages=4 * inside * (m.L - 1) / m.L,
        net_messages=max(0.0, messages - steps),
        fill=steps - 2,
    )
