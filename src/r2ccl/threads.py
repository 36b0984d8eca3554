"""Threads of the library take no signals: those belong to the program's own threads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def start_quiet(target: Callable[[], object], name: str) -> threading.Thread:
    """A daemon thread that blocks every signal; the caller's own mask is as before."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    # A thread inherits the mask of the one that starts it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
