"""Choice of a plan: the cheapest algorithm that applies, or the one asked for. Pure, and equal on all ranks."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from ..errors import InvalidArgument
from ..types import Collective
from .algorithms import ALGORITHMS, Algorithm, Talks
from .cost import Model
from .ir import Plan
from .shape import ClusterShape
from .task import Task

WIDE_BYTES = 4  # of an element in the accumulation type
# On damaged clusters costs that differ by less count as equal, and the wire decides: how much bandwidth is left in
# proportion is known better than how much it is, since drivers tell what a NIC could do at best.
ALIKE = 0.15


@dataclass(frozen=True)
class PlanRequest:
    """What a call needs a plan for; with the rank, the key under which plans are kept.

    nbytes: of the whole main space, rounded up by ``size_class`` so that few plans are made. itemsize: bytes of an
    element. wide, in_place, root: see Task. v: counts differ between ranks. peer: of SEND and RECV.
    """

    collective: Collective
    nbytes: int
    itemsize: int = 4
    wide: bool = False
    in_place: bool = False
    root: int = 0
    v: bool = False
    peer: int = -1


def size_class(nbytes: int) -> int:
    """The next power of two: calls of one class share a plan."""
    return 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0


def choose(
    request: PlanRequest, shape: ClusterShape, rank: int, algorithm: str = "", deterministic: bool = False
) -> Plan:
    """This rank's plan. ``algorithm`` is Config.algorithm, see ``pick``. Raises InvalidArgument.

    deterministic: as if nothing were lost, so that the order of reduction stays whatever happens.
    """
    if deterministic:
        shape = shape.undamaged
    chosen = pick(request, shape, algorithm)
    if chosen.talks is Talks.NEIGHBOURS:
        shape = shape.in_ring_order or shape
    task = Task(
        collective=request.collective,
        nranks=shape.nranks,
        rank=rank,
        root=request.root,
        wide=request.wide,
        in_place=request.in_place,
        hosts=shape.hosts,
        peer=request.peer,
        host_gbs=shape.gbs,
        rails=shape.rails_apart if chosen.talks is Talks.REACHABLE else (),
    )
    return chosen.build(task)


def pick(request: PlanRequest, shape: ClusterShape, algorithm: str = "") -> Algorithm:
    """The algorithm for a request; depends on nothing that differs between ranks.

    ``algorithm``: empty, one name for all collectives that have it, or ``all_reduce=ring,broadcast=chain``. A single
    name is passed over where the collective has no such algorithm or it does not apply; a name given for a collective
    must apply. Raises InvalidArgument with the names to choose from.
    """
    able = _able(request, shape)
    forced, strict = _forced(request.collective, algorithm)
    if forced:
        for a in able:
            if a.name == forced:
                return a
        if strict:
            raise InvalidArgument(
                f"algorithm {forced!r} does not apply to {_name(request.collective)} on {shape.nranks} ranks and "
                f"{len(shape.hosts)} hosts{' with counts that differ' if request.v else ''}"
                f"{', some of which share no rail' if shape.rails_apart else ''}: use one of "
                f"{', '.join(a.name for a in able)}"
            )
    model = _model(request, shape)
    if not shape.uneven and not shape.rails_apart:
        return min((a for a in able if not a.uneven), key=lambda a: _weighed(model, a)[0])
    costs = [(*_weighed(model, a), a) for a in able]
    least = min(us for us, _, _ in costs)
    return min((cost for cost in costs if cost[0] <= (1 + ALIKE) * least), key=lambda cost: cost[:2][::-1])[2]


def costs_us(request: PlanRequest, shape: ClusterShape) -> dict[str, float]:
    """Estimated microseconds of every algorithm that applies, for reports and tests."""
    model = _model(request, shape)
    return {a.name: _weighed(model, a)[0] for a in _able(request, shape)}


def _able(request: PlanRequest, shape: ClusterShape) -> list[Algorithm]:
    """The algorithms that apply, in order of preference.

    Where some hosts share no rail: those that let only others speak; all of them if there is none, since rails return.
    """
    able = [a for a in ALGORITHMS[request.collective] if a.applies(shape.nranks, len(shape.hosts), request.v)]
    if not shape.rails_apart:
        return able
    ring = shape.in_ring_order is not None
    fit = [a for a in able if a.talks is Talks.REACHABLE or (ring and a.talks is Talks.NEIGHBOURS)]
    return fit or able


def check_algorithm(text: str) -> None:
    """Raise InvalidArgument when Config.algorithm names something that does not exist. Called at init."""
    for collective in ALGORITHMS:
        _forced(collective, text)


def _forced(collective: Collective, text: str) -> tuple[str, bool]:
    """The name asked for this collective, and whether it was asked for this collective only."""
    found = ("", False)
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        where, equals, name = item.rpartition("=")
        if equals:
            known = [_name(c) for c in ALGORITHMS]
            if where not in known:
                raise InvalidArgument(f"Config.algorithm = {text!r}: {where!r} is not one of {', '.join(known)}")
            names = [a.name for a in ALGORITHMS[Collective[where.upper()]]]
        else:
            names = sorted({a.name for algorithms in ALGORITHMS.values() for a in algorithms})
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            of = f" of {where}" if equals else ""
            raise InvalidArgument(f"Config.algorithm = {text!r}: {name!r} is not one{of}: {', '.join(names)}{hint}")
        if equals and where == _name(collective):
            found = (name, True)
        elif not equals and not found[1]:
            found = (name, False)
    return found


def _weighed(model: Model, a: Algorithm) -> tuple[float, float]:
    """Microseconds, and bytes on the wire of the busiest host."""
    load = a.load(model)
    return model.us(load, neighbours=a.talks is Talks.NEIGHBOURS), load.net


def _model(request: PlanRequest, shape: ClusterShape) -> Model:
    return Model(shape, request.nbytes, w=WIDE_BYTES / request.itemsize if request.wide else 1.0)


def _name(collective: Collective) -> str:
    return collective.name.lower()
