"""Runs a command in a guest machine whose kernel has soft RDMA: ``python -m tools.rdma_guest [options] -- COMMAND``.

The guest sees all files of this machine; what it writes is lost. It has no network but what the command lays inside.
Exit status: the command's; 124 when it had not ended in time, 125 when the guest died, 126 when there is no guest.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .kernel import GuestError, default_cache, get_kernel
from .machine import Size, run_in_guest

NO_GUEST = 126


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="rdma_guest", description=__doc__)
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="end the guest after S seconds (%(default)g)"
    )
    parser.add_argument("--memory", default=Size.memory, help="of the guest (%(default)s)")
    parser.add_argument("--cpus", type=int, default=Size.cpus, help="of the guest (%(default)s)")
    parser.add_argument("--suite", default="", help="kernel of this Debian suite, such as trixie-backports")
    parser.add_argument("--console", type=Path, metavar="FILE", help="keep the guest kernel's log")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where kernels are kept (%(default)s)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the command; repeatable")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that qemu is ended on the way out
    try:
        kernel = get_kernel(options.cache.absolute(), options.suite)
        return run_in_guest(
            kernel,
            options.command,
            timeout_s=options.timeout,
            size=Size(options.memory, options.cpus),
            environment=dict(text.split("=", 1) for text in options.env),
            console=options.console,
        )
    except GuestError as error:
        print(f"rdma_guest: {error}", file=sys.stderr)
        return NO_GUEST


if __name__ == "__main__":
    sys.exit(main())
