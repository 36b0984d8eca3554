"""One rank of another library under faults: all_reduce without end, the end of each call told to the coordinator.

Started by ``faults_peers.py`` in that library's own Python environment. It ends when the coordinator says so or hangs up,
even if the library is stuck in a call.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TextIO

import numpy as np
from compare_worker import join


def main() -> None:
    """See ``--help``."""
    assert __doc__
    library, connection, peer = join(__doc__.splitlines()[0])
    lines: TextIO = connection.makefile("rw")

    def tell(**fields: object) -> None:
        lines.write(json.dumps(fields) + "\n")
        lines.flush()

    def listen() -> None:
        for line in lines:
            if "quit" in json.loads(line):
                break
        os._exit(0)

    tell(peer=peer, rank=library.rank, pid=os.getpid())
    count = json.loads(lines.readline())["bytes"] // 4
    threading.Thread(target=listen, daemon=True).start()
    x, y = np.ones(count, np.float32), np.ones(count, np.float32)
    try:
        while True:
            y[:] = x  # for the library that works in place
            library.all_reduce(x, y)
            tell(end=time.time_ns())
    except Exception as error:  # what a rank of this library is told of the fault
        tell(error=f"{type(error).__name__}: {error}")
        threading.Event().wait()


if __name__ == "__main__":
    main()
