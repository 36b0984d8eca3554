"""What a way of starting a job has to offer, and the deadline that every wait of the start obeys."""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

from ..errors import InvalidArgument, Timeout

MAX_VALUE_BYTES = 1 << 20  # of one rank, in one all_gather: bounds what a peer can make rank 0 store
MAX_TAG_BYTES = 256


class Deadline:
    """A point in time, on the monotonic clock, by which something must be done."""

    __slots__ = ("_end_s", "seconds")

    def __init__(self, seconds: float) -> None:
        if not seconds >= 0:
            raise InvalidArgument(f"a deadline of {seconds!r} s: must be 0 or more")
        self.seconds = float(seconds)
        """The whole allowance, in seconds, as it was given: for messages."""
        self._end_s = time.monotonic() + self.seconds

    def remaining(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._end_s - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() >= self._end_s

    def check(self, what: str) -> None:
        """Raise ``Timeout`` when nothing is left; ``what`` says who or what was waited for."""
        if self.expired:
            raise Timeout(f"{what} within {self.seconds:g} s")

    def at_most(self, seconds: float) -> Deadline:
        """A deadline that ends ``seconds`` from now, or with this one when that is earlier."""
        return Deadline(min(max(0.0, seconds), self.remaining()))


@runtime_checkable
class Bootstrap(Protocol):
    """How the ranks of a job find each other. Used only while a communicator is made, in the slow loop.

    Every rank calls ``all_gather`` with the same tags in the same order. One thread at a time.
    """

    @property
    def rank(self) -> int:
        """This process's number, 0 <= rank < size."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def secret(self) -> bytes:
        """Key shared by all ranks of this job and nobody else, fresh for each bootstrap."""

    @property
    def local_hint(self) -> str | None:
        """The local address that leads to the other ranks, as far as the bootstrap has learnt it."""

    def all_gather(self, tag: str, value: bytes, deadline: Deadline) -> list[bytes]:
        """The values of all ranks, by rank. ``Timeout`` names the ranks that are missing at the deadline.

        ``tag`` names the step in messages; at most ``MAX_VALUE_BYTES`` bytes per rank.
        """

    def close(self) -> None:
        """Release sockets and threads. Bounded, idempotent, never waits for a dead rank."""


@runtime_checkable
class Watchful(Protocol):
    """A bootstrap that knows at once when a rank leaves."""

    def check(self) -> None:
        """Raise ``PeerLost`` when one has."""


class SingleBootstrap:
    """The world of one rank."""

    rank = 0
    size = 1
    local_hint: str | None = None

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def all_gather(self, tag: str, value: bytes, deadline: Deadline) -> list[bytes]:
        """This rank's own value."""
        check_value(tag, value)
        return [value]

    def close(self) -> None:
        """Nothing to release."""


def check_value(tag: str, value: bytes) -> None:
    """Refuse what the other ranks would refuse: ``InvalidArgument`` with the size."""
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidArgument(f"all_gather({tag!r}): {len(value)} bytes; at most {MAX_VALUE_BYTES} per rank")
    if not 0 < len(tag.encode()) <= MAX_TAG_BYTES:
        raise InvalidArgument(f"all_gather: tag of {len(tag.encode())} bytes; 1 to {MAX_TAG_BYTES} are allowed")


def name_ranks(ranks: list[int], size: int) -> str:
    """``rank 3 of 4``, ``ranks 1, 2 of 4``, or the first 16 and how many more."""
    shown = ", ".join(map(str, ranks[:16])) + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown} of {size}"
