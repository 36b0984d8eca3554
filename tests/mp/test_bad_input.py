"""Arguments that cannot be used: refused before anything is sent, with the value in the message; and what is accepted."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mp_checks import assert_equal

import r2ccl
from r2ccl.testing import run_ranks

pytestmark = pytest.mark.timeout(60)

Comm = r2ccl.Communicator


class OnGpu:
    """What a GPU library's array looks like from outside."""

    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (0x7F0000000000, False), "version": 3}  # noqa: RUF012


class Dlpack:
    """An array of another library that speaks DLPack only."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.values.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


class ReadOnlyDlpack(Dlpack):
    """As JAX arrays: immutable. NumPy takes it for a read-only array (flag of DLPack 1.0)."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        super().__init__(values)
        self.values.flags.writeable = False


class OffDevice(Dlpack):
    """On a GPU, according to DLPack: type 2 is CUDA."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise BufferError("data is on device cuda:0")


class Interface:
    """Speaks ``__array_interface__`` only."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.__array_interface__ = values.__array_interface__


def frozen(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values.flags.writeable = False
    return values


def unusable() -> list[tuple[Any, str]]:
    """Inputs, and what the message must contain."""
    wide = np.zeros((4, 6), np.float32)
    return [
        (np.zeros(8, np.float32)[::2], r"strides \(8,\)"),
        (wide[:, :3], r"shape \(4, 3\)"),
        (wide.T, r"ascontiguousarray"),
        (np.zeros(4, np.float32)[::-1], r"strides \(-4,\)"),
        (np.zeros(4, ">f4"), r">f4"),
        (np.zeros(4, ">i8"), r">i8"),
        (np.zeros(4, object), "object"),
        (np.array(["a", "bb"]), "<U2"),
        (np.array([b"a", b"bb"]), r"\|S2"),
        (np.zeros(4, [("a", "i4"), ("b", "f4")]), "'a'"),
        (np.zeros(4, "M8[s]"), "datetime64"),
        (np.zeros(4, np.longdouble), np.dtype(np.longdouble).name),
        (OnGpu(), "OnGpu"),
        (OffDevice(np.zeros(4)), "OffDevice.*cuda:0"),
        ([1.0, 2.0], "list"),
        ("text", "str"),
        (3.5, "float"),
        (memoryview(bytearray(16))[::2], "strides"),
    ]


def bad_arrays(comm: Comm) -> int:
    """Every method refuses every unusable array, as input and as output."""
    size, tried = comm.size, 0
    good, large = np.zeros(4, np.float32), np.zeros(4 * size, np.float32)
    other = (comm.rank + 1) % size
    calls: list[Callable[[Any], Any]] = [
        lambda x: comm.all_reduce(x),
        lambda x: comm.all_reduce(x, good),
        lambda x: comm.all_reduce(good, x),
        lambda x: comm.reduce(x, root=comm.rank),
        lambda x: comm.reduce(x, root=other),
        lambda x: comm.broadcast(x, root=0),
        lambda x: comm.broadcast(good, x, root=other),
        lambda x: comm.all_gather(x, large),
        lambda x: comm.all_gather(good, x),
        lambda x: comm.reduce_scatter(x, good),
        lambda x: comm.reduce_scatter(large, x),
        lambda x: comm.all_to_all(x, large),
        lambda x: comm.all_to_all(large, x),
        lambda x: comm.gather(x, large, root=comm.rank),
        lambda x: comm.gather(x, root=other),
        lambda x: comm.gather(good, x, root=comm.rank),
        lambda x: comm.scatter(x, good, root=comm.rank),
        lambda x: comm.scatter(None, x, root=other),
        lambda x: comm.all_gather_v(x, large, [4] * size),
        lambda x: comm.all_gather_v(good, x, [4] * size),
        lambda x: comm.reduce_scatter_v(x, good, [4] * size),
        lambda x: comm.all_to_all_v(x, [4] * size, large, [4] * size),
        lambda x: comm.all_to_all_v(large, [4] * size, x, [4] * size),
        lambda x: comm.send(x, other),
        lambda x: comm.recv(x, other),
    ]
    for value, words in unusable():
        for number, call in enumerate(calls):
            try:
                refuses(lambda: call(value), words)  # noqa: B023
            except BaseException as error:
                raise AssertionError(f"call {number} with {value!r}") from error
            tried += 1
    usable_still(comm)
    return tried


def usable_still(comm: Comm) -> None:
    """Nothing was sent before, and the next call is as good as the first."""
    comm.check()
    x = np.full(3, comm.rank, np.int64)
    comm.all_reduce(x)
    assert_equal(x, np.full(3, sum(range(comm.size))), "after refusals")


def refuses(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(r2ccl.InvalidArgument, match=words):
        call()


def read_only_outputs(comm: Comm) -> None:
    good, large = np.zeros(4, np.float32), np.zeros(4 * comm.size, np.float32)
    other = (comm.rank + 1) % comm.size
    for value in (frozen(np.zeros(4, np.float32)), bytes(16), ReadOnlyDlpack(np.zeros(4, np.float32))):
        refuses(lambda: comm.all_reduce(value), "read-only")  # noqa: B023
        refuses(lambda: comm.recv(value, other), "read-only")  # noqa: B023
        refuses(lambda: comm.broadcast(value), "read-only")  # noqa: B023
    locked, locked_large = frozen(np.zeros(4, np.float32)), frozen(large.copy())
    refuses(lambda: comm.all_reduce(good, locked), "recv is read-only")
    refuses(lambda: comm.reduce_scatter(large, locked), "recv is read-only")
    refuses(lambda: comm.all_gather(good, locked_large), "recv is read-only")
    refuses(lambda: comm.all_to_all(large, locked_large), "recv is read-only")
    refuses(lambda: comm.all_gather_v(good, locked_large, [4] * comm.size), "recv is read-only")
    usable_still(comm)


def sizes_and_types(comm: Comm) -> None:
    size = comm.size
    f4, f4x5, large = np.zeros(4, np.float32), np.zeros(5, np.float32), np.zeros(4 * size, np.float32)
    refuses(lambda: comm.all_reduce(f4, f4x5), "4 elements.*5")
    refuses(lambda: comm.all_reduce(f4, np.zeros(4, np.int32)), "float32.*int32")
    refuses(lambda: comm.all_gather(f4, f4x5), f"5 elements.*{size} ranks x 4")
    refuses(lambda: comm.all_gather(f4, np.zeros(4 * size)), "float32.*float64")
    refuses(lambda: comm.reduce_scatter(f4x5, f4), f"5 elements.*{size} ranks x 4")
    refuses(lambda: comm.all_to_all(large, f4), f"{4 * size} and recv 4")
    refuses(lambda: comm.all_to_all(np.zeros(size + 1), np.zeros(size + 1)), f"{size + 1}.*multiple of {size}")
    refuses(lambda: comm.gather(f4, f4x5, root=comm.rank), "5 elements")
    refuses(lambda: comm.gather(f4, None, root=comm.rank), "None at the root")
    refuses(lambda: comm.scatter(f4x5, f4, root=comm.rank), "5 elements")
    refuses(lambda: comm.scatter(None, f4, root=comm.rank), "scatter needs")
    refuses(lambda: comm.all_gather_v(f4, large, [4] * (size + 1)), r"counts = \[4, ")
    refuses(lambda: comm.all_gather_v(f4, large, [4] * (size - 1) + [-1]), "-1")
    refuses(lambda: comm.all_gather_v(f4, large, [5] * size), "send has 4 elements; the counts ask for 5")
    refuses(lambda: comm.all_gather_v(f4, f4x5, [4] * size), f"recv has 5 elements.*{4 * size}")
    refuses(lambda: comm.reduce_scatter_v(f4x5, f4, [4] * size), "send has 5")
    refuses(lambda: comm.reduce_scatter_v(large, np.zeros(4), [4] * size), "float32.*float64")
    refuses(lambda: comm.all_to_all_v(large, [4] * size, f4, [4] * size), "recv has 4")
    odd = [4] * size
    odd[comm.rank] = 3
    refuses(lambda: comm.all_to_all_v(large, [4] * size, np.zeros(sum(odd), np.float32), odd), "to itself")
    refuses(lambda: comm.all_reduce(f4, stream=1), "stream = 1")
    refuses(lambda: comm.send(f4, (comm.rank + 1) % size, stream="s"), "stream = 's'")
    usable_still(comm)


def ranks_and_groups(comm: Comm) -> None:
    x, size = np.zeros(4), comm.size
    for root in (-1, size, 99):
        refuses(lambda: comm.broadcast(x, root=root), f"root = {root}.*0 to {size - 1}")  # noqa: B023
        refuses(lambda: comm.reduce(x, root=root), f"root = {root}")  # noqa: B023
        refuses(lambda: comm.gather(x, np.zeros(4 * size), root=root), f"root = {root}")  # noqa: B023
        refuses(lambda: comm.scatter(np.zeros(4 * size), x, root=root), f"root = {root}")  # noqa: B023
    for peer in (-1, size, comm.rank):
        refuses(lambda: comm.send(x, peer), f"peer = {peer}.*this is rank {comm.rank}")  # noqa: B023
        refuses(lambda: comm.recv(x, peer), f"peer = {peer}")  # noqa: B023
    with comm.group():
        refuses(lambda: comm.group().__enter__(), "group")
        comm.all_reduce(x)
    with pytest.raises(r2ccl.InvalidArgument, match="root = 7"), comm.group():
        comm.broadcast(x, root=7)
    refuses(lambda: r2ccl.init(device="tpu"), "'tpu'")
    usable_still(comm)


def overlaps(comm: Comm) -> None:
    """case_29: output and input share memory otherwise than the in-place rule says."""
    size, rank = comm.size, comm.rank
    m = np.zeros(64 * size, np.float32)
    n = 8
    whole = m[: n * size]
    own = m[rank * n : (rank + 1) * n]
    words = "overlap"
    refuses(lambda: comm.all_reduce(m[:n], m[1 : n + 1]), words)
    refuses(lambda: comm.all_reduce(m[1 : n + 1], m[:n]), words)
    refuses(lambda: comm.reduce(m[:n], m[1 : n + 1], root=rank), words)
    refuses(lambda: comm.all_gather(m[rank * n + 1 : rank * n + 1 + n], whole), words)
    refuses(lambda: comm.all_gather(m[(size - 1 - rank) * n + 1 :][:n], whole), words)
    refuses(lambda: comm.gather(m[rank * n + 1 :][:n], whole, root=rank), words)
    refuses(lambda: comm.reduce_scatter(whole, m[rank * n + 1 :][:n]), words)
    refuses(lambda: comm.scatter(whole, m[rank * n + 1 :][:n], root=rank), words)
    refuses(lambda: comm.all_to_all(whole, m[n // 2 :][: n * size]), words)
    refuses(lambda: comm.all_gather_v(m[rank * n + 1 :][:n], whole, [n] * size), words)
    refuses(lambda: comm.reduce_scatter_v(whole, m[rank * n + 1 :][:n], [n] * size), words)
    refuses(lambda: comm.all_to_all_v(whole, [n] * size, whole, [n] * size), words)
    # Neighbours that touch do not overlap, nor do empty arrays.
    whole[:] = rank
    comm.all_reduce(m[:n], m[n : 2 * n])
    assert_equal(m[n : 2 * n], np.full(n, sum(range(size)), np.float32), "touching")
    comm.all_reduce(m[:0], m[:0])
    own[:] = rank
    comm.all_gather(own, whole)
    assert_equal(whole, np.repeat(np.arange(size, dtype=np.float32), n), "in place")
    usable_still(comm)


def accepted(comm: Comm) -> None:
    """Whatever exposes contiguous host memory will do, and is written in place."""
    size = comm.size
    total = sum(range(1, size + 1))
    ours = comm.rank + 1
    buffers: list[tuple[Any, Any]] = [
        (np.full((2, 3), ours, np.int16), np.dtype(np.int16)),
        (np.full(6, ours, np.int16).reshape(2, 3).T, None),  # Fortran order is not contiguous for us
        (bytearray([ours] * 6), np.dtype(np.uint8)),
        (memoryview(bytearray([ours] * 6)), np.dtype(np.uint8)),
        (memoryview(np.full(6, ours, np.float64)), np.dtype(np.float64)),
        (array.array("d", [ours] * 6), np.dtype(np.float64)),
        (array.array("l", [ours] * 6), np.dtype(np.int64)),
        (array.array("B", [ours] * 6), np.dtype(np.uint8)),
        (Interface(np.full(6, ours, np.float32)), np.dtype(np.float32)),
        (np.matrix([[ours] * 6], dtype=np.int32), np.dtype(np.int32)),
        (np.ma.array([ours] * 6, dtype=np.int32), np.dtype(np.int32)),
        (np.full((), ours, np.int32), np.dtype(np.int32)),
    ]
    for buffer, dtype in buffers:
        if dtype is None:
            refuses(lambda: comm.all_reduce(buffer), "ascontiguousarray")  # noqa: B023
            continue
        comm.all_reduce(buffer)
        seen = getattr(buffer, "values", buffer)
        seen = np.asarray(seen)
        assert seen.dtype == dtype
        assert (seen == total).all(), f"{type(buffer).__name__}: {seen}"
    out = np.zeros(6, np.float32)
    for source in (
        Dlpack(np.full(6, ours, np.float32)),
        ReadOnlyDlpack(np.full(6, ours, np.float32)),
        frozen(np.full(6, ours, np.float32)),
        Interface(frozen(np.full(6, ours, np.float32))),
    ):
        comm.all_reduce(source, out)
        assert_equal(out, np.full(6, total, np.float32), type(source).__name__)
    raw = np.zeros(6, np.uint8)
    comm.all_reduce(bytes([ours] * 6), raw)
    assert_equal(raw, np.full(6, total, np.uint8), "bytes")
    usable_still(comm)


def test_unusable_arrays() -> None:
    tried = run_ranks(bad_arrays, 3, timeout_s=30)
    assert min(tried) == 25 * len(unusable())


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    "body", [read_only_outputs, sizes_and_types, ranks_and_groups, accepted], ids=lambda b: b.__name__
)
def test_arguments(body: Callable[[Comm], None], n: int) -> None:
    run_ranks(body, n, timeout_s=30)


@pytest.mark.parametrize("n", [2, 3])
def test_case_29_arrays_that_overlap_are_refused(n: int) -> None:
    run_ranks(overlaps, n, timeout_s=30)


def test_a_world_of_one_checks_as_well() -> None:
    run_ranks(overlaps, 1, timeout_s=20)
    run_ranks(accepted, 1, timeout_s=20)
