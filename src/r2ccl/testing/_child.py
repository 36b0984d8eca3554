"""What a rank started by ``RankGroup`` does: settle in, call the function, report, leave."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ..config import Config

STACK_SIGNAL = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """What to run: ``stacks`` is the file that the rank's stacks go to on ``STACK_SIGNAL``."""

    rank: int
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    config: Config | None
    variables: dict[str, str]
    stacks: str
    device: Any = None


@dataclass(frozen=True)
class Failure:
    """``exception`` is None where it cannot be sent to another process; ``text`` is the traceback."""

    text: str
    exception: BaseException | None


@dataclass(frozen=True)
class Report:
    """What a rank has to say: its result, or how it failed."""

    value: Any = None
    failure: Failure | None = None


def child_main(task: Task, outbox: Connection, parent: int, die_with_parent: bool) -> None:
    """Entry point of the process. Its last act is one ``Report`` on ``outbox``."""
    if die_with_parent:
        _die_with_parent(parent)
    # A test runner that was forked along has its own ideas of Ctrl-C; the parent ends the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(task.stacks, "w") as stacks:
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
        os.environ.update(task.variables)
        comm = None
        try:
            import r2ccl

            comm = r2ccl.init(device=task.device, config=task.config)
            value = task.fn(comm, *task.args)
            comm.close()
            comm = None
            message = pickle.dumps(Report(value))
        except BaseException as error:
            message = pickle.dumps(Report(failure=_failure(error)))
        # Report first: closing beside a dead rank may make the others fail, and the first report is the cause.
        outbox.send_bytes(message)
        outbox.close()
        if comm is not None:
            with contextlib.suppress(Exception):
                comm.close()
        faulthandler.unregister(STACK_SIGNAL)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()


def _failure(error: BaseException) -> Failure:
    text = "".join(traceback.format_exception(error)).rstrip()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return Failure(text, None)
    return Failure(text, error)


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to end this process when its parent goes, so that a killed test leaves no rank behind."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it went before we asked
        os._exit(1)
