"""The grammar of ``--fault``: ``t=2s host=0 rail=1 down``, ``on='step 3' after=80ms host=1 rail=2 loss 30 for=500ms``.

Words with ``=`` stand anywhere; the first other word is the kind, those after it are its arguments.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument
from .kinds import MGMT, kind_named, parse_duration_s

_KEYS = ("t", "on", "after", "host", "rail", "for")


@dataclass(frozen=True)
class ScheduledFault:
    """One fault and when it is due: ``at_s`` seconds after the ranks started, or when a line contains ``on``.

    ``after_s``: so many seconds after that line. ``host`` or ``rail`` is None where the kind does not need it.
    ``for_s``: healed after so many seconds.
    """

    text: str
    kind: str
    host: int | None
    rail: int | None
    arguments: tuple[Any, ...] = ()
    at_s: float | None = None
    on: str | None = None
    for_s: float | None = None
    after_s: float | None = None


def parse_fault(text: str, hosts: int, rails: int) -> ScheduledFault:
    """Reads one ``--fault`` for a fabric of so many hosts and rails. Raises ``InvalidArgument`` naming the word."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _bad(text, f"{error}; quotes must be closed") from None
    values: dict[str, str] = {}
    bare: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            bare.append(word)
        elif key not in _KEYS:
            raise _bad(text, f"unknown word {word!r}: {', '.join(k + '=' for k in _KEYS)} or a kind of fault")
        elif key in values:
            raise _bad(text, f"{key}= is given twice")
        elif not value:
            raise _bad(text, f"{word!r} has no value")
        else:
            values[key] = value
    if ("t" in values) == ("on" in values):
        raise _bad(text, "exactly one of t=TIME (like t=2s) and on=TEXT (a text in the ranks' output) is needed")
    if "after" in values and "on" not in values:
        raise _bad(text, "after= is counted from the line that on= waits for, and there is no on=")
    if not bare:
        raise _bad(text, "no kind of fault is named, such as down, blackhole or heal")
    try:
        kind = kind_named(bare[0])
        arguments = kind.read(bare[1:])
    except ValueError as error:  # InvalidArgument is one
        raise _bad(text, str(error)) from None
    host = _index(text, values, "host", hosts, optional=kind.name in ("switch", "heal"))
    rail = _index(text, values, "rail", rails, optional=kind.name == "heal")
    if kind.name == "heal" and "for" in values:
        raise _bad(text, "for= makes no sense with heal")
    return ScheduledFault(
        text=text,
        kind=kind.name,
        host=host,
        rail=rail,
        arguments=arguments,
        at_s=_duration(text, values, "t"),
        on=values.get("on"),
        for_s=_duration(text, values, "for"),
        after_s=_duration(text, values, "after"),
    )


def _index(text: str, values: dict[str, str], key: str, count: int, *, optional: bool) -> int | None:
    value = values.get(key)
    if value is None:
        if optional:
            return None
        raise _bad(text, f"{key}= is missing: {key}=0 to {key}={count - 1}")
    if key == "rail" and value == "mgmt":
        return MGMT
    if not value.isdigit() or int(value) >= count:
        raise _bad(text, f"{key}={value}: this fabric has {key}=0 to {key}={count - 1}")
    return int(value)


def _duration(text: str, values: dict[str, str], key: str) -> float | None:
    if key not in values:
        return None
    try:
        return parse_duration_s(values[key])
    except ValueError as error:
        raise _bad(text, f"{key}={error}") from None


def _bad(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"fault {text!r}: {why}")
