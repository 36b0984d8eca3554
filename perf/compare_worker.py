"""One rank of one library under comparison: it waits for orders, times all_reduce, answers, and waits again.

Started by ``compare_peers.py`` in the library's own Python environment, so it imports NumPy and that library only.
Orders and answers are JSON lines on a Unix socket. Waiting for an order is a blocking read, so that the ranks that are
not being measured leave the processor to those that are.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


class Library(Protocol):
    """What the timing loop needs: a float32 sum over all ranks, from ``x`` into ``y``, complete on return."""

    rank: int
    size: int

    def all_reduce(self, x: Array, y: Array) -> None: ...
    def barrier(self) -> None: ...
    def close(self) -> None: ...


class R2ccl:
    """r2ccl with the torchrun variables; its settings come from ``R2CCL_*``."""

    def __init__(self) -> None:
        import r2ccl

        self._comm = r2ccl.init()
        self.rank, self.size = self._comm.rank, self._comm.size
        self.all_reduce = self._comm.all_reduce
        self.barrier = self._comm.barrier
        self.close = self._comm.close


class Gloo:
    """Gloo through torch.distributed. Its all_reduce is in place, so ``y`` holds whatever the last call left there.

    One collective uses one interface, the next one the next: ``splits`` > 1 runs that many at once on parts of the
    array, which is what a user must do to fill several.
    """

    def __init__(self, splits: int) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self._torch, self._dist, self._splits = torch, dist, splits
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.barrier = dist.barrier

    def all_reduce(self, x: Array, y: Array) -> None:
        whole = self._torch.from_numpy(y)
        if self._splits == 1 or y.size < self._splits:
            self._dist.all_reduce(whole)
            return
        for work in [self._dist.all_reduce(part, async_op=True) for part in whole.chunk(self._splits)]:
            work.wait()

    def close(self) -> None:
        self._dist.destroy_process_group()


class Mpi:
    """Whatever MPI library the launcher started, through mpi4py."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self._comm.rank, self._comm.size
        self.barrier = self._comm.Barrier

    def all_reduce(self, x: Array, y: Array) -> None:
        self._comm.Allreduce(x, y, self._mpi.SUM)

    def close(self) -> None:
        self._mpi.Finalize()


def open_library(name: str, splits: int) -> Library:
    """The adapter called ``name``: r2ccl, gloo or mpi."""
    if name == "r2ccl":
        return R2ccl()
    if name == "gloo":
        return Gloo(splits)
    if name == "mpi":
        return Mpi()
    raise ValueError(f"library {name!r}: one of r2ccl, gloo, mpi")


class Bench:
    """The loop of the field's benchmarks: warm up, barrier, ``iterations`` calls, mean; several such batches."""

    KEPT_BYTES = 64 << 20  # larger arrays are given back after each order: several libraries share the memory

    def __init__(self, library: Library) -> None:
        self._library = library
        self._arrays: tuple[Array, Array] | None = None

    def run(self, size_bytes: int, iterations: int, batches: int, check: bool) -> list[float]:
        """Seconds per call on this rank, one value per batch. Raises ``ArithmeticError`` on a wrong element."""
        x, y = self._buffers(size_bytes)
        if check:
            self._check(x, y)
        library = self._library
        for _ in range(max(1, min(20, iterations // 5))):
            library.all_reduce(x, y)
        seconds = []
        for _ in range(batches):
            library.barrier()
            start = time.perf_counter()
            for _ in range(iterations):
                library.all_reduce(x, y)
            seconds.append((time.perf_counter() - start) / iterations)
        if size_bytes > self.KEPT_BYTES:
            self._arrays = None
        return seconds

    def _buffers(self, size_bytes: int) -> tuple[Array, Array]:
        if self._arrays is None or self._arrays[0].nbytes != size_bytes:
            self._arrays = None
            count = size_bytes // 4
            # Small whole numbers, different on every rank and at every place: their sums are exact in any order.
            x = ((np.arange(count, dtype=np.int32) + 7 * self._library.rank) % 61).astype(np.float32)
            self._arrays = (x, np.zeros_like(x))
        return self._arrays

    def _check(self, x: Array, y: Array) -> None:
        places = np.arange(x.size, dtype=np.int32)
        expected = np.zeros_like(x)
        for rank in range(self._library.size):
            expected += (places + 7 * rank) % 61
        y[:] = x  # for the library that works in place
        self._library.all_reduce(x, y)
        wrong = np.flatnonzero(y != expected)
        if wrong.size:
            i = int(wrong[0])
            raise ArithmeticError(f"{wrong.size} of {x.size} elements wrong; [{i}] = {y[i]}, expected {expected[i]}")


def spread(rank: int, ranks: int) -> None:
    """Where there are more ranks than cores, binds all threads of this one to a core, as launchers do: the ranks in turn.

    Else the kernel may leave three of four ranks on one core for as long as a measurement takes, and which library that
    meets is chance.
    """
    cores = sorted(os.sched_getaffinity(0))
    if ranks > len(cores):
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {cores[rank % len(cores)]})


def serve(library: Library, connection: socket.socket, peer: str) -> None:
    """Carries out orders until the coordinator hangs up."""
    bench = Bench(library)
    spread(library.rank, library.size)
    with connection.makefile("rw") as lines:

        def answer(**fields: Any) -> None:
            lines.write(json.dumps(fields) + "\n")
            lines.flush()

        answer(peer=peer, rank=library.rank, pid=os.getpid())
        for line in lines:
            order = json.loads(line)
            if "quit" in order:
                return
            try:
                answer(seconds=bench.run(**order))
            except Exception as error:  # the coordinator decides what to do without this library
                answer(error=f"{type(error).__name__}: {error}")


def join(description: str) -> tuple[Library, socket.socket, str]:
    """Reads the command line, calls the coordinator, opens the library: (library, connection, name of the peer)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--library", required=True, help="r2ccl, gloo or mpi")
    parser.add_argument("--peer", required=True, help="the name under which it appears in the results")
    parser.add_argument("--socket", required=True, help="path of the coordinator's Unix socket")
    parser.add_argument("--splits", type=int, default=1, help="gloo: concurrent collectives per call")
    options = parser.parse_args()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(options.socket)
    return open_library(options.library, options.splits), connection, options.peer


def main() -> None:
    """See ``--help``."""
    assert __doc__
    library, connection, peer = join(__doc__.splitlines()[0])
    serve(library, connection, peer)
    library.close()


if __name__ == "__main__":
    main()
