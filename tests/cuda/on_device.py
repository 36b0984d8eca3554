"""Runs on a communicator of a GPU what was written for host arrays: ``OnDevice`` stands in for the communicator.

Every NumPy array that a call is given is mirrored in the GPU's memory, whole, so that parts overlap there as they do
here. The input comes to its place by work on a late stream, just before the call, and the result leaves by work just
after it; the host waits once, at the end.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from fake_driver import THINGS, CupyOnFake, FakeDriver, UserStream

import r2ccl
from r2ccl.testing import run_ranks

CALLS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter",
    "all_gather_v", "reduce_scatter_v", "all_to_all_v", "send", "recv",
)  # fmt: skip


class _Mirror:
    """An array and three copies of it on the GPU: what comes, where the call works, what leaves."""

    def __init__(self, arrays: CupyOnFake, root: np.ndarray[Any, Any], ordinal: int) -> None:
        self.root = root
        self.arrays = arrays
        flat = root.reshape(-1).view(np.uint8)
        self.source = arrays.asarray(flat, ordinal=ordinal)
        self.place = arrays.empty(flat.shape, np.uint8, ordinal)
        self.result = arrays.empty(flat.shape, np.uint8, ordinal)

    def arrive(self, stream: UserStream) -> None:
        if self.root.nbytes:
            stream.copy(self.place.data.ptr, self.source.data.ptr, self.root.nbytes)

    def leave(self, stream: UserStream) -> None:
        if self.root.nbytes:
            stream.copy(self.result.data.ptr, self.place.data.ptr, self.root.nbytes)

    def take(self) -> None:
        self.root.reshape(-1).view(np.uint8)[:] = self.arrays.view(self.result)

    def part(self, array: np.ndarray[Any, Any]) -> Any:
        import cupy

        offset = array.ctypes.data - self.root.ctypes.data if array.nbytes else 0
        return cupy.ndarray(array.shape, dtype=array.dtype, memptr=self.place.data + offset)


def _root(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class OnDevice:
    """A communicator that takes host arrays, and works on the GPU's copies of them."""

    def __init__(self, comm: r2ccl.Communicator, arrays: CupyOnFake, delay_s: float = 0.0) -> None:
        self.comm, self.arrays, self.delay_s = comm, arrays, delay_s
        self.ordinal = int(comm.device.partition(":")[2])
        self.stream = UserStream(arrays.driver, self.ordinal)
        self._grouped: list[_Mirror] | None = None

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            return getattr(self.comm, name)
        method: Callable[..., Any] = getattr(self.comm, name)
        return lambda *args, **options: self._call(method, args, options)

    @contextmanager
    def group(self) -> Iterator[None]:
        self._grouped = []
        with self.comm.group():
            yield
        mirrors, self._grouped = self._grouped, None
        self._collect(mirrors)

    def _call(self, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        mirrors: dict[int, _Mirror] = {}
        seen: dict[int, Any] = {}

        def mirrored(value: Any) -> Any:
            if not isinstance(value, np.ndarray):
                return value
            if id(value) not in seen:
                root = _root(value)
                if id(root) not in mirrors:
                    mirrors[id(root)] = _Mirror(self.arrays, root, self.ordinal)
                seen[id(value)] = mirrors[id(root)].part(value)
            return seen[id(value)]

        given = [mirrored(value) for value in args]
        named = {key: mirrored(value) for key, value in options.items()}
        if self.delay_s:
            self.stream.delay(self.delay_s)
        for mirror in mirrors.values():
            mirror.arrive(self.stream)
        work = method(*given, **named, stream=self.stream.ptr)
        if self._grouped is not None:
            self._grouped.extend(mirrors.values())
        else:
            self._collect(list(mirrors.values()))
        return work

    def _collect(self, mirrors: list[_Mirror]) -> None:
        for mirror in mirrors:
            mirror.leave(self.stream)
        self.stream.synchronize()
        self.comm.check()
        for mirror in mirrors:
            mirror.take()


def _broken(driver: FakeDriver) -> bool:
    try:
        with driver.context(0):
            return False
    except AssertionError:
        return True


def _rank(comm: r2ccl.Communicator, fn: Callable[..., Any], knobs: dict[str, int], args: tuple[Any, ...]) -> Any:
    driver = FakeDriver(comm.config.cuda_library)
    for knob, value in knobs.items():
        driver.set(knob, value)
    value = fn(comm, CupyOnFake(driver), *args)
    comm.close()
    from r2ccl import devices

    devices._close()
    gc.collect()  # classes and exceptions refer to themselves, and so to arrays
    if _broken(driver):
        return value  # such a GPU takes nothing back
    left = {thing: driver.count(thing) for thing in THINGS if driver.count(thing)}
    assert not left, f"left in the driver: {left}"
    return value


def on_gpus(
    fn: Callable[..., Any],
    n: int,
    library: str,
    *args: Any,
    knobs: dict[str, int] | None = None,
    config: Callable[[int], r2ccl.Config] | r2ccl.Config | None = None,
    device: Any = "cuda:0",
    **options: Any,
) -> list[Any]:
    """``fn(comm, arrays, *args)`` on ``n`` ranks of one GPU, whose driver is left with nothing at the end."""

    def settings(rank: int) -> r2ccl.Config:
        own = config(rank) if callable(config) else config
        return (own or r2ccl.Config.from_env()).with_(cuda_library=library)

    return run_ranks(_rank, n, config=settings, device=device, args=(fn, knobs or {}, args), **options)
