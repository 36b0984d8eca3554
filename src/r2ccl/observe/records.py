"""Records of a trace as the core keeps them: ``r2ccl_trace_record`` in r2ccl.h, kinds of ``exec/trace.h``."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np


class TraceKind(IntEnum):
    """What a record says."""

    POST = 1
    """A chunk is handed to a link; ``rail`` -1: to another rank, which passes it on."""
    REPLAY = 2
    """Once more, after its link failed or (``detail`` 1) became slow."""
    DONE = 3
    """Its arrival is confirmed; through shared memory: it is written."""
    ARRIVE = 4
    APPLY = 5
    """A chunk that came is reduced or stored."""
    BEGIN = 6
    """A call begins: ``message`` is its Collective, ``detail`` its DType, ``value`` its count."""
    END = 7
    """``detail`` is its status."""
    EVENT = 8
    """``detail`` is an EventKind, ``chunk`` and ``value`` belong to it."""
    DISCARD = 9
    """A copy of a chunk that had come already."""
    PASS = 10
    """A chunk of other ranks is handed to a link: ``value`` is sender × 65536 + receiver."""


RECORD = np.dtype(
    [
        ("time_ns", "=u8"),
        ("call", "=u8"),
        ("value", "=u8"),
        ("message", "=u4"),
        ("chunk", "=u4"),
        ("bytes", "=u4"),
        ("peer", "=i4"),
        ("rail", "=i4"),
        ("kind", "=u2"),
        ("detail", "=u2"),
    ],
    align=True,
)


def read(records: bytes) -> Any:
    """An array of RECORD over the core's bytes."""
    return np.frombuffer(records, RECORD)
