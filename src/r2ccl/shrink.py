"""What ``Communicator.shrink`` does: the survivors find each other, and start a new communicator among themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import index
from typing import TypeVar

from .bootstrap.base import Bootstrap, Deadline, SingleBootstrap
from .bootstrap.door import Door
from .bootstrap.group import tell
from .bootstrap.keeper import Keeper
from .bootstrap.star import star_bootstrap
from .bootstrap.survivors import Meeting
from .errors import InvalidArgument, PeerLost, Timeout

C = TypeVar("C")
_AGAIN_S = 5.0  # for the others to come again after an attempt that failed


class Survivors:
    """One rank's part in a shrink."""

    def __init__(self, rank: int, size: int, secret: bytes, door: Door | None, exclude: Iterable[int]) -> None:
        """door: None for a world of one."""
        self._rank = rank
        self._size = size
        self._secret = secret
        self._door = door
        self._excluded = {_excluded(item, rank, size) for item in exclude}
        self._out = dict.fromkeys(self._excluded, f"rank {rank} excludes it")

    def leave_out(self, lost: Iterable[int]) -> None:
        """Ranks that are known to be lost."""
        for rank in lost:
            self._out.setdefault(rank, f"it is lost, as rank {self._rank} knows")

    def regroup(self, start: Callable[[Bootstrap], C], timeout_s: float, start_s: float) -> tuple[C, Keeper | None]:
        """What ``start`` makes of the survivors within ``start_s``, and who answers at the old door from now on.

        timeout_s: for the others to come. When another rank is lost in the middle, those that are left begin again.
        """
        if self._door is None:
            return start(SingleBootstrap(self._secret)), None
        deadline = Deadline(timeout_s)
        last = Deadline(timeout_s + 2 * start_s)
        while True:
            group = Meeting(self._door, self._out, deadline).run()
            try:
                boot = star_bootstrap(group, self._rank, self._secret, Deadline(start_s))
                try:
                    made = start(boot)
                finally:
                    boot.close()
            except (PeerLost, Timeout):
                if last.expired:
                    raise
                self._out = group.out
                deadline = Deadline(max(deadline.remaining(), _AGAIN_S))
                continue
            finally:
                group.close()
            tell(group, self._rank, self._excluded, self._size)
            return made, Keeper(self._door, group.out)


def _excluded(item: int, rank: int, size: int) -> int:
    try:
        value = index(item)
    except TypeError:
        raise InvalidArgument(f"exclude holds {item!r}: ranks are whole numbers") from None
    if not 0 <= value < size or value == rank:
        raise InvalidArgument(f"exclude holds {value}: other ranks than this one ({rank}), from 0 to {size - 1}")
    return value
