"""Communicator: the public face. Checks arguments, submits calls to the core, and tells what happened."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import TracebackType
from typing import Any

import numpy as np

from ._native.core import Work
from .arrays import as_buffer
from .assemble import assemble
from .bootstrap.keeper import Keeper
from .config import WORLD, Config, trace_path
from .errors import Aborted, InvalidArgument, R2cclError
from .observe.events import Event
from .observe.station import Station
from .observe.view import View
from .shrink import Survivors
from .subgroup import SubgroupBootstrap, derive_secret
from .types import Collective, DType, ReduceOp

_LINGER_S = 2.0


def init(via: Any = None, *, device: str | None = None, config: Config | None = None) -> Communicator:
    """Make a communicator of all ranks of the job; every rank calls it.

    via: None (the variables RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun sets them; without WORLD_SIZE a
        world of one), an mpi4py communicator (used only during this call), or an object with the methods of
        ``r2ccl.bootstrap.Bootstrap``.
    device: "cpu" (the default).
    config: settings; default ``Config.from_env()``.

    Returns when all ranks are connected. Raises Timeout naming the ranks that are missing after
    ``config.init_timeout_s``, BootstrapError, NoRails, Mismatch (settings differ), InvalidArgument.
    """
    if device not in (None, "cpu"):
        raise InvalidArgument(f"device = {device!r}: this build knows 'cpu' only")
    return Communicator(via, config or Config.from_env())


class Communicator:
    """A group of ranks that carry out collectives together. Made by ``init``.

    Arrays: contiguous, in this machine's byte order, in host memory; count and dtype come from the array. Outputs are
    never allocated. Every rank makes the same calls in the same order; several threads of a rank may call, and the
    order of their calls is the order of the collectives. A call returns when its result is in memory; with
    ``async_op=True`` at once, and ``Work.wait`` waits. Zero-size arrays are legal.

    Arguments that cannot be used raise InvalidArgument before anything is sent. Later, a call or ``Work.wait`` may
    raise Timeout (the call goes on; its arrays must stay untouched until ``abort`` or ``close``), Mismatch, PeerLost,
    PeerUnreachable or Aborted; after the last four the communicator is of no more use but for ``shrink``, and what the
    outputs of the failed call hold is undefined; its inputs are intact unless it was in place (``keep_input``). Losing a
    NIC raises nothing: see ``events``.

    keep_input, on calls that can be in place: an in-place call that fails leaves its input as it was, at the cost of a
    copy of it before each call. None: ``Config.keep_input``.
    """

    def __init__(self, via: Any, config: Config, _parent: Communicator | None = None, _name: str = WORLD) -> None:
        parts = assemble(via, config)
        self._engine = parts.engine
        self._cluster = parts.cluster
        self._planner = parts.planner
        self._rails = parts.rails
        self._monitor = parts.monitor
        self._door = parts.door
        self._keepers: list[Keeper] = []  # at the doors of those that this one descends from
        self._groups: dict[int, list[Work]] = {}  # by thread: the calls of its open group()
        self._closed = False
        self._secret, self._local_hint, self._splits = parts.secret, parts.local_hint, 0
        self.config = config
        self.rank: int = parts.rank
        self.size: int = parts.cluster.size
        self.local_rank: int = parts.cluster.local_rank(parts.rank)
        self.local_size: int = parts.cluster.local_size(parts.rank)
        self.device = "cpu"
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
    def epoch(self) -> int:
        """How often all ranks have agreed on another state of the rails; plans of later calls are made for it."""
        return self._engine.epoch()

    # -- collectives ---------------------------------------------------------------------------------------------

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        op: ReduceOp = ReduceOp.SUM,
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        keep_input: bool | None = None,
    ) -> Work:
        """recv = the reduction of every rank's send, elementwise, on every rank; the same bits on all of them.

        send, recv: the same shape and dtype on all ranks. recv=None or recv=send: in place.
        """
        return self._run(
            Collective.ALL_REDUCE, send, send if recv is None else recv, op, -1, stream, async_op, timeout_s, keep_input
        )

    def reduce(
        self,
        send: Any,
        recv: Any = None,
        op: ReduceOp = ReduceOp.SUM,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        keep_input: bool | None = None,
    ) -> Work:
        """recv on rank ``root`` = the reduction of every rank's send. recv is ignored elsewhere; None at the root: in place."""
        at_root = self._root(root)
        out = (send if recv is None else recv) if at_root else None
        return self._run(Collective.REDUCE, send, out, op, root, stream, async_op, timeout_s, keep_input)

    def broadcast(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """Every rank's buffer = that of rank ``root``.

        With recv=None the one buffer is input at the root and output elsewhere. With recv, send is read at the root
        only and recv is written everywhere.
        """
        at_root = self._root(root)
        if recv is None:
            pair = (send, send)
        else:
            pair = (send if at_root else None, recv)
        return self._run(Collective.BROADCAST, *pair, ReduceOp.SUM, root, stream, async_op, timeout_s)

    def all_gather(
        self, send: Any, recv: Any, *, stream: Any = None, async_op: bool = False, timeout_s: float | None = None
    ) -> Work:
        """recv (size x count elements) = the sends (count) of all ranks, by rank. In place: send is recv's own block."""
        return self._run(Collective.ALL_GATHER, send, recv, ReduceOp.SUM, -1, stream, async_op, timeout_s)

    def reduce_scatter(
        self,
        send: Any,
        recv: Any,
        op: ReduceOp = ReduceOp.SUM,
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        keep_input: bool | None = None,
    ) -> Work:
        """recv (count elements) = block ``rank`` of the reduction of all sends (size x count). In place: recv is
        send's own block; the other blocks of send are undefined afterwards."""
        return self._run(Collective.REDUCE_SCATTER, send, recv, op, -1, stream, async_op, timeout_s, keep_input)

    def all_to_all(
        self,
        send: Any,
        recv: Any,
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        keep_input: bool | None = None,
    ) -> Work:
        """Block j of send goes to rank j; block i of recv comes from rank i. Both of size x count elements; recv may be
        send (it is copied first)."""
        if recv is not send:
            keep_input = False
        else:
            send = np.array(send, copy=True)
        return self._run(Collective.ALL_TO_ALL, send, recv, ReduceOp.SUM, -1, stream, async_op, timeout_s, keep_input)

    def gather(
        self,
        send: Any,
        recv: Any = None,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """recv (size x count) on rank ``root`` = all sends (count), by rank. recv is ignored elsewhere."""
        at_root = self._root(root)
        if at_root and recv is None:
            raise InvalidArgument(
                f"recv is None at the root (rank {root}): it must hold {self.size} blocks of send's size"
            )
        return self._run(
            Collective.GATHER, send, recv if at_root else None, ReduceOp.SUM, root, stream, async_op, timeout_s
        )

    def scatter(
        self,
        send: Any = None,
        recv: Any = None,
        root: int = 0,
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """recv (count) = block ``rank`` of rank ``root``'s send (size x count). send is ignored elsewhere."""
        at_root = self._root(root)
        if recv is None or (at_root and send is None):
            raise InvalidArgument("scatter needs recv on every rank, and send at the root")
        return self._run(
            Collective.SCATTER, send if at_root else None, recv, ReduceOp.SUM, root, stream, async_op, timeout_s
        )

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Returns when every rank has called it."""
        self._engine.barrier(timeout_s)

    # -- counts that differ --------------------------------------------------------------------------------------

    def all_gather_v(
        self,
        send: Any,
        recv: Any,
        counts: Sequence[int],
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """recv (sum of counts) = the sends of all ranks one after the other; ``counts[i]`` elements come from rank i."""
        cuts = self._cuts("counts", counts)
        self._fits("send", send, int(counts[self.rank]), False)
        self._fits("recv", recv, int(cuts[-1]), True)
        return self._run_given(
            Collective.ALL_GATHER,
            send,
            recv,
            ReduceOp.SUM,
            cuts,
            None,
            int(cuts[self.rank]),
            False,
            stream,
            async_op,
            timeout_s,
        )

    def reduce_scatter_v(
        self,
        send: Any,
        recv: Any,
        counts: Sequence[int],
        op: ReduceOp = ReduceOp.SUM,
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        keep_input: bool | None = None,
    ) -> Work:
        """recv (``counts[rank]``) = this rank's part of the reduction of all sends (sum of counts)."""
        cuts = self._cuts("counts", counts)
        self._fits("send", send, int(cuts[-1]), False)
        self._fits("recv", recv, int(counts[self.rank]), True)
        return self._run_given(
            Collective.REDUCE_SCATTER,
            send,
            recv,
            op,
            cuts,
            None,
            int(cuts[self.rank]),
            True,
            stream,
            async_op,
            timeout_s,
            keep_input,
        )

    def all_to_all_v(
        self,
        send: Any,
        send_counts: Sequence[int],
        recv: Any,
        recv_counts: Sequence[int],
        *,
        stream: Any = None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Work:
        """``send_counts[j]`` elements of send go to rank j, ``recv_counts[i]`` come from rank i; blocks lie one after
        the other. What rank i sends to j must be what j expects from i, else Mismatch. Never in place."""
        send_cuts, recv_cuts = self._cuts("send_counts", send_counts), self._cuts("recv_counts", recv_counts)
        if send_counts[self.rank] != recv_counts[self.rank]:
            raise InvalidArgument(
                f"send_counts[{self.rank}] = {send_counts[self.rank]} and recv_counts[{self.rank}] = "
                f"{recv_counts[self.rank]}: what this rank sends to itself must be what it receives from itself"
            )
        self._fits("send", send, int(send_cuts[-1]), False)
        self._fits("recv", recv, int(recv_cuts[-1]), True)
        return self._run_given(
            Collective.ALL_TO_ALL, send, recv, ReduceOp.SUM, send_cuts, recv_cuts, 0, False, stream, async_op, timeout_s
        )

    # -- point to point ------------------------------------------------------------------------------------------

    def send(
        self, buf: Any, peer: int, *, stream: Any = None, async_op: bool = False, timeout_s: float | None = None
    ) -> Work:
        """Send an array to rank ``peer``, which calls ``recv`` with one of the same size and dtype.

        Messages between two ranks match in order. A large send returns only when the peer has called ``recv``: use
        ``group()`` or ``async_op`` where two ranks send to each other.
        """
        return self._p2p(Collective.SEND, buf, peer, stream, async_op, timeout_s)

    def recv(
        self, buf: Any, peer: int, *, stream: Any = None, async_op: bool = False, timeout_s: float | None = None
    ) -> Work:
        """Receive an array from rank ``peer``."""
        return self._p2p(Collective.RECV, buf, peer, stream, async_op, timeout_s)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Calls of this thread inside start at once and run side by side; leaving the context waits for all of them."""
        thread = get_ident()
        if thread in self._groups:
            raise InvalidArgument("group() inside group(): leave the first one before")
        pending = self._groups[thread] = []
        try:
            yield
        finally:
            del self._groups[thread]
        for work in pending:
            work.wait()

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Communicators of the ranks with equal ``color``, ordered by ``key``, then by rank. Every rank calls it.

        color: 0 or more, or None for a rank that wants no communicator (it gets None). The parent stays usable; the
        new communicator has connections of its own.
        """
        if color is not None and not 0 <= color < 1 << 31:
            raise InvalidArgument(f"color = {color}: 0 to {(1 << 31) - 1}, or None for no communicator")
        mine = np.array([-1 if color is None else color, key], np.int64)
        every = np.empty((self.size, 2), np.int64)
        self._run(Collective.ALL_GATHER, mine, every, ReduceOp.SUM, -1, None, False, None)
        self._splits += 1
        if color is None:
            return None
        members = sorted((r for r in range(self.size) if every[r, 0] == color), key=lambda r: (int(every[r, 1]), r))
        secret = derive_secret(self._secret, self._splits, color)
        boot = SubgroupBootstrap(self, tuple(members), secret, self._local_hint)
        return Communicator(boot, self.config, self, f"{self._view.name}.{self._splits}.{color}")

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
            lambda boot: Communicator(boot, self.config, self, f"{self._view.name}.shrunk"),
            start_s if timeout_s is None else timeout_s,
            start_s,
        )
        new._keepers = self._keepers + ([keeper] if keeper is not None else [])
        self._keepers, self._door = [], None
        self.close()
        return new

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

    def _run(
        self,
        collective: Collective,
        send: Any,
        recv: Any,
        op: ReduceOp,
        root: int,
        stream: Any,
        async_op: bool,
        timeout_s: float | None,
        keep_input: bool | None = False,
    ) -> Work:
        if stream is not None:
            raise InvalidArgument(f"stream = {stream!r}: host arrays have no stream")
        pending = self._groups.get(get_ident()) if self._groups else None
        keep = self.config.keep_input if keep_input is None else keep_input
        work = self._engine.run(collective, send, recv, op, root, async_op or pending is not None, timeout_s, keep)
        if pending is not None:
            pending.append(work)
        return work

    def _run_given(
        self,
        collective: Collective,
        send: Any,
        recv: Any,
        op: ReduceOp,
        cuts: Any,
        recv_cuts: Any,
        own_first: int,
        own_is_recv: bool,
        stream: Any,
        async_op: bool,
        timeout_s: float | None,
        keep_input: bool | None = False,
    ) -> Work:
        if stream is not None:
            raise InvalidArgument(f"stream = {stream!r}: host arrays have no stream")
        sent, received = as_buffer(send, False, "send"), as_buffer(recv, True, "recv")
        if sent[2] != received[2]:
            raise InvalidArgument(
                f"send is {sent[2].name.lower()} and recv is {received[2].name.lower()}: they must be equal"
            )
        whole, own = (sent, received) if own_is_recv else (received, sent)
        in_place = recv_cuts is None and own[0] == whole[0] + own_first * own[2].itemsize and own[1] > 0
        if not in_place:
            _apart(sent, received)
        pending = self._groups.get(get_ident()) if self._groups else None
        keep = self.config.keep_input if keep_input is None else keep_input
        work = self._engine.run_given(
            collective, send, recv, op, cuts, recv_cuts, in_place, async_op or pending is not None, timeout_s, keep
        )
        if pending is not None:
            pending.append(work)
        return work

    def _p2p(
        self, collective: Collective, buf: Any, peer: int, stream: Any, async_op: bool, timeout_s: float | None
    ) -> Work:
        if stream is not None:
            raise InvalidArgument(f"stream = {stream!r}: host arrays have no stream")
        pending = self._groups.get(get_ident()) if self._groups else None
        work = self._engine.run_p2p(collective, buf, peer, async_op or pending is not None, timeout_s)
        if pending is not None:
            pending.append(work)
        return work

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

    def _root(self, root: int) -> bool:
        if not 0 <= root < self.size:
            raise InvalidArgument(f"root = {root}: this communicator has ranks 0 to {self.size - 1}")
        return root == self.rank

    def _cuts(self, name: str, counts: Sequence[int]) -> Any:
        values = np.asarray(counts, dtype=np.int64)
        if values.shape != (self.size,) or (values < 0).any():
            raise InvalidArgument(f"{name} = {list(counts)}: one count for each of {self.size} ranks, none negative")
        cuts = np.zeros(self.size + 1, np.uint64)
        np.cumsum(values, out=cuts[1:])
        return cuts

    @staticmethod
    def _fits(name: str, array: Any, count: int, writable: bool) -> None:
        have = as_buffer(array, writable, name)[1]
        if have != count:
            raise InvalidArgument(f"{name} has {have} elements; the counts ask for {count}")


log = logging.getLogger("r2ccl")
_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


def _station_of(config: Config, local_rank: int) -> Station:
    port = config.metrics_port + local_rank if config.metrics_port else 0
    return Station(top=config.top, metrics_port=port, metrics_address=config.metrics_address)


def _apart(a: tuple[int, int, DType], b: tuple[int, int, DType]) -> None:
    a_end, b_end = a[0] + a[1] * a[2].itemsize, b[0] + b[1] * b[2].itemsize
    if a[1] and b[1] and a[0] < b_end and b[0] < a_end:
        raise InvalidArgument(
            f"send ({a[1]} elements at {a[0]:#x}) and recv ({b[1]} elements at {b[0]:#x}) overlap in part: use separate "
            "arrays, or exactly the in-place form"
        )


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
