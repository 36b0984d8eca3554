"""What is run under fault: every collective as a function of (communicator, elements), giving its results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from fault_checks import Array, noise

from r2ccl import Communicator, ReduceOp

Step = Callable[[Communicator, int, int], list[Array]]
"""(communicator, elements of the largest array, salt of the data) -> the arrays that were received."""


def empty(count: int) -> Array:
    """An output that no result happens to equal."""
    return np.full(count, np.nan, np.float32)


def all_reduce(comm: Communicator, count: int, salt: int) -> list[Array]:
    out = empty(count)
    comm.all_reduce(noise(comm.rank, count, salt), out)
    return [out]


def all_reduce_in_place(comm: Communicator, count: int, salt: int) -> list[Array]:
    array = noise(comm.rank, count, salt)
    comm.all_reduce(array)
    return [array]


def reduce(comm: Communicator, count: int, salt: int) -> list[Array]:
    root = salt % comm.size
    out = empty(count) if comm.rank == root else np.zeros(1, np.float32)
    comm.reduce(noise(comm.rank, count, salt), out if comm.rank == root else None, root=root)
    return [out]


def broadcast(comm: Communicator, count: int, salt: int) -> list[Array]:
    root = salt % comm.size
    array = noise(comm.rank, count, salt) if comm.rank == root else empty(count)
    comm.broadcast(array, root=root)
    return [array]


def all_gather(comm: Communicator, count: int, salt: int) -> list[Array]:
    block = count // comm.size
    out = empty(block * comm.size)
    comm.all_gather(noise(comm.rank, block, salt), out)
    return [out]


def reduce_scatter(comm: Communicator, count: int, salt: int) -> list[Array]:
    block = count // comm.size
    out = empty(block)
    comm.reduce_scatter(noise(comm.rank, block * comm.size, salt), out, ReduceOp.SUM)
    return [out]


def all_to_all(comm: Communicator, count: int, salt: int) -> list[Array]:
    block = count // comm.size
    out = empty(block * comm.size)
    comm.all_to_all(noise(comm.rank, block * comm.size, salt), out)
    return [out]


def gather(comm: Communicator, count: int, salt: int) -> list[Array]:
    block, root = count // comm.size, salt % comm.size
    out = empty(block * comm.size) if comm.rank == root else np.zeros(1, np.float32)
    comm.gather(noise(comm.rank, block, salt), out if comm.rank == root else None, root)
    return [out]


def scatter(comm: Communicator, count: int, salt: int) -> list[Array]:
    block, root = count // comm.size, salt % comm.size
    out = empty(block)
    comm.scatter(noise(comm.rank, block * comm.size, salt) if comm.rank == root else None, out, root)
    return [out]


def _counts(comm: Communicator, count: int) -> list[int]:
    """Unequal, one of them 0 where there are three ranks or more."""
    weights = [r if comm.size > 2 else r + 1 for r in range(comm.size)]
    return [count * w // sum(weights) for w in weights]


def all_gather_v(comm: Communicator, count: int, salt: int) -> list[Array]:
    counts = _counts(comm, count)
    out = empty(sum(counts))
    comm.all_gather_v(noise(comm.rank, counts[comm.rank], salt), out, counts)
    return [out]


def reduce_scatter_v(comm: Communicator, count: int, salt: int) -> list[Array]:
    counts = _counts(comm, count)
    out = empty(counts[comm.rank])
    comm.reduce_scatter_v(noise(comm.rank, sum(counts), salt), out, counts)
    return [out]


def all_to_all_v(comm: Communicator, count: int, salt: int) -> list[Array]:
    table = [[count * (1 + (i + 2 * j) % 3) // (3 * comm.size) for j in range(comm.size)] for i in range(comm.size)]
    sent, received = table[comm.rank], [row[comm.rank] for row in table]
    out = empty(sum(received))
    comm.all_to_all_v(noise(comm.rank, sum(sent), salt), sent, out, received)
    return [out]


def send_recv(comm: Communicator, count: int, salt: int) -> list[Array]:
    """Everybody sends to the right and receives from the left, at once."""
    out = empty(count)
    with comm.group():
        comm.send(noise(comm.rank, count, salt), (comm.rank + 1) % comm.size)
        comm.recv(out, (comm.rank - 1) % comm.size)
    return [out]


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        all_reduce,
        all_reduce_in_place,
        reduce,
        broadcast,
        all_gather,
        reduce_scatter,
        all_to_all,
        gather,
        scatter,
        all_gather_v,
        reduce_scatter_v,
        all_to_all_v,
        send_recv,
    )
}


def repeat(step: Step, count: int, times: int = 1) -> Callable[[Communicator], list[Array]]:
    """The scenario that takes a step several times, with other data (and another root) each time."""
    return lambda comm: [array for salt in range(times) for array in step(comm, count, salt)]
