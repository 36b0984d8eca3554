"""The calls of a communicator: what moves arrays. Checks what the core cannot, and hands the rest to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np

from ._native.core import Engine, HostBuffer, Work
from .arrays import as_buffer
from .config import Config
from .device_arrays import as_device_buffer
from .errors import InvalidArgument
from .streams import stream_handle
from .types import Collective, DType, ReduceOp


class Calls:
    """What ``Communicator`` says of arrays, errors and ``keep_input`` holds for all of them."""

    config: Config
    rank: int
    size: int
    _engine: Engine
    _groups: dict[int, list[Work]]  # by thread: the calls of its open group()

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
        elif self._engine.device is None:  # a device copies it when its stream has come so far
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

    def barrier(self, *, stream: Any = None, timeout_s: float | None = None) -> None:
        """Returns when every rank has called it. With a stream, on a device: returns at once, and what is put on the
        stream afterwards waits for what every rank's stream held when it called."""
        self._engine.barrier(timeout_s, None if stream is None else self._on(stream))

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
        """Calls of this thread inside start at once and run side by side; leaving the context waits for all of them: the
        host, or on a device the stream of each."""
        thread = get_ident()
        if thread in self._groups:
            raise InvalidArgument("group() inside group(): leave the first one before")
        pending = self._groups[thread] = []
        try:
            yield
        finally:
            del self._groups[thread]
        for work in pending:
            work.wait(work.stream)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _on(self, stream: Any, *arrays: Any) -> int | None:
        """The stream that a call is ordered on; None: the host waits for it."""
        if self._engine.device is None:
            if stream is not None:
                raise InvalidArgument(
                    f"stream = {stream!r}: this communicator works on host arrays, which have no stream (init(device='cuda'))"
                )
            return None
        if any(isinstance(array, HostBuffer) for array in arrays):
            return None
        return stream_handle(stream, arrays)

    def host_buffer(self, nbytes: int) -> HostBuffer:
        """Bytes in host memory that calls take wherever this communicator works: the host then waits for such a call."""
        return self._engine.host_buffer(nbytes)

    def _buffer(self, array: Any, writable: bool, name: str) -> tuple[int, int, DType]:
        if self._engine.device is None:
            return as_buffer(array, writable, name)
        return as_device_buffer(array, writable, name, self._engine.device)

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
        handle = self._on(stream, send, recv)
        pending = self._groups.get(get_ident()) if self._groups else None
        keep = self.config.keep_input if keep_input is None else keep_input
        work = self._engine.run(
            collective, send, recv, op, root, async_op or pending is not None, timeout_s, keep, handle
        )
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
        handle = self._on(stream, send, recv)
        sent, received = self._buffer(send, False, "send"), self._buffer(recv, True, "recv")
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
            collective,
            send,
            recv,
            op,
            cuts,
            recv_cuts,
            in_place,
            async_op or pending is not None,
            timeout_s,
            keep,
            handle,
        )
        if pending is not None:
            pending.append(work)
        return work

    def _p2p(
        self, collective: Collective, buf: Any, peer: int, stream: Any, async_op: bool, timeout_s: float | None
    ) -> Work:
        handle = self._on(stream, buf)
        pending = self._groups.get(get_ident()) if self._groups else None
        work = self._engine.run_p2p(collective, buf, peer, async_op or pending is not None, timeout_s, handle)
        if pending is not None:
            pending.append(work)
        return work

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

    def _fits(self, name: str, array: Any, count: int, writable: bool) -> None:
        have = self._buffer(array, writable, name)[1]
        if have != count:
            raise InvalidArgument(f"{name} has {have} elements; the counts ask for {count}")


def _apart(a: tuple[int, int, DType], b: tuple[int, int, DType]) -> None:
    a_end, b_end = a[0] + a[1] * a[2].itemsize, b[0] + b[1] * b[2].itemsize
    if a[1] and b[1] and a[0] < b_end and b[0] < a_end:
        raise InvalidArgument(
            f"send ({a[1]} elements at {a[0]:#x}) and recv ({b[1]} elements at {b[0]:#x}) overlap in part: use separate "
            "arrays, or exactly the in-place form"
        )
