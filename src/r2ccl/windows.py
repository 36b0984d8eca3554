"""``open_windows``: memory that GPUs of one host write to in each other's place, once, at the start."""

from __future__ import annotations

import json
import logging

from ._native.core import Engine
from .bootstrap import Bootstrap, Deadline
from .errors import BootstrapError

log = logging.getLogger("r2ccl")


def open_windows(engine: Engine, boot: Bootstrap, deadline: Deadline) -> None:
    """Every rank takes part as soon as one works on a GPU. Where memory cannot be shared, chunks go through the host."""
    own: dict[int, int] = {}
    mine: dict[str, str] = {}
    device = engine.device
    if device is not None:
        for peer in range(boot.size):
            size = engine.window_bytes(peer) if peer != boot.rank else 0
            if size == 0:
                continue
            try:
                own[peer] = device.allocate(size)
            except MemoryError:
                log.warning("no memory on %s for what rank %d sends: it goes through the host", device.name, peer)
                continue
            exported = device.export(own[peer], size)
            if exported is not None:
                mine[str(peer)] = exported.hex()
    answers = boot.all_gather("windows", json.dumps(mine).encode(), deadline)
    if device is None:
        return
    for peer, address in own.items():
        try:
            text = json.loads(answers[peer]).get(str(boot.rank))
            exported = bytes.fromhex(text) if text else None
        except (ValueError, AttributeError, TypeError) as error:
            raise BootstrapError(f"rank {peer} sent a malformed description of its windows: {error}") from None
        theirs = device.import_memory(exported) if exported is not None else None
        engine.set_window(peer, address, theirs or 0)
