"""After connecting: all ranks learn what came up, keep what both ends have, and fail alike when it is too little."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BootstrapError, PeerUnreachable
from ..topology.model import RankInfo
from .base import Bootstrap, Deadline
from .connect import Connector
from .wanted import needs_rails, no_rails_text

_MAX_REASON = 160
_MAX_REASONS = 2000
Key = tuple[int, int, int]


@dataclass
class Report:
    """What one rank has: attempt by (peer, my rail, peer's rail), -1 for control connections; reasons for the rest."""

    up: dict[Key, int] = field(default_factory=dict)
    reasons: dict[Key, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Compact JSON."""
        up = [[*key, attempt] for key, attempt in self.up.items()]
        reasons = [[*key, why[:_MAX_REASON]] for key, why in list(self.reasons.items())[:_MAX_REASONS]]
        return json.dumps({"up": up, "reasons": reasons}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, rank: int) -> Report:
        """The checked value; ``BootstrapError`` names the rank."""
        try:
            raw = json.loads(data)
            report = cls()
            for *key, attempt in raw["up"]:
                report.up[_key(key)] = int(attempt)
            for *key, why in raw["reasons"]:
                report.reasons[_key(key)] = str(why)[:_MAX_REASON]
            return report
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BootstrapError(f"rank {rank} sent a malformed report of its connections: {error!r}") from None


@dataclass
class Outcome:
    """What is kept; see ``Mesh.missing``."""

    missing: list[tuple[int, int, int, str]]


def settle(boot: Bootstrap, ranks: Sequence[RankInfo], shm: bool, connector: Connector, deadline: Deadline) -> Outcome:
    """Exchange reports and close what the other end lacks. ``PeerUnreachable``, on all ranks, if too little is left."""
    own = Report(
        {c.wanted.place: c.attempt for c in connector.connections.values() if c.sock is not None and c.settled},
        {c.wanted.place: c.reason for c in connector.connections.values() if c.given_up},
    )
    answers = boot.all_gather("connect", own.to_bytes(), deadline)
    reports = [Report.from_bytes(answer, rank) for rank, answer in enumerate(answers)]
    _require_all(ranks, reports, shm)
    missing = []
    for connection in connector.connections.values():
        key = connection.wanted.place
        if _both(reports, boot.rank, key) is None:
            connection.close()
            missing.append((*key, connection.reason or _reason(reports, boot.rank, key)))
    return Outcome(sorted(missing))


def _require_all(ranks: Sequence[RankInfo], reports: list[Report], shm: bool) -> None:
    for a in ranks:
        links: dict[int, int] = {}
        for key in reports[a.rank].up:
            if key[1] >= 0 and _both(reports, a.rank, key) is not None:
                links[key[0]] = links.get(key[0], 0) + 1
        for b in ranks[a.rank + 1 :]:
            if _both(reports, a.rank, (b.rank, -1, -1)) is None:
                why = _reason(reports, a.rank, (b.rank, -1, -1))
                raise PeerUnreachable(
                    f"no control connection between {a.host_name} and {b.host_name}: {why}. "
                    "Choose its interface with R2CCL_OOB_INTERFACE"
                )
            if needs_rails(a, b, shm) and not links.get(b.rank):
                tried = [key for key in reports[a.rank].reasons if key[0] == b.rank and key[1] >= 0]
                why = "; ".join(
                    f"{a.rails[key[1]].name} - {b.rails[key[2]].name}: {_reason(reports, a.rank, key)}"
                    for key in tried
                    if key[1] < len(a.rails) and key[2] < len(b.rails)
                )
                raise PeerUnreachable(
                    no_rails_text(a, b, f"cannot reach each other over any rail ({why or 'no rail'})")
                )


def _both(reports: list[Report], rank: int, key: Key) -> int | None:
    """The attempt that both ends hold, if they do."""
    peer, my_rail, peer_rail = key
    if not 0 <= peer < len(reports):
        return None
    mine, theirs = reports[rank].up.get(key), reports[peer].up.get((rank, peer_rail, my_rail))
    return mine if mine == theirs else None


def _reason(reports: list[Report], rank: int, key: Key) -> str:
    """Why a connection is missing: the dialler's reason says most, and the dialler is the higher rank."""
    peer, my_rail, peer_rail = key
    ends = [(reports[rank], key), (reports[peer], (rank, peer_rail, my_rail))]
    for report, at in ends if rank > peer else ends[::-1]:
        if report.reasons.get(at):
            return report.reasons[at]
    return "the two ends disagree"


def _key(items: list[Any]) -> Key:
    peer, my_rail, peer_rail = items
    return int(peer), int(my_rail), int(peer_rail)
