"""GPU arrays over queue pairs: the tests' CUDA driver and the fake RDMA devices in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import CupyOnFake
from mp_checks import Checks, every_collective
from on_device import OnDevice, on_gpus

import r2ccl
from r2ccl import Config, EventKind

sys.path.append(str(Path(__file__).resolve().parents[1] / "fake_verbs"))
from fake_verbs import borrowed_bytes, build_library, bytes_to_gpus, environment

pytestmark = pytest.mark.timeout(120)
MIB = 1 << 20


@pytest.fixture
def verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Communicators use the fake devices; the file in which these note what they did."""
    log = tmp_path / "fake_verbs.log"
    for name, value in environment(build_library(), log).items():
        monkeypatch.setenv(name, value)
    return log


def battery(comm: r2ccl.Communicator, arrays: CupyOnFake) -> int:
    checks = Checks(OnDevice(comm, arrays))  # type: ignore[arg-type]
    for count in (0, 1, 1000, 100_003):
        every_collective(checks, count, range(comm.size))
    return checks.compared


@pytest.mark.parametrize(("n", "hosts", "rails"), [(2, 2, 2), (3, 3, 1), (4, 2, 2)])
def test_every_collective(cuda_library: str, verbs: Path, n: int, hosts: int, rails: int) -> None:
    compared = on_gpus(battery, n, cuda_library, knobs={"LATE_US": 200}, hosts=hosts, rails=rails)
    assert min(compared) >= 4 * 30
    assert "connects:" in verbs.read_text()


def sums(comm: r2ccl.Communicator, arrays: CupyOnFake) -> tuple[int, int]:
    """(chunks replayed, repairs) of all-reduces whose every element is compared."""
    device = OnDevice(comm, arrays)
    for call in range(12):
        mine = np.arange(MIB, dtype=np.int32) * (comm.rank + 1) + call
        out = np.empty_like(mine)
        device.all_reduce(mine, out)
        assert np.array_equal(out, np.arange(MIB, dtype=np.int32) * 3 + 2 * call), f"call {call}"
    stats = comm.stats()
    comm.barrier()
    return stats["replayed_chunks"], sum(e.kind is EventKind.REPAIRED for e in comm.events())


def test_what_was_lifted_is_read_where_it_lies(cuda_library: str, verbs: Path) -> None:
    """Pinned copies of a GPU's chunks are known to the devices: the processor does not touch them a second time."""
    on_gpus(sums, 2, cuda_library, hosts=2, rails=2)
    # A ring of two sends as much as it reduces; chunks of 4 KiB and less are copied all the same.
    assert borrowed_bytes(verbs) >= 2 * 12 * MIB * 4 * 9 // 10


def test_without_room_for_registrations_they_are_copied(cuda_library: str, verbs: Path) -> None:
    on_gpus(sums, 2, cuda_library, config=Config.from_env(register_bytes=0), hosts=2, rails=2)
    assert "closed: 0 bytes of other memory" in verbs.read_text()
    assert borrowed_bytes(verbs) == 0


def test_a_queue_pair_that_fails(cuda_library: str, verbs: Path) -> None:
    """What it had not delivered goes over the other rail, from the same pinned copies."""
    script = "device=fake1 rank=0 kind=error status=12 min_bytes=10000 after_writes=9"
    seen = on_gpus(sums, 2, cuda_library, hosts=2, rails=2, env={"FAKE_VERBS_SCRIPT": script})
    assert "struck kind=error" in verbs.read_text()
    assert seen[0][0] > 0, "the failed write, at least, was sent again"


# -- NICs that write to the GPU's memory -------------------------------------------------------------------------------

OFFERED = {"FAKE_CUDA_NIC_ACCESS": "1", "FAKE_CUDA_DMA_BUF": "1"}


def directly(fn: Callable[..., Any], n: int, library: str, *, env: dict[str, str] | None = None, **options: Any) -> Any:
    config = options.pop("config", None) or Config.from_env(gpu_direct="on")
    return on_gpus(fn, n, library, config=config, env={**OFFERED, **(env or {})}, **options)


@pytest.mark.parametrize(("n", "hosts", "rails"), [(2, 2, 2), (3, 3, 1), (4, 2, 2)])
def test_every_collective_directly(cuda_library: str, verbs: Path, n: int, hosts: int, rails: int) -> None:
    """The GPU's memory faults when the host touches it: so nothing but NICs and GPUs moved these payloads."""
    compared = directly(battery, n, cuda_library, knobs={"LATE_US": 200}, hosts=hosts, rails=rails)
    assert min(compared) >= 4 * 30
    assert bytes_to_gpus(verbs) > 1_000_000


def direct_sums(comm: r2ccl.Communicator, arrays: CupyOnFake) -> tuple[tuple[int, int], set[bool]]:
    found = sums(comm, arrays)
    return found, {link["gpu_direct"] for link in comm.stats()["links"]}


def test_all_chunks_of_a_call_go_directly(cuda_library: str, verbs: Path) -> None:
    seen = directly(direct_sums, 2, cuda_library, hosts=2, rails=2)
    assert all(direct == {True} for _, direct in seen)
    assert bytes_to_gpus(verbs) >= 2 * 12 * MIB * 4


def test_one_link_with_few_slots(cuda_library: str, verbs: Path) -> None:
    """Chunks that must wait are moved out of the link's slots, of which the peer would find none otherwise."""
    config = Config.from_env(chunk_bytes=16 << 10, staging_bytes=48 << 10, eager_bytes=4096, gpu_direct="on")
    directly(battery, 3, cuda_library, config=config, knobs={"LATE_US": 500}, hosts=3, rails=1)
    assert bytes_to_gpus(verbs) > 1_000_000


@pytest.mark.parametrize("kind", ["error status=12", "late delay_ms=60 error_ms=20", "qp-fatal"])
def test_a_queue_pair_that_fails_directly(cuda_library: str, verbs: Path, kind: str) -> None:
    script = f"device=fake1 rank=0 kind={kind} min_bytes=10000 after_writes=9"
    seen = directly(sums, 2, cuda_library, hosts=2, rails=2, env={"FAKE_VERBS_SCRIPT": script})
    assert f"struck kind={kind.split()[0]}" in verbs.read_text()
    assert max(replayed for replayed, _ in seen) > 0
    assert bytes_to_gpus(verbs) > 0


@pytest.mark.parametrize("without", ["NIC_ACCESS", "NIC", "off"])
def test_through_the_host_where_it_cannot_be(cuda_library: str, verbs: Path, without: str) -> None:
    env: dict[str, str] = {}
    if without == "NIC_ACCESS":
        env["FAKE_CUDA_NIC_ACCESS"] = "3"  # nobody could tell when what a NIC wrote is there
    elif without == "NIC":
        env["FAKE_VERBS_SCRIPT"] = "kind=no-dma-buf"
    config = Config.from_env(gpu_direct="off" if without == "off" else "on")
    seen = directly(direct_sums, 2, cuda_library, hosts=2, rails=2, env=env, config=config)
    assert all(direct == {False} for _, direct in seen)
    assert bytes_to_gpus(verbs) == 0


def test_the_driver_is_asked_to_wait_for_what_nics_write(cuda_library: str, verbs: Path) -> None:
    def ranks(comm: r2ccl.Communicator, arrays: CupyOnFake) -> int:
        sums(comm, arrays)
        return arrays.driver.flushes()

    seen = directly(ranks, 2, cuda_library, hosts=2, rails=2, env={"FAKE_CUDA_NIC_ACCESS": "2"})
    assert min(seen) >= 12


def test_chunks_that_must_wait_block_nobody(cuda_library: str, verbs: Path) -> None:
    """A message that is not yet expected, then more chunks of a call over the same link than it has slots."""

    def ranks(comm: r2ccl.Communicator, arrays: CupyOnFake) -> None:
        device = OnDevice(comm, arrays)
        for _ in range(3):
            message = arrays.asarray(np.arange(50_000, dtype=np.float32) + comm.rank)
            if comm.rank == 0:
                work = comm.send(message, 1, async_op=True)
            total = np.full(MIB, 1.0 + comm.rank, np.float32)
            device.all_reduce(total)
            assert (total == 3).all()
            if comm.rank == 0:
                work.synchronize()
            else:
                comm.recv(message, 0, async_op=True).synchronize()
                assert (arrays.view(message) == np.arange(50_000, dtype=np.float32)).all()

    config = Config.from_env(chunk_bytes=64 << 10, staging_bytes=1 << 20, gpu_direct="on")
    directly(ranks, 2, cuda_library, config=config, hosts=2, rails=1)
    assert bytes_to_gpus(verbs) > 3 * MIB
