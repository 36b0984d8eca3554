"""Run a function on n local ranks, each a process of its own, with a deadline and a clean end."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ..config import Config
from ..errors import InvalidArgument, R2cclError, Timeout
from ._child import STACK_SIGNAL, Failure, Report, Task, child_main
from .placement import free_port as free_port
from .placement import host_of, variables_of
from .placement import rail_addresses as rail_addresses

T = TypeVar("T")
ConfigOf = Config | Callable[[int], Config] | None
DeviceOf = str | int | Callable[[int], str | int | None] | None


class RankError(R2cclError):
    """A rank did not return: ``rank`` says which, ``text`` holds its traceback or how it died."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(f"rank {rank}: {text}")
        self.rank = rank
        self.text = text

    def __reduce__(self) -> tuple[type[RankError], tuple[int, str]]:
        return type(self), (self.rank, self.text)


class RankTimeout(RankError, Timeout):
    """A rank had not ended at the deadline; ``text`` holds the Python stacks of its threads where they could be had."""


def run_ranks(
    fn: Callable[..., T],
    n: int,
    *,
    hosts: int = 1,
    rails: int = 0,
    config: ConfigOf = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = 60.0,
    args: tuple[Any, ...] = (),
    start_method: str = "fork",
    return_exceptions: bool = False,
    device: DeviceOf = None,
) -> list[Any]:
    """Run ``fn(comm, *args)`` on ``n`` ranks and return their results in order of rank.

    See ``RankGroup`` for the arguments. The first exception of a rank ends all others and is raised as
    ``RankError`` (its ``__cause__`` is the rank's own exception); with ``return_exceptions=True`` every rank runs
    to its end and a failed one has its exception in the list. ``RankTimeout`` after ``timeout_s``.
    """
    with RankGroup(
        fn, n, hosts=hosts, rails=rails, config=config, env=env, args=args, start_method=start_method, device=device
    ) as g:
        return g.join(timeout_s=timeout_s, return_exceptions=return_exceptions)


@dataclass
class _Rank:
    process: Any  # multiprocessing.Process of the chosen start method
    inbox: Connection
    stacks: Path
    report: Report | None = None
    stopped: bool = False


class RankGroup:
    """Ranks that run while the caller goes on; a context manager that leaves no process behind.

    fn: called as ``fn(comm, *args)`` on every rank, with a communicator that is closed afterwards.
    n: number of ranks.
    hosts, rails: emulate hosts on this machine. Rank r belongs to host ``r * hosts // n``; ranks of one host share
        memory, between hosts they speak TCP over ``rails`` loopback addresses (at least one if ``hosts > 1``).
    config: settings of all ranks, or a function from a rank to its settings (to break a rail of one rank only).
    env: more environment variables for the ranks.
    start_method: ``fork`` (closures work, starts in milliseconds) or ``spawn`` (``fn`` must be importable; for
        callers whose process may not be forked, say because CUDA is initialised).
    device: where the ranks' arrays lie, as in ``r2ccl.init``; or a function from a rank to that.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        n: int,
        *,
        hosts: int = 1,
        rails: int = 0,
        config: ConfigOf = None,
        env: Mapping[str, str] | None = None,
        args: tuple[Any, ...] = (),
        start_method: str = "fork",
        device: DeviceOf = None,
    ) -> None:
        if n < 1 or not 1 <= hosts <= n:
            raise InvalidArgument(f"n = {n} ranks on hosts = {hosts}: at least one rank, and one for each host")
        if not 0 <= rails <= 254:
            raise InvalidArgument(f"rails = {rails}: 0 to 254")
        addresses = rail_addresses(max(rails, 1) if hosts > 1 else rails)
        context: Any = multiprocessing.get_context(start_method)
        self._folder = tempfile.TemporaryDirectory(prefix="r2ccl-ranks-")
        self._ranks: list[_Rank] = []
        port = free_port()
        try:
            for rank in range(n):
                settings = config(rank) if callable(config) else config
                if addresses:
                    settings = settings or Config.from_env()
                    settings = settings.with_(rails=addresses, host_id=f"host{host_of(rank, n, hosts)}")
                stacks = Path(self._folder.name) / f"rank{rank}.stacks"
                variables = {**(env or {}), **variables_of(rank, n, hosts, port)}
                inbox, outbox = context.Pipe(duplex=False)
                place = device(rank) if callable(device) else device
                task = Task(rank, fn, args, settings, variables, str(stacks), place)
                # The kernel's notice is bound to the thread that forks: only the main thread lasts as long as we do.
                tied = threading.current_thread() is threading.main_thread()
                process = context.Process(
                    target=child_main, args=(task, outbox, os.getpid(), tied), name=f"rank{rank}", daemon=True
                )
                with warnings.catch_warnings():
                    # The caller chose to fork beside threads: see start_method.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    process.start()
                outbox.close()  # so that the death of the rank is seen as the end of its pipe
                self._ranks.append(_Rank(process, inbox, stacks))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids, in order of rank."""
        return [r.process.pid for r in self._ranks]

    def kill(self, rank: int) -> None:
        """End a rank with SIGKILL, as a crash would."""
        self._ranks[rank].process.kill()

    def stop(self, rank: int) -> None:
        """Freeze a rank (SIGSTOP). ``join`` does not wait for it unless it is continued."""
        self._signal(rank, signal.SIGSTOP)
        self._ranks[rank].stopped = True

    def cont(self, rank: int) -> None:
        """Let a frozen rank go on (SIGCONT)."""
        self._ranks[rank].stopped = False
        self._signal(rank, signal.SIGCONT)

    def join(self, *, timeout_s: float | None = 60.0, return_exceptions: bool = False) -> list[Any]:
        """Results of all ranks, in order, as in ``run_ranks``. Every rank has ended afterwards."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while waiting := {r.inbox: i for i, r in enumerate(self._ranks) if r.report is None and not r.stopped}:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                for inbox in wait(list(waiting), timeout=left):
                    index = waiting[inbox]  # type: ignore[index]  # wait() answers with what it was given
                    failure = self._receive(index)
                    if failure is not None and not return_exceptions:
                        raise RankError(index, failure.text) from failure.exception
            outcomes = [self._outcome(i, timeout_s) for i in range(len(self._ranks))]
        finally:
            self.close()
        if not return_exceptions:
            self._raise_any(outcomes)
        return outcomes

    def close(self) -> None:
        """End every rank that still runs. Called on leaving the context; harmless when repeated."""
        for r in self._ranks:
            if r.report is not None and not r.stopped:
                r.process.join(2.0)  # it has said its last word and is on its way out
            if r.process.is_alive():
                r.process.kill()
        for r in self._ranks:
            r.process.join(5.0)
            r.inbox.close()
        self._folder.cleanup()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _signal(self, rank: int, number: int) -> None:
        process = self._ranks[rank].process
        if process.is_alive():  # we alone reap it, so its id cannot belong to somebody else yet
            os.kill(process.pid, number)

    def _receive(self, index: int) -> Failure | None:
        """Take a rank's report; a pipe that ends without one means that the rank died."""
        r = self._ranks[index]
        try:
            report = pickle.loads(r.inbox.recv_bytes())
        except (EOFError, OSError):
            r.process.join(5.0)
            report = Report(failure=Failure(_how_it_died(r.process.exitcode), None))
        r.report = report
        failure: Failure | None = report.failure
        return failure

    def _outcome(self, index: int, timeout_s: float | None) -> Any:
        r = self._ranks[index]
        if r.report is not None:
            failure = r.report.failure
            if failure is None:
                return r.report.value
            told = RankError(index, failure.text)
            if failure.exception is None:
                return told
            failure.exception.__cause__ = told  # where it was raised, for whoever prints it
            return failure.exception
        if r.stopped:
            return RankError(index, "was frozen (SIGSTOP) and had not ended")
        return RankTimeout(index, f"had not ended after {timeout_s:g} s; {self._stacks(r, index)}")

    def _stacks(self, r: _Rank, index: int) -> str:
        """Ask a rank for the stacks of its threads; the answer needs neither its GIL nor its goodwill."""
        self._signal(index, STACK_SIGNAL)
        for _ in range(20):
            time.sleep(0.025)
            if r.stacks.exists() and r.stacks.stat().st_size:
                time.sleep(0.025)
                return f"its threads:\n{r.stacks.read_text(errors='replace').rstrip()}"
        return "it did not answer with its stacks"

    @staticmethod
    def _raise_any(outcomes: list[Any]) -> None:
        late = [o for o in outcomes if isinstance(o, RankTimeout)]
        if len(late) > 1:
            others = ", ".join(str(o.rank) for o in late[1:])
            raise RankTimeout(late[0].rank, f"(and ranks {others} likewise) {late[0].text}")
        for outcome in outcomes:
            if isinstance(outcome, RankError):
                raise outcome


def _how_it_died(code: int | None) -> str:
    if code is None:
        return "closed its pipe without a report and has not ended"
    if code >= 0:
        return f"ended with exit status {code} before it could report"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}"
