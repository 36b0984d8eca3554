"""TCP congestion control of emulated hosts.

A namespace may only choose from a list that root keeps for the machine, which often lacks ``cubic`` where ``bbr`` is
the default; and bbr, made for other links than these, halves what an unlimited veth carries.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

from .namespace import Namespace

_ALLOWED = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
_CURRENT = "net.ipv4.tcp_congestion_control"


@contextlib.contextmanager
def allowed(name: str) -> Iterator[None]:
    """Lets namespaces choose ``name`` meanwhile, if root; the machine's list is as before afterwards.

    A lock keeps two labs from restoring each other's change.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(open(_ALLOWED))
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = lock.read().split()
            if name not in before:
                _write([*before, name])
                stack.callback(_write, before)
        except OSError:
            pass  # not root outside: the hosts take what is allowed
        yield


def choose(host: Namespace, name: str) -> str | None:
    """Makes ``name`` the default of a host, else reno; a note for the user when it was not permitted."""
    if host.write_sysctl(_CURRENT, name):
        return None
    used = "reno" if host.write_sysctl(_CURRENT, "reno") else "the machine's default"
    return f"TCP congestion control {name!r} is not permitted here: {used} is used"


def _write(names: list[str]) -> None:
    with open(_ALLOWED, "w") as file:
        file.write(" ".join(names))
