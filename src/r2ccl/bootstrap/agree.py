"""Checks that all ranks were started with the same settings."""

from __future__ import annotations

import json
from typing import Any

from ..config import Config
from ..errors import BootstrapError, Mismatch
from .base import Bootstrap, Deadline


def check_agreed(boot: Bootstrap, config: Config, deadline: Deadline | None = None) -> None:
    """Raise ``Mismatch`` on every rank when a field of ``Config.agreed()`` differs, naming it, the values and the rank.

    The deadline is ``Config.init_timeout_s`` from now unless one is given. Meant as the first step of a start.
    """
    own = json.dumps(config.agreed(), sort_keys=True).encode()
    answers = boot.all_gather("init", own, deadline or Deadline(config.init_timeout_s))
    first = _parsed(answers[0], 0)
    for rank, answer in enumerate(answers):
        other = _parsed(answer, rank)
        for field in sorted(first.keys() | other.keys()):
            if first.get(field) != other.get(field):
                raise Mismatch(
                    f"Config.{field} is {other.get(field)!r} at rank {rank} and {first.get(field)!r} at rank 0: "
                    f"it must be equal on all ranks (R2CCL_{field.upper()})"
                )


def _parsed(answer: bytes, rank: int) -> dict[str, Any]:
    try:
        values = json.loads(answer)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise BootstrapError(f"rank {rank} sent settings that are not a JSON object")
    return values
