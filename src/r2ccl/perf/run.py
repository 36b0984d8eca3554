"""The measurement: what one rank does, the same on all ranks."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgument
from ..types import NUMPY_OF, DType, ReduceOp
from .calibrate import calibrate
from .data import Pattern, count_wrong, fill
from .flags import Flags
from .memory import HostMemory, memory_of
from .ops import OPS, REDUCED, Case, Op
from .report import Report, Result, algbw
from .sizes import ladder


def run(comm: Any, flags: Flags) -> int:
    """Measure everything that ``flags`` asks for. Returns the number of wrong elements, of all ranks."""
    if flags.calibrate:
        costs = calibrate(comm, flags.calibrate)
        if comm.rank == 0:
            print(
                f"{costs.to_json()}\nwritten to {flags.calibrate}; R2CCL_COSTS={flags.calibrate} makes plans go by it"
            )
        return 0
    if flags.root >= comm.size:
        raise InvalidArgument(f"-r {flags.root}: the ranks are 0 to {comm.size - 1}")
    op = OPS[flags.op]
    memory = memory_of(comm.device)
    with contextlib.ExitStack() as stack:
        report = None
        if comm.rank == 0:
            report = Report(sys.stdout, _open_lines(flags.json, stack))
            stats = comm.stats()
            report.head({"op": op.name, "ranks": comm.size, "hosts": stats["hosts"], "rails": len(stats["rails"])})
        wrong = 0
        for dtype, redop, root in _variants(flags, op, comm.size):
            for size in (
                [0]
                if op.name == "barrier"
                else ladder(flags.min_bytes, flags.max_bytes, step=flags.step_bytes, factor=flags.factor)
            ):
                count = op.count(size, dtype.itemsize, comm.size)
                case = Case(comm.rank, comm.size, root, count, redop)
                if flags.explain and report is not None and op.name not in ("barrier", "sendrecv"):
                    report.note(_explained(comm, op.name, op.size_bytes(count, dtype.itemsize, comm.size)))
                results = [_measure(comm, memory, flags, op, case, dtype, in_place=False)]
                if op.call_in_place is not None:
                    results.append(_measure(comm, memory, flags, op, case, dtype, in_place=True))
                wrong += sum(r.wrong or 0 for r in results)
                if report is not None:
                    report.row(results[0], results[1] if len(results) > 1 else None)
        if report is not None:
            report.foot()
    return wrong


def _explained(comm: Any, name: str, nbytes: int) -> str:
    told = comm.explain(name, nbytes)
    costs = sorted(told["predicted_us"].items(), key=lambda item: item[1])
    return f"{name} of {nbytes} bytes: {told['chosen']}, {told['why']}; " + ", ".join(
        f"{n} {us:.0f} us" for n, us in costs
    )


def _open_lines(path: str, stack: contextlib.ExitStack) -> TextIO | None:
    if not path:
        return None
    return sys.stdout if path == "-" else stack.enter_context(open(path, "a", encoding="utf-8"))


def _variants(flags: Flags, op: Op, ranks: int) -> Iterator[tuple[DType, ReduceOp, int]]:
    roots = range(ranks) if op.rooted and flags.root == -1 else [max(flags.root, 0)]
    for dtype in flags.dtypes[:1] if op.name == "barrier" else flags.dtypes:
        for redop in flags.redops:
            for root in roots:
                yield dtype, redop, root


@dataclass(frozen=True)
class _Buffers:
    """``send`` and ``recv`` are what the call is given; ``out`` is where the result is to be found."""

    send: Any
    recv: Any
    out: Any


def _allocate(memory: HostMemory, op: Op, case: Case, dtype: DType, in_place: bool) -> _Buffers:
    """Fresh buffers; in place they overlap as ``Op`` says."""
    kind = NUMPY_OF[dtype]
    sends, receives = op.sends(case), op.receives(case)
    send = memory.zeros(sends * case.count, kind) if sends else None
    recv = memory.zeros(receives * case.count, kind) if receives else None
    if in_place:
        mine = slice(case.rank * case.count, (case.rank + 1) * case.count)
        if send is not None and recv is not None:
            if sends < receives:
                send = recv[mine]
            elif sends > receives:
                recv = send[mine]
            else:
                send = recv
    return _Buffers(send, recv, recv)


def _measure(
    comm: Any, memory: HostMemory, flags: Flags, op: Op, case: Case, dtype: DType, *, in_place: bool
) -> Result:
    call = op.call_in_place if in_place else op.call
    assert call is not None
    buffers = _allocate(memory, op, case, dtype, in_place)
    before = comm.stats()
    times_s = np.zeros(flags.iterations)
    wrong, plan = 0, ""
    if flags.check:
        for i in range(-flags.warmup, flags.iterations):
            pattern = Pattern(dtype, case.ranks, case.op if op.reduces else None, i + flags.warmup)
            if buffers.send is not None:
                image = memory.image(buffers.send)
                fill(image, pattern.rank(case.rank))
                memory.store(buffers.send, image)
            comm.barrier()
            start = time.perf_counter()
            work = call(comm, case, buffers.send, buffers.recv)
            memory.finish(work)
            if i >= 0:
                times_s[i] = time.perf_counter() - start
            plan = getattr(work, "plan", "") or plan
            wrong += _wrong(memory, op, case, buffers, pattern)
    else:
        for _ in range(flags.warmup):
            memory.finish(call(comm, case, buffers.send, buffers.recv))
        comm.barrier()
        start = time.perf_counter()
        for _ in range(flags.iterations):
            work = call(comm, case, buffers.send, buffers.recv)
            memory.finish(work)
        times_s[:] = (time.perf_counter() - start) / flags.iterations
        plan = getattr(work, "plan", "") or plan
    after = comm.stats()
    replayed = after["replayed_chunks"] - before["replayed_chunks"]
    repair_ms = after["repair_ms"] - before["repair_ms"]
    totals = _over_ranks(comm, memory, np.array([wrong, replayed], np.float64), ReduceOp.SUM)
    slowest = _over_ranks(comm, memory, np.append(times_s * 1e6, repair_ms), ReduceOp.MAX)
    times_us = slowest[:-1]
    time_us = float(np.median(times_us))
    size = op.size_bytes(case.count, dtype.itemsize, case.ranks)
    return Result(
        op=op.name,
        bytes=size,
        count=case.count,
        dtype=dtype.name.lower(),
        redop=case.op.name.lower() if op.reduces else "none",
        root=case.root if op.rooted else -1,
        in_place=in_place,
        time_us=time_us,
        time_mean_us=float(times_us.mean()),
        time_max_us=float(times_us.max()),
        algbw_GBps=algbw(size, time_us),
        busbw_GBps=algbw(size, time_us) * op.factor(case.ranks),
        wrong=int(totals[0]) if flags.check else None,
        replayed=int(totals[1]),
        repair_ms=float(slowest[-1]),
        ranks=case.ranks,
        hosts=int(after["hosts"]),
        rails=len(after["rails"]),
        plan=plan,
    )


def _wrong(memory: HostMemory, op: Op, case: Case, buffers: _Buffers, pattern: Pattern) -> int:
    """Wrong elements in this rank's output, every element looked at."""
    wrong = 0
    whole = memory.load(buffers.out) if buffers.out is not None else np.empty(0)
    for piece in op.expected(case):
        block = whole[piece.block * case.count : (piece.block + 1) * case.count]
        period = pattern.reduced() if piece.source == REDUCED else pattern.rank(piece.source)
        wrong += count_wrong(block, period, piece.start)
    return wrong


def _over_ranks(
    comm: Any, memory: HostMemory, values: npt.NDArray[np.float64], op: ReduceOp
) -> npt.NDArray[np.float64]:
    buffer = memory.zeros(values.size, values.dtype)
    image = memory.image(buffer)
    image[:] = values
    memory.store(buffer, image)
    memory.finish(comm.all_reduce(buffer, op=op))
    return np.asarray(memory.load(buffer), np.float64)
