"""A stand-in for ssh between emulated hosts, for MPI launchers: ``compare_agent.py [options] hostN command...``.

It asks the coordinator, over the Unix socket named by ``R2CCL_LAB_AGENT``, to run the command on host N, and ends with
the command's exit code. ``serve`` is the coordinator's side.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOCKET_VARIABLE = "R2CCL_LAB_AGENT"


def serve(path: Path, start: Callable[[int, str], subprocess.Popen[Any]]) -> socket.socket:
    """Answers agents in the background until the returned socket is closed. ``start(host, command)`` starts a shell."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(16)

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rw") as lines:
            request = json.loads(lines.readline())
            process = start(request["host"], request["command"])
            lines.write(f"{process.wait()}\n")

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def main() -> int:
    """The launcher's side; the exit code is the command's."""
    arguments = sys.argv[1:]
    while arguments and arguments[0].startswith("-"):
        del arguments[0]
    host, command = int(arguments[0].removeprefix("host")), " ".join(arguments[1:])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[SOCKET_VARIABLE])
        with connection.makefile("rw") as lines:
            lines.write(json.dumps({"host": host, "command": command}) + "\n")
            lines.flush()
            return int(lines.readline() or 1)


if __name__ == "__main__":
    sys.exit(main())
