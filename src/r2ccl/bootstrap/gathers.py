"""The book-keeping of rank 0's store, without sockets: who contributed, who waits, who is missing."""

from __future__ import annotations

from dataclasses import dataclass, field

from .base import name_ranks
from .wire import GatherRequest, Kind, pack_result


@dataclass
class Gather:
    """One all-gather under way."""

    tag: str
    values: dict[int, bytes] = field(default_factory=dict)
    given_s: dict[int, float] = field(default_factory=dict)  # of the ranks that still wait for the answer
    verdict: str = ""  # what rank 0 was told at its deadline


Answer = tuple[list[int], Kind, bytes]
"""Ranks to answer, and the frame's kind and body."""


class Gathers:
    """All all-gathers of a bootstrap. A step is a tag and how often a rank has used it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: dict[tuple[str, int], Gather] = {}
        self._uses: dict[tuple[str, int], int] = {}  # (tag, rank) -> completed or running calls
        self._at: dict[int, tuple[str, int]] = {}  # rank -> the step it waits in
        self.gone: dict[int, str] = {}
        """Ranks that have left, and why."""
        self._connected: set[int] = {0}

    def joined(self, rank: int) -> None:
        """A rank has connected."""
        self._connected.add(rank)

    def waits(self, rank: int) -> bool:
        """Whether a rank has an all-gather under way."""
        return rank in self._at

    def add(self, rank: int, request: GatherRequest) -> list[Answer]:
        """A rank contributes; the answers that become due."""
        use = self._uses.get((request.tag, rank), 0)
        self._uses[request.tag, rank] = use + 1
        step = (request.tag, use)
        gather = self._open.setdefault(step, Gather(request.tag))
        gather.values[rank] = request.value
        gather.given_s[rank] = request.given_s
        self._at[rank] = step
        if len(gather.values) == self._size:
            del self._open[step]
            body = pack_result([gather.values[r] for r in range(self._size)])
            return [self._answer(gather, list(gather.given_s), Kind.RESULT, body)]
        lost = [r for r in self.gone if r not in gather.values]
        return [self._lost(gather, lost)] if lost else []

    def expire(self, rank: int) -> list[Answer]:
        """A rank's deadline has passed while it waits."""
        gather = self._open.get(self._at.get(rank, ("", 0)))
        if gather is None or rank not in gather.given_s:
            return []
        text = self.missing_text(gather, gather.given_s[rank])
        if rank == 0:
            gather.verdict = text
        return [self._answer(gather, [rank], Kind.TIMEOUT, text.encode())]

    def left(self, rank: int, why: str) -> list[Answer]:
        """A rank is gone: steps that still lack its value can never complete."""
        self.gone[rank] = why
        for gather in self._open.values():
            gather.given_s.pop(rank, None)
        self._at.pop(rank, None)
        return [
            self._lost(gather, [rank]) for gather in self._open.values() if rank not in gather.values and gather.given_s
        ]

    def give_up(self) -> list[Answer]:
        """The store closes: tell every waiting rank whom it waited for."""
        answers = []
        for gather in self._open.values():
            for rank, given_s in list(gather.given_s.items()):
                text = gather.verdict or f"{self.missing_text(gather, given_s)}; rank 0 has given up"
                answers.append(self._answer(gather, [rank], Kind.TIMEOUT, text.encode()))
        return answers

    def missing_text(self, gather: Gather, given_s: float) -> str:
        """``init: rank 3 of 4 did not arrive within 5 s``."""
        missing = [r for r in range(self._size) if r not in gather.values]
        late = [r for r in missing if r in self._connected]
        text = f"{gather.tag}: {name_ranks(missing, self._size)} did not arrive within {given_s:g} s"
        return text + (f" ({name_ranks(late, self._size)} connected, but not this far)" if late else "")

    def _lost(self, gather: Gather, ranks: list[int]) -> Answer:
        reasons = "; ".join(f"rank {r} {self.gone[r]}" for r in ranks[:4])
        text = f"{gather.tag}: {name_ranks(ranks, self._size)} left before this step: {reasons}"
        return self._answer(gather, list(gather.given_s), Kind.LOST, text.encode())

    def _answer(self, gather: Gather, ranks: list[int], kind: Kind, body: bytes) -> Answer:
        for rank in ranks:
            gather.given_s.pop(rank, None)
            self._at.pop(rank, None)
        return ranks, kind, body
