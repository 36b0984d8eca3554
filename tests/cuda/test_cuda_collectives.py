"""The checks of tests/mp on GPU arrays: every collective on late streams, over shared memory, TCP and both."""

from __future__ import annotations

import numpy as np
import pytest
from fake_driver import CupyOnFake
from mp_checks import Checks, assert_equal, data, every_collective
from on_device import OnDevice, on_gpus

import r2ccl
from r2ccl import Config, ReduceOp
from r2ccl.types import NUMPY_OF, DType

pytestmark = pytest.mark.timeout(120)


def battery(comm: r2ccl.Communicator, arrays: CupyOnFake, counts: tuple[int, ...]) -> int:
    checks = Checks(OnDevice(comm, arrays))  # type: ignore[arg-type]
    for count in counts:
        every_collective(checks, count, range(comm.size))
        checks.all_reduce(count, ReduceOp.MIN)
        checks.all_reduce(count, ReduceOp.MAX, in_place=True)
        checks.reduce(count, comm.size - 1, ReduceOp.PROD)
    return checks.compared


@pytest.mark.parametrize(
    ("n", "hosts", "rails", "late_us"),
    [(1, 1, 0, 0), (2, 1, 0, 0), (3, 1, 0, 200), (2, 2, 2, 200), (3, 3, 1, 0), (4, 2, 2, 0)],
)
def test_every_collective(cuda_library: str, n: int, hosts: int, rails: int, late_us: int) -> None:
    compared = on_gpus(
        battery, n, cuda_library, (0, 1, 1000, 100_003), knobs={"LATE_US": late_us}, hosts=hosts, rails=rails
    )
    assert min(compared) > 4 * (30 if n > 1 else 10)


def test_without_the_drivers_memory_operations(cuda_library: str) -> None:
    # By the environment: it counts when the GPU is opened.
    on_gpus(battery, 2, cuda_library, (1000, 30_000), env={"FAKE_CUDA_MEMORY_OPS": "0"}, hosts=2, rails=2)


def test_a_gpu_and_a_host_in_one_communicator(cuda_library: str) -> None:
    def ranks(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
        checks = Checks(comm if comm.device == "cpu" else OnDevice(comm, arrays))  # type: ignore[arg-type]
        every_collective(checks, 20_000, (0, 1))

    on_gpus(ranks, 2, cuda_library, device=lambda rank: "cpu" if rank == 0 else "cuda:1")


def one_of_each_type(comm: r2ccl.Communicator, arrays: CupyOnFake) -> int:
    device = OnDevice(comm, arrays)
    compared = 0
    for dtype in DType:
        for op in ReduceOp:
            if dtype is DType.BOOL and op is ReduceOp.AVG:
                continue
            if dtype in (DType.COMPLEX64, DType.COMPLEX128) and op in (ReduceOp.MIN, ReduceOp.MAX):
                continue
            # Ones and zeros: every type holds them, and their sums over three ranks.
            mine = (np.arange(5000) % 3 == comm.rank).astype(NUMPY_OF[dtype])
            every = [(np.arange(5000) % 3 == r).astype(np.float64) for r in range(comm.size)]
            want = {
                ReduceOp.SUM: sum(every), ReduceOp.PROD: every[0] * every[1] * every[2],
                ReduceOp.MIN: np.minimum.reduce(every), ReduceOp.MAX: np.maximum.reduce(every), ReduceOp.AVG: None,
            }[op]  # fmt: skip
            out = np.full(5000, 7).astype(NUMPY_OF[dtype])
            device.all_reduce(mine, out, op)
            if want is None:
                total = sum(every) / comm.size
                kind = NUMPY_OF[dtype]
                want = (
                    np.trunc(total)
                    if kind.kind in "iu"
                    else total.astype(np.float32 if dtype.is_low_precision else kind)
                )
            assert_equal(out, np.asarray(want).astype(NUMPY_OF[dtype]), f"{dtype.name} {op.name}")
            compared += 1
    return compared


def test_every_type_and_operator(cuda_library: str) -> None:
    assert on_gpus(one_of_each_type, 3, cuda_library) == [17 * 5 - 5] * 3


def several_streams(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    """Calls on four streams, each later than the one after it: their order is that of the calls."""
    from fake_driver import UserStream

    streams = [UserStream(arrays.driver) for _ in range(4)]
    buffers = []
    for i in range(20):
        stream = streams[i % 4]
        stream.delay(0.004 * (3 - i % 4))
        source, place = arrays.asarray(data(comm.rank, 3000, i)), arrays.empty(3000, np.int32)
        stream.copy(place.data.ptr, source.data.ptr, place.nbytes)
        comm.all_reduce(place, stream=stream)
        result = arrays.empty(3000, np.int32)
        stream.copy(result.data.ptr, place.data.ptr, place.nbytes)
        buffers.append((source, place, result))
    for stream in streams:
        stream.synchronize()
    for i, (_, _, result) in enumerate(buffers):
        want = sum(data(r, 3000, i) for r in range(comm.size))
        assert_equal(arrays.asnumpy(result), np.asarray(want, np.int32), f"call {i}")


@pytest.mark.parametrize("hosts", [1, 2])
def test_calls_on_several_streams(cuda_library: str, hosts: int) -> None:
    on_gpus(several_streams, 2, cuda_library, hosts=hosts, rails=hosts, knobs={"LATE_US": 300})


def split_and_shrink(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
    half = comm.split(comm.rank % 2)
    assert half is not None and half.device == "cuda:0"
    every_collective(Checks(OnDevice(half, arrays)), 3000, (0,))  # type: ignore[arg-type]
    half.close()
    small = comm.shrink(exclude=[2]) if comm.rank != 2 else None
    if small is not None:
        assert small.device == "cuda:0" and small.size == 2
        every_collective(Checks(OnDevice(small, arrays)), 3000, (0,))  # type: ignore[arg-type]
        small.close()


def test_split_and_shrink_stay_on_the_gpu(cuda_library: str) -> None:
    on_gpus(split_and_shrink, 3, cuda_library)


def through_windows(comm: r2ccl.Communicator, arrays: CupyOnFake, late_s: float) -> tuple[int, int]:
    checks = Checks(OnDevice(comm, arrays, late_s))  # type: ignore[arg-type]
    for count in (3, 20_000, 300_007):
        every_collective(checks, count, (0,))
    other = comm.split(0)
    assert other is not None
    every_collective(Checks(OnDevice(other, arrays)), 50_000, (0,))  # type: ignore[arg-type]
    other.close()
    stats = comm.stats()
    return int(stats["window_chunks"]), int(stats["chunks_sent"])


@pytest.mark.parametrize("devices", ["one GPU", "a GPU each"])
def test_gpus_of_one_host_write_to_each_other(cuda_library: str, devices: str) -> None:
    def device(rank: int) -> str:
        return "cuda:0" if devices == "one GPU" else f"cuda:{rank}"

    for through, sent in on_gpus(through_windows, 2, cuda_library, 0.0, device=device, knobs={"LATE_US": 100}):
        assert through > 0.8 * sent > 0


def test_where_memory_cannot_be_shared_chunks_go_through_the_host(cuda_library: str) -> None:
    for through, sent in on_gpus(through_windows, 2, cuda_library, 0.0, env={"FAKE_CUDA_IPC": "0"}):
        assert through == 0 and sent > 0


def losing_a_rail(comm: r2ccl.Communicator, arrays: CupyOnFake) -> tuple[int, bytes]:
    device = OnDevice(comm, arrays)
    total = b""
    for i in range(12):
        mine = np.random.default_rng(comm.rank * 100 + i).random(200_000).astype(np.float32)
        device.all_reduce(mine)
        total += mine.tobytes()[:4000]
    return int(comm.stats()["replayed_chunks"]), total


def test_a_lost_rail_costs_no_bit(cuda_library: str) -> None:
    calm = Config(deterministic=True)
    # Two, one after the other: of one, the few chunks under way may all have been hedged before it counts as lost.
    script = "rail=1 kind=blackhole after_bytes=700000\nrail=2 kind=blackhole after_bytes=3000000"
    faulty = calm.with_(fault_script=script, stall_floor_ms=150.0)
    undisturbed = on_gpus(losing_a_rail, 2, cuda_library, config=calm, hosts=2, rails=3)
    disturbed = on_gpus(losing_a_rail, 2, cuda_library, config=lambda r: faulty if r == 0 else calm, hosts=2, rails=3)
    assert sum(replayed for replayed, _ in disturbed) > 0
    assert [bits for _, bits in disturbed] == [bits for _, bits in undisturbed]
