"""What r2ccl-top and a rank say to each other: one JSON object a line. Ask and answer; nothing changes the rank.

{"r2ccl": 1, "ask": "snapshot"}     ->  {"r2ccl": 1, "pid": ..., "host": ..., "comms": [View.snapshot(), ...]}
{"r2ccl": 1, "ask": "status"}       ->  {"r2ccl": 1, "comms": [{"job", "comm", "rank", "status": View.status()}, ...]}
anything else                       ->  {"r2ccl": 1, "error": "..."}
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from ..errors import R2cclError
from .view import View

VERSION = 1
MAX_LINE = 4096  # of a question
STATUS_S = 0.2


def question(ask: str) -> bytes:
    """One line to send to a rank."""
    return json.dumps({"r2ccl": VERSION, "ask": ask}).encode() + b"\n"


def answer(line: bytes, views: Sequence[View]) -> bytes:
    """What a rank with these communicators answers to a line."""
    return json.dumps({"r2ccl": VERSION, **_answer(line, views)}, separators=(",", ":")).encode() + b"\n"


def _answer(line: bytes, views: Sequence[View]) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        version, ask = asked["r2ccl"], asked["ask"]
    except (ValueError, TypeError, KeyError):
        return {"error": 'expected a line like {"r2ccl": 1, "ask": "snapshot"}'}
    if version != VERSION:
        return {"error": f"this rank speaks version {VERSION} of the protocol, not {version!r}: use its own r2ccl-top"}
    if ask == "snapshot":
        return {"pid": os.getpid(), "host": socket.gethostname(), "comms": _each(views, "snapshot")}
    if ask == "status":
        return {"comms": _each(views, "status")}
    return {"error": f"ask = {ask!r}: snapshot or status"}


def _each(views: Sequence[View], what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for view in views:
        try:
            if what == "snapshot":
                found.append(view.snapshot())
            else:
                status = view.status(STATUS_S)
                found.append({"job": view.job, "comm": view.name, "rank": view.rank, "status": status})
        except R2cclError:  # it is being closed
            continue
    return found
