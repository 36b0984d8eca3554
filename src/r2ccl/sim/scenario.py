"""Scenarios: TOML files that name a cluster, a workload, failures, methods, and the published figures to stand beside."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InvalidArgument
from ..types import Collective
from .cluster import Cluster
from .recovery import Costs, check_methods
from .serving import Serving
from .training import Training

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
KINDS = ("collective", "training", "serving", "montecarlo")


@dataclass(frozen=True)
class Failure:
    """A pattern of failures: lost = {server: NICs}."""

    name: str
    lost: dict[int, int]


@dataclass(frozen=True)
class Call:
    """A collective to time. bytes: of each GPU's buffer. pieces: K of R2CCL-AllReduce, for its published closed form, which
    counts flat_ranks ranks of a flat ring."""

    bytes: float
    collective: str = "all_reduce"
    pieces: tuple[int, ...] = ()
    flat_ranks: int = 0


@dataclass(frozen=True)
class Draws:
    """k failures at random, so many times."""

    failures: int
    draws: int = 500
    seed: int = 1


@dataclass(frozen=True)
class Published:
    """A figure to stand beside: extra time as a fraction, or T / T_healthy of a collective."""

    failure: str
    method: str
    value: float


@dataclass(frozen=True)
class Scenario:
    """What one file says. assumptions: printed with every result. source: of the published figures."""

    name: str
    kind: str
    title: str
    cluster: Cluster
    methods: tuple[str, ...]
    failures: tuple[Failure, ...] = ()
    assumptions: tuple[str, ...] = ()
    source: str = ""
    call: Call | None = None
    training: Training | None = None
    serving: Serving | None = None
    draws: Draws | None = None
    costs: Costs = field(default_factory=Costs)
    published: tuple[Published, ...] = ()

    def published_of(self, failure: str, method: str) -> float | None:
        """The figure for a row, if there is one."""
        return next((p.value for p in self.published if (p.failure, p.method) == (failure, method)), None)


NEEDS = {"collective": "call", "training": "training", "serving": "serving", "montecarlo": "draws"}


def shipped() -> list[str]:
    """Names of the scenarios that come with the package."""
    folder = resources.files(__package__) / "scenarios"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Scenario:
    """A shipped scenario by name, or a file by path. Raises InvalidArgument naming what is wrong."""
    if name in shipped():
        return read(name, (resources.files(__package__) / "scenarios" / f"{name}.toml").read_text("utf-8"))
    path = Path(name)
    if not path.is_file():
        near = difflib.get_close_matches(name, shipped(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidArgument(f"scenario {name!r}: neither a file nor one of {', '.join(shipped())}{hint}")
    return read(path.stem, path.read_text("utf-8"))


def read(name: str, text: str) -> Scenario:
    """A scenario from TOML text."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"scenario {name}: {error}") from None
    parts: dict[str, Any] = {
        key: make(cls, raw.pop(key), f"{name}: [{key}]")
        for key, cls in (
            ("cluster", Cluster),
            ("training", Training),
            ("serving", Serving),
            ("draws", Draws),
            ("costs", Costs),
        )
        if key in raw
    }
    if "call" in raw:
        call = raw.pop("call")
        parts["call"] = make(Call, {**call, "pieces": tuple(call.get("pieces", ()))}, f"{name}: [call]")
        if parts["call"].collective.upper() not in Collective.__members__:
            raise InvalidArgument(f"{name}: collective = {parts['call'].collective!r} is not a collective")
    failures = []
    for entry in raw.pop("failure", []):
        lost = {_server(server, name): number for server, number in entry.pop("lost", {}).items()}
        failures.append(make(Failure, {**entry, "lost": lost}, f"{name}: [[failure]]"))
    published = tuple(make(Published, p, f"{name}: [[published]]") for p in raw.pop("published", []))
    for key in ("methods", "assumptions"):
        raw[key] = tuple(raw.get(key, ()))
    parts.update(name=name, failures=tuple(failures), published=published)
    scenario = make(Scenario, {**raw, **parts}, name)
    if scenario.kind not in KINDS:
        raise InvalidArgument(f"{name}: kind = {scenario.kind!r} is not one of {', '.join(KINDS)}")
    if getattr(scenario, NEEDS[scenario.kind]) is None:
        raise InvalidArgument(f"{name}: a scenario of kind {scenario.kind} needs a table [{NEEDS[scenario.kind]}]")
    check_methods(list(scenario.methods), ("vanilla", "adapcc", "dejavu"))
    return scenario


def _server(text: str, name: str) -> int:
    if not text.isdigit():
        raise InvalidArgument(f"{name}: lost = {{ {text} = … }}: the key is the number of a server, from 0")
    return int(text)


def make(cls: type[T], values: dict[str, Any], where: str) -> T:
    """A dataclass from a table; refuses unknown keys and reports missing ones."""
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise InvalidArgument(f"{where}: unknown key {key!r}" + (f"; did you mean {near[0]}?" if near else ""))
    try:
        return cls(**values)
    except TypeError as error:
        raise InvalidArgument(f"{where}: {error}") from None
