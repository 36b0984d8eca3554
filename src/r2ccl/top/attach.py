"""Asks the running ranks: finds their sockets, keeps a connection to each, and collects answers within a deadline."""

from __future__ import annotations

import json
import select
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..observe import place, protocol

_CONNECT_S = 0.2


@dataclass
class Picture:
    """What all ranks said at about one moment.

    comms: ``View.snapshot`` of every communicator, with ``pid`` and ``host`` of its process; status: ``View.status`` of
    every job and communicator, asked of one rank here; silent: processes that did not answer in time.
    """

    time_s: float
    comms: list[dict[str, Any]] = field(default_factory=list)
    status: list[dict[str, Any]] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)

    def to_json(self) -> str:
        """One line."""
        what = {"r2ccl": protocol.VERSION, "time_s": self.time_s, "comms": self.comms, "status": self.status}
        return json.dumps({**what, "silent": self.silent})


class Ranks:
    """The processes behind the sockets of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[Path, socket.socket] = {}

    def look(self, timeout_s: float = 1.0) -> Picture:
        """Asks every rank that is there now. Raises PermissionError where the directory is not this user's."""
        picture = Picture(time.time())
        self._find()
        answers = self._ask("snapshot", list(self._open), timeout_s)
        picture.silent = sorted(_pid(path) for path, answer in answers.items() if answer is None)
        chosen: dict[tuple[str, str], tuple[int, Path]] = {}
        for path, answer in answers.items():
            for comm in (answer or {}).get("comms", ()):
                picture.comms.append({"pid": answer and answer["pid"], "host": answer and answer["host"], **comm})
                key = (comm["job"], comm["comm"])
                chosen[key] = min(chosen.get(key, (comm["rank"], path)), (comm["rank"], path))
        picture.comms.sort(key=lambda c: (c["job"], c["comm"], c["rank"]))
        answers = self._ask("status", sorted({path for _, path in chosen.values()}), timeout_s + protocol.STATUS_S)
        for path, answer in answers.items():
            for item in (answer or {}).get("comms", ()):
                if chosen.get((item["job"], item["comm"])) == (item["rank"], path):
                    picture.status.append(item)
        picture.status.sort(key=lambda s: (s["job"], s["comm"]))
        return picture

    def close(self) -> None:
        """Ends all connections."""
        for sock in self._open.values():
            sock.close()
        self._open.clear()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self) -> None:
        if not self._directory.exists():
            return
        if reason := place.not_ours(self._directory):
            raise PermissionError(f"{self._directory} {reason}: it cannot be trusted")
        for path in sorted(self._directory.glob("*" + place.SUFFIX)):
            if path not in self._open and (sock := place.connect(path, _CONNECT_S)) is not None:
                self._open[path] = sock

    def _ask(self, what: str, paths: list[Path], timeout_s: float) -> dict[Path, dict[str, Any] | None]:
        """None: no answer in time. Ranks that have ended are left out, and so are answers of another version."""
        waiting: dict[socket.socket, tuple[Path, bytearray]] = {}
        for path in paths:
            try:
                self._open[path].sendall(protocol.question(what))
                waiting[self._open[path]] = (path, bytearray())
            except OSError:
                self._drop(path)
        answers: dict[Path, dict[str, Any] | None] = {}
        deadline = time.monotonic() + timeout_s
        while waiting and (left := deadline - time.monotonic()) > 0:
            for sock in select.select(list(waiting), [], [], left)[0]:
                path, text = waiting[sock]
                try:
                    data = sock.recv(1 << 16)
                except OSError:
                    data = b""
                text += data
                if data and not text.endswith(b"\n"):
                    continue
                del waiting[sock]
                answer = _parsed(bytes(text)) if data else None
                if answer is None:
                    self._drop(path)
                else:
                    answers[path] = answer
        for path, _ in waiting.values():
            answers[path] = None
            self._drop(path)  # its answer may still come, and would be taken for that to a later question
        return answers

    def _drop(self, path: Path) -> None:
        self._open.pop(path).close()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return None if answer.get("r2ccl") != protocol.VERSION or "error" in answer else answer


def _pid(path: Path) -> int:
    try:
        return int(path.name.split("-")[0])
    except ValueError:
        return -1
