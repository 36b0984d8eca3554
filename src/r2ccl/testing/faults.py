"""FaultScript: what the transport shall break, and when, as text for ``Config.fault_script``.

One fault per line, ``key=value`` fields in any order; empty lines and ``# comments`` are ignored::

    rail=1 peer=* kind=blackhole after_bytes=1048576
    rail=0 peer=2 kind=reset after_ms=250

The script is carried out by the rank in whose Config it stands. ``blackhole`` loses everything in both directions
without an error, ``tx-drop`` only what this rank sends, ``rx-drop`` only what it would receive; ``reset`` breaks
the connection as a died peer or cable would; ``device-error`` moves this end's queue pair to its error state, as an RDMA
device does that fails (a TCP link is reset). A link suffers the first fault of the script that fits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import InvalidArgument

KINDS = ("blackhole", "tx-drop", "rx-drop", "reset")
DEVICE_KINDS = ("device-error",)
_KEYS = ("rail", "peer", "kind", "after_bytes", "after_ms")


@dataclass(frozen=True)
class Fault:
    """One fault.

    kind: one of ``KINDS`` or ``DEVICE_KINDS``.
    rail: index of the local rail, None: every rail.
    peer: rank at the other end, None: every peer.
    after_bytes: strikes when that many payload bytes have crossed the link.
    after_ms: strikes that long after the link was opened. At most one of the two; neither: at once.
    """

    kind: str
    rail: int | None = None
    peer: int | None = None
    after_bytes: int | None = None
    after_ms: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS + DEVICE_KINDS:
            raise InvalidArgument(f"fault kind {self.kind!r}: one of {', '.join(KINDS + DEVICE_KINDS)}")
        for name in ("rail", "peer", "after_bytes", "after_ms"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise InvalidArgument(f"fault {name} = {value!r}: a whole number, at least 0")
        if self.after_bytes is not None and self.after_ms is not None:
            raise InvalidArgument(
                f"fault with after_bytes={self.after_bytes} and after_ms={self.after_ms}: give one of the two"
            )

    def __str__(self) -> str:
        when = f"after_ms={self.after_ms}" if self.after_ms is not None else f"after_bytes={self.after_bytes or 0}"
        return f"rail={_or_star(self.rail)} peer={_or_star(self.peer)} kind={self.kind} {when}"

    @classmethod
    def parse(cls, line: str) -> Fault:
        """The fault of one line; raises ``InvalidArgument`` with the offending field."""
        found: dict[str, str] = {}
        for item in line.split():
            key, sign, value = item.partition("=")
            if not sign or key not in _KEYS:
                raise InvalidArgument(f"fault {line!r}: {item!r} is not one of {', '.join(k + '=' for k in _KEYS)}")
            if key in found:
                raise InvalidArgument(f"fault {line!r}: {key}= appears twice")
            found[key] = value
        if "kind" not in found:
            raise InvalidArgument(f"fault {line!r}: kind= is missing; one of {', '.join(KINDS)}")
        numbers = {key: _number(line, key, text) for key, text in found.items() if key != "kind"}
        return cls(found["kind"], **numbers)


@dataclass(frozen=True)
class FaultScript:
    """An immutable list of faults; each method returns a longer one, ``str()`` gives the text for Config.

    >>> print(FaultScript().blackhole(rail=1, after_bytes=1 << 20).reset(rail=0, peer=2, after_ms=250))
    rail=1 peer=* kind=blackhole after_bytes=1048576
    rail=0 peer=2 kind=reset after_ms=250
    """

    faults: tuple[Fault, ...] = ()

    def add(self, fault: Fault) -> FaultScript:
        """The script with one more fault."""
        return FaultScript((*self.faults, fault))

    def blackhole(
        self,
        rail: int | None = None,
        peer: int | None = None,
        *,
        after_bytes: int | None = None,
        after_ms: int | None = None,
    ) -> FaultScript:
        """Everything on the rail vanishes, both ways, without an error."""
        return self.add(Fault("blackhole", rail, peer, after_bytes, after_ms))

    def tx_drop(
        self,
        rail: int | None = None,
        peer: int | None = None,
        *,
        after_bytes: int | None = None,
        after_ms: int | None = None,
    ) -> FaultScript:
        """What this rank sends vanishes; what it receives still arrives."""
        return self.add(Fault("tx-drop", rail, peer, after_bytes, after_ms))

    def rx_drop(
        self,
        rail: int | None = None,
        peer: int | None = None,
        *,
        after_bytes: int | None = None,
        after_ms: int | None = None,
    ) -> FaultScript:
        """What is sent to this rank vanishes; what it sends still arrives."""
        return self.add(Fault("rx-drop", rail, peer, after_bytes, after_ms))

    def reset(
        self,
        rail: int | None = None,
        peer: int | None = None,
        *,
        after_bytes: int | None = None,
        after_ms: int | None = None,
    ) -> FaultScript:
        """The connection breaks with an error on both sides."""
        return self.add(Fault("reset", rail, peer, after_bytes, after_ms))

    @classmethod
    def parse(cls, text: str) -> FaultScript:
        """The script that ``text`` holds; the inverse of ``str()``."""
        lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
        return cls(tuple(Fault.parse(line) for line in lines if line))

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    def __len__(self) -> int:
        return len(self.faults)


def _or_star(value: int | None) -> str:
    return "*" if value is None else str(value)


def _number(line: str, key: str, text: str) -> int | None:
    if text == "*" and key in ("rail", "peer"):
        return None
    # isdigit alone lets through other scripts' digits, which the core's parser would refuse.
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgument(f"fault {line!r}: {key}={text!r} is not a whole number")
    return int(text)
