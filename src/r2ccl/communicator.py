"""Communicator: the public face. How one begins, multiplies, is looked at and ends; its calls are in calls.py."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import numpy as np

from ._native.core import CudaDevice
from .assemble import assemble
from .bootstrap.keeper import Keeper
from .calls import Calls
from .config import WORLD, Config, trace_path
from .devices import device_of
from .errors import Aborted, InvalidArgument, R2cclError
from .observe.events import Event
from .observe.station import Station
from .observe.view import View
from .planner import Planner
from .registration import Registration
from .shrink import Survivors
from .subgroup import SubgroupBootstrap, derive_secret
from .types import Collective, ReduceOp

log = logging.getLogger("r2ccl")

_LINGER_S = 2.0


def init(via: Any = None, *, device: Any = None, config: Config | None = None) -> Communicator:
    """Make a communicator of all ranks of the job; every rank calls it.

    via: None (the variables RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun sets them; without WORLD_SIZE a
        world of one), an mpi4py communicator (used only during this call), or an object with the methods of
        ``r2ccl.bootstrap.Bootstrap``.
    device: where the arrays of all calls lie: "cpu" (the default), or a GPU: "cuda" (CuPy's current one), "cuda:1", 1, or a
        ``cupy.cuda.Device``. Ranks may differ in it.
    config: settings; default ``Config.from_env()``.

    Returns when all ranks are connected. Raises Timeout naming the ranks that are missing after
    ``config.init_timeout_s``, BootstrapError, NoRails, Mismatch (settings differ), InvalidArgument.
    """
    config = config or Config.from_env()
    return Communicator(via, config, device_of(device, config.cuda_library))


class Communicator(Calls):
    """A group of ranks that carry out collectives together. Made by ``init``.

    Arrays: contiguous, in this machine's byte order, in the memory of the communicator's ``device``; count and dtype
    come from the array. Outputs are never allocated. Every rank makes the same calls in the same order; several threads
    of a rank may call, and the order of their calls is the order of the collectives. A call returns when its result is
    in memory; with ``async_op=True`` at once, and ``Work.wait`` waits. Zero-size arrays are legal.

    On a GPU a call is ordered on a stream (``stream=``; default: CuPy's current one): it begins after what the stream
    holds, what is put on the stream afterwards waits for it (with ``async_op=True`` only what ``Work.wait`` says), and the
    host does not wait. So errors surface later: at the next call, ``check``, or ``Work.synchronize``; then no stream is
    held any more. A call that takes longer than its timeout after it has begun ends the communicator with Timeout.

    Arguments that cannot be used raise InvalidArgument before anything is sent. Later, a call or ``Work.wait`` may
    raise Timeout (the call goes on; its arrays must stay untouched until ``abort`` or ``close``), Mismatch, PeerLost,
    PeerUnreachable or Aborted; after the last four the communicator is of no more use but for ``shrink``, and what the
    outputs of the failed call hold is undefined; its inputs are intact unless it was in place (``keep_input``). Losing a
    NIC raises nothing: see ``events``.

    keep_input, on calls that can be in place: an in-place call that fails leaves its input as it was, at the cost of a
    copy of it before each call. None: ``Config.keep_input``.
    """

    def __init__(
        self,
        via: Any,
        config: Config,
        device: CudaDevice | None = None,
        _parent: Communicator | None = None,
        _name: str = WORLD,
    ) -> None:
        parts = assemble(via, config, device, _parent._planner.costs if _parent is not None else None)
        self._engine = parts.engine
        self._cluster = parts.cluster
        self._planner: Planner = parts.planner
        self._rails = parts.rails
        self._monitor = parts.monitor
        self._door = parts.door
        self._keepers: list[Keeper] = []  # at the doors of those that this one descends from
        self._groups = {}
        self._closed = False
        self._secret, self._local_hint, self._splits = parts.secret, parts.local_hint, 0
        self.config = config
        self.rank = parts.rank
        self.size = parts.cluster.size
        self.local_rank: int = parts.cluster.local_rank(parts.rank)
        self.local_size: int = parts.cluster.local_size(parts.rank)
        self.device: str = "cpu" if device is None else device.name
        self._view: View = View(
            parts.engine,
            job=parts.job if _parent is None else _parent._view.job,
            name=_name,
            rank=self.rank,
            size=self.size,
            hosts=len(parts.cluster.hosts),
            rails=[(r.name, r.address) for r in parts.rails],
        )
        self._station: Station = _parent._station if _parent is not None else _station_of(config, self.local_rank)
        self._station.add(self._view)
        _open.add(self)

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host, in the order in which hosts first appear."""
        return tuple(host.ranks for host in self._cluster.hosts)

    @property
    def epoch(self) -> int:
        """How often all ranks have agreed on another state of the rails; plans of later calls are made for it."""
        return self._engine.epoch()

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Communicators of the ranks with equal ``color``, ordered by ``key``, then by rank. Every rank calls it.

        color: 0 or more, or None for a rank that wants no communicator (it gets None). The parent stays usable; the
        new communicator has connections of its own.
        """
        if color is not None and not 0 <= color < 1 << 31:
            raise InvalidArgument(f"color = {color}: 0 to {(1 << 31) - 1}, or None for no communicator")
        mine, answers = self._engine.host_buffer(16), self._engine.host_buffer(16 * self.size)
        np.frombuffer(memoryview(mine), np.int64)[:] = -1 if color is None else color, key
        self._run(Collective.ALL_GATHER, mine, answers, ReduceOp.SUM, -1, None, False, None)
        every = np.frombuffer(memoryview(answers), np.int64).reshape(self.size, 2)
        self._splits += 1
        if color is None:
            return None
        members = sorted((r for r in range(self.size) if every[r, 0] == color), key=lambda r: (int(every[r, 1]), r))
        secret = derive_secret(self._secret, self._splits, color)
        boot = SubgroupBootstrap(self, tuple(members), secret, self._local_hint)
        return Communicator(boot, self.config, self._engine.device, self, f"{self._view.name}.{self._splits}.{color}")

    def shrink(self, exclude: Iterable[int] = (), *, timeout_s: float | None = None) -> Communicator:
        """A communicator of the survivors, in the order of their ranks; every one of them calls it, also those that have
        not noticed anything. This one is aborted, and closed once the new one is there.

        Left out: ranks that are known to be lost on any survivor, ranks in any survivor's ``exclude`` (alive or not;
        they are not asked), and those that have not called ``shrink`` within ``timeout_s`` (default:
        ``Config.init_timeout_s``; of several the one that ends first). A rank that is left out and calls gets Aborted,
        saying why. Rank 0's store and MPI are not needed. Connecting has ``Config.init_timeout_s`` more; ranks that are
        lost in the middle of it are left out too. Raises Timeout, BootstrapError, NoRails or PeerUnreachable when the
        survivors cannot connect; then ``shrink`` may be called again.
        """
        if self._closed:
            raise Aborted("shrink: this communicator is closed")
        survivors = Survivors(self.rank, self.size, self._secret, self._door, exclude)
        survivors.leave_out(self._engine.lost_ranks())
        self._engine.abort("the communicator shrinks")
        start_s = self.config.init_timeout_s
        new, keeper = survivors.regroup(
            lambda boot: Communicator(boot, self.config, self._engine.device, self, f"{self._view.name}.shrunk"),
            start_s if timeout_s is None else timeout_s,
            start_s,
        )
        new._keepers = self._keepers + ([keeper] if keeper is not None else [])
        self._keepers, self._door = [], None
        self.close()
        return new

    def register(self, array: Any) -> Registration:
        """Let RDMA devices read an array where it lies, instead of copying each chunk that is sent from it.

        Worth it for large arrays that are sent often. The memory is pinned until the result is released; freeing it
        before that is impossible, as the result refers to the array. Without RDMA, and for GPU
        arrays (NICs read what is copied to the host), it costs and changes nothing.
        """
        return Registration(self._engine, array)

    # -- sight ---------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """What happened since the last call of ``events``, oldest first. At most 1024 are kept."""
        events = [Event.from_core(record) for record in self._engine.events()]
        while self._planner.replanned:
            made = self._planner.replanned.popleft()
            name = made.collective.name.lower()
            what = f"{made.algorithm} for {name} of {made.nbytes} bytes"
            events.append(Event.of_plan(made.time_ns, what, made.predicted_us))
        return sorted(events, key=lambda event: event.time_ns)

    def explain(self, collective: str, nbytes: int) -> dict[str, Any]:
        """How a call would be carried out now: ``chosen``: the algorithm; ``why``; ``predicted_us``: by algorithm, for a
        call of this size (bytes of the larger buffer, rounded up to a power of two); ``host_gbs``: bandwidth of each
        host that this rests on. collective: a name such as ``all_reduce``. Raises InvalidArgument for another name."""
        kinds = {kind.name.lower(): kind for kind in Collective if kind not in (Collective.SEND, Collective.RECV)}
        if collective not in kinds:
            raise InvalidArgument(f"collective = {collective!r}: one of {', '.join(kinds)}")
        return self._planner.explain(kinds[collective], nbytes)

    def stats(self) -> dict[str, Any]:
        """Counters since the start: calls, chunks sent and received, ``replayed_chunks``, ``repairs``, ``repair_ms``
        (sum), ``staging_bytes`` in use; ``rails``: bytes per rail; ``links``: per peer and rail; ``hosts``."""
        return self._view.stats()

    def health(self) -> list[dict[str, Any]]:
        """State of this rank's rails: ``name``, ``address``, ``state`` (up; degraded: some link over it is down; down)."""
        return self._view.health()

    def status(self, timeout_s: float = 0.2) -> dict[str, Any]:
        """Where every rank stands, asked now: their cores answer, also while Python sleeps or computes there.

        ``state`` (OK or the status this rank ended with), ``current``: the collective under way here and whom it waits
        for (empty: none), ``calls`` begun, ``rails`` (state, bytes, replayed, last verdict).
        ``ranks``: of every rank what it is ``doing``, for how long (``since_s``), whom it ``waits_for``, how many
        collectives it ``submitted`` and ``finished``, and its ``error``. One that does not answer within ``timeout_s`` is
        ``silent``, and was heard ``heard_s`` seconds ago.
        ``culprits``: who holds up whom in the end; ``text`` says it in words ("rank 3 has not called ... ranks 0-2 wait
        for it"). Callable from another thread while a call hangs.
        """
        return self._view.status(timeout_s)

    def dump_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the trace so far as Chrome trace JSON (for ui.perfetto.dev). Needs ``Config.trace`` to be set."""
        if not self.config.trace:
            raise InvalidArgument("no trace is kept: set Config.trace (R2CCL_TRACE) to a path like trace-{rank}.json")
        timeline = self._view.timeline()
        with open(path, "w", encoding="utf-8") as out:
            timeline.write(out)

    def check(self) -> None:
        """Raises the error that the communicator is in, if any."""
        self._engine.check()

    # -- end -----------------------------------------------------------------------------------------------------

    def abort(self, reason: str = "") -> None:
        """End all calls of this rank with Aborted, at once and without asking anybody. Peers get PeerLost."""
        if not self._closed:
            self._engine.abort(reason)

    def close(self) -> None:
        """Say goodbye, release everything. Idempotent; at most some two seconds, whatever the peers do."""
        if self._closed:
            return
        self._closed = True
        self._station.remove(self._view)
        if self._monitor is not None:
            self._monitor.stop()
        if self.config.trace:
            self._write_trace()
        self._engine.close(_LINGER_S)
        self._close_doors()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort(f"{type(error).__name__} in rank {self.rank}")
        self.close()

    def __repr__(self) -> str:
        hosts = len(self._cluster.hosts)
        return f"<r2ccl.Communicator rank {self.rank} of {self.size} on {hosts} host{'s' * (hosts != 1)}>"

    # -- helpers -------------------------------------------------------------------------------------------------

    def _write_trace(self) -> None:
        path = trace_path(self.config.trace, self.rank, self._view.name)
        try:
            self.dump_trace(path)
        except (OSError, R2cclError) as error:
            log.warning("no trace is written to %s: %s", path, error)

    def _forget(self) -> None:
        self._closed = True
        self._station.forget()
        self._engine.forget()
        if self._monitor is not None:
            self._monitor.forget()
        self._close_doors()

    def _close_doors(self) -> None:
        if self._door is not None:
            self._door.close()
        for keeper in self._keepers:
            keeper.stop()


_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


def _station_of(config: Config, local_rank: int) -> Station:
    port = config.metrics_port + local_rank if config.metrics_port else 0
    return Station(top=config.top, metrics_port=port, metrics_address=config.metrics_address)


def _forget_all() -> None:
    """After a fork, in the child."""
    for comm in list(_open):
        comm._forget()


os.register_at_fork(after_in_child=_forget_all)


@atexit.register
def _close_all() -> None:
    """Exit never hangs: every communicator that is still open is closed, bounded."""
    for comm in list(_open):
        comm.close()
