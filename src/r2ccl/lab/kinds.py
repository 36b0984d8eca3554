"""The kinds of faults, as data: names, arguments and what each does. Shared by the grammar and the injector."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument

MGMT = -1
"""Rail number of the unlimited bootstrap network, wherever a fault takes a rail."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    ``arguments`` are (name, parser of its text) pairs, of which the first ``required`` must be given.
    ``cuts``: nothing useful gets through in at least one direction. ``needs_nft``: injected by a packet filter.
    """

    name: str
    help: str
    arguments: tuple[tuple[str, Callable[[str], Any]], ...] = ()
    required: int = 0
    cuts: bool = False
    needs_nft: bool = False

    def read(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments as values, from texts (``200ms``) or numbers. Raises ``ValueError`` that says what is allowed."""
        if not self.required <= len(arguments) <= len(self.arguments):
            given = " ".join(map(str, arguments)) or "nothing"
            raise ValueError(f"{self.name} is followed by {given!r}; it is written: {self.usage}")
        return tuple(
            parse(f"{argument}s" if parse is parse_duration_s and isinstance(argument, int | float) else str(argument))
            for (_, parse), argument in zip(self.arguments, arguments, strict=False)
        )

    @property
    def usage(self) -> str:
        """The kind with its arguments, as one writes it."""
        words = [name if i < self.required else f"[{name}]" for i, (name, _) in enumerate(self.arguments)]
        return " ".join([self.name, *words])


def parse_duration_s(text: str) -> float:
    """Seconds from ``2s``, ``500ms`` or ``1.5s``. Raises ``ValueError`` that says what is allowed."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: a number and its unit, like 500ms or 2s")
    return float(match[1]) * (1e-3 if match[2] == "ms" else 1.0)


def parse_rate(text: str) -> str:
    """A rate as ``tc`` takes it (``50mbit``). Raises ``ValueError`` that says what is allowed."""
    if re.fullmatch(r"\d+(\.\d+)?[kmg]?bit", text) is None or float(text.rstrip("kmgbit")) == 0:
        raise ValueError(f"{text!r} is no rate: a number above 0 and bit, kbit, mbit or gbit, like 50mbit")
    return text


def rate_bits_per_s(rate: str) -> float:
    """Bits per second of a rate like ``200mbit``."""
    text = parse_rate(rate)
    return float(text.rstrip("kmgbit")) * {"k": 1e3, "m": 1e6, "g": 1e9}.get(text[-4], 1.0)


def _percent(text: str) -> float:
    number = text.removesuffix("%")
    value = float(number) if re.fullmatch(r"\d+(\.\d+)?", number) else -1.0
    if not 0 < value <= 100:
        raise ValueError(f"{text!r} is no percentage: above 0, at most 100")
    return value


def _count(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise ValueError(f"{text!r} is no count: a whole number above 0")
    return int(text)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("down", "the host's interface is set down", cuts=True),
        Kind("port-down", "the switch port goes down: the host loses carrier", cuts=True),
        Kind("removed", "the NIC disappears from the host", cuts=True),
        Kind("address", "the NIC loses its address", cuts=True),
        Kind("route", "the host loses its route to the rail's network"),
        Kind("blackhole", "silent loss of everything, both ways", cuts=True, needs_nft=True),
        Kind("rx-drop", "silent loss of everything the host should receive", cuts=True, needs_nft=True),
        Kind("tx-drop", "silent loss of everything the host sends", cuts=True, needs_nft=True),
        Kind("loss", "random loss, in percent of frames, both ways", (("PERCENT", _percent),), 1, needs_nft=True),
        Kind("rate", "another rate limit, both ways", (("RATE", parse_rate),), 1),
        Kind(
            "flap",
            "the port goes down and up, TIME each, COUNT times",
            (("TIME", parse_duration_s), ("COUNT", _count)),
            1,
        ),
        Kind("switch", "the whole rail's switch goes down; carrier stays; host= is not needed", cuts=True),
        Kind("reset", "every TCP segment the host sends is answered with RST", needs_nft=True),
        Kind("heal", "ends every fault of the rail; without host= or rail=: of all of them"),
    )
}


def kind_named(name: str) -> Kind:
    """The kind, or ``InvalidArgument`` that lists the kinds."""
    if name in KINDS:
        return KINDS[name]
    near = difflib.get_close_matches(name, KINDS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InvalidArgument(f"unknown fault {name!r}{hint} Allowed: {', '.join(k.usage for k in KINDS.values())}")
