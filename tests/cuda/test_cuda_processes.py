"""Memory of the GPU between processes, what is left when one dies, and the books of the tests' driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from fake_driver import FakeDriver

from r2ccl import InvalidArgument
from r2ccl._native import core
from r2ccl.types import DType

pytestmark = pytest.mark.timeout(60)
LEAK = 97  # status of a process that leaves something in the driver


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, env={**os.environ, **environment}
    )


def filled(device: core.CudaDevice, driver: FakeDriver, values: np.ndarray) -> int:
    """Memory of the GPU that holds the values."""
    address = device.allocate(values.nbytes)
    driver.bytes_at(address, values.nbytes)[:] = values.view(np.uint8)
    return address


ADD_ONE = """
    import sys, ctypes, numpy as np
    from r2ccl._native import core
    library, exported, count = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
    device = core.CudaDevice(0, library)
    theirs = device.import_memory(exported)
    assert theirs is not None, "refused"
    ones = device.allocate(4 * count, staging=True)
    np.ctypeslib.as_array(ctypes.cast(ones, ctypes.POINTER(ctypes.c_int32)), (count,))[:] = 1
    device.reduce(theirs, [theirs, ones], count, 5, 0)
    mark = device.mark()
    while device.passed() < mark: assert device.failure() is None, device.failure()
    if "hang" in sys.argv:
        print("done", flush=True)
        import time; time.sleep(60)
    device.close_imported(theirs)
    device.release(ones, staging=True)
    device.close()
"""


def test_another_process_works_on_this_ones_memory(cuda_library: str, driver: FakeDriver) -> None:
    device = core.CudaDevice(0, cuda_library)
    values = np.arange(5000, dtype=np.int32)
    address = filled(device, driver, values)
    part, count = address + 4 * 1000, 3000
    exported = device.export(part, 4 * count)
    assert exported is not None
    ended = python(ADD_ONE, cuda_library, exported.hex(), str(count))
    assert ended.returncode == 0, ended.stderr
    values[1000:4000] += 1
    assert np.array_equal(driver.bytes_at(address, values.nbytes).view(np.int32), values)
    device.release(address)
    device.close()


def test_sharing_is_refused_where_the_driver_refuses(cuda_library: str, driver: FakeDriver) -> None:
    device = core.CudaDevice(0, cuda_library)
    address = device.allocate(4096)
    exported = device.export(address, 4096)
    assert exported is not None and len(exported) == 80
    ended = python(ADD_ONE, cuda_library, exported.hex(), "1024", FAKE_CUDA_IPC="0")
    assert "refused" in ended.stderr
    driver.set("IPC", 0)
    assert device.export(address, 4096) is None
    with pytest.raises(InvalidArgument, match="80 bytes, not 3"):
        device.import_memory(b"abc")
    device.release(address)
    device.close()


def test_memory_outlives_neither_its_owner_nor_a_killed_guest(cuda_library: str, driver: FakeDriver) -> None:
    device = core.CudaDevice(0, cuda_library)
    address = filled(device, driver, np.zeros(1000, np.int32))
    exported = device.export(address, 4000)
    assert exported is not None
    command = [sys.executable, "-c", textwrap.dedent(ADD_ONE), cuda_library, exported.hex(), "1000", "hang"]
    guest = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert guest.stdout is not None and guest.stdout.readline() == b"done\n"
    guest.send_signal(signal.SIGKILL)
    assert guest.wait(10) == -signal.SIGKILL
    guest.stdout.close()
    assert (driver.bytes_at(address, 4000).view(np.int32) == 1).all()
    device.copy(address + 2000, address, 2000, int(DType.UINT8))  # the owner goes on
    mark = device.mark()
    while device.passed() < mark:
        assert device.failure() is None
    device.release(address)
    device.close()

    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom r2ccl._native import core\nd = core.CudaDevice(0, sys.argv[1])\n"
            "p = d.allocate(4096)\nprint(d.export(p, 4096).hex(), flush=True)\ntime.sleep(60)",
            cuda_library,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    exported = bytes.fromhex(owner.stdout.readline())
    owner.kill()
    owner.wait(10)
    owner.stdout.close()
    other = core.CudaDevice(0, cuda_library)
    assert other.import_memory(exported) is None
    other.close()


def test_what_is_left_at_exit_ends_the_process_visibly(cuda_library: str) -> None:
    program = """
        import ctypes, sys
        from r2ccl._native import core
        sys.path.insert(0, sys.argv[2])
        from fake_driver import FakeDriver
        driver = FakeDriver(sys.argv[1])
        if sys.argv[3] == "leak": driver.allocate(100)
        if sys.argv[3] == "twice":
            address = driver.allocate(100)
            driver.release(address); driver.release(address)
        device = core.CudaDevice(0, sys.argv[1])
        if sys.argv[3] == "open":
            import gc; gc.disable(); keep = ctypes.pythonapi.Py_IncRef(ctypes.py_object(device))
        else: device.close()
    """
    here = str(Path(__file__).parent)
    clean = python(program, cuda_library, here, "clean")
    assert clean.returncode == 0, clean.stderr
    leak = python(program, cuda_library, here, "leak")
    assert leak.returncode == LEAK and "1 device blocks is left" in leak.stderr
    twice = python(program, cuda_library, here, "twice")
    assert twice.returncode == -signal.SIGABRT and "cuMemFree of what is no block" in twice.stderr
    still_open = python(program, cuda_library, here, "open")
    assert still_open.returncode == LEAK and "contexts" in still_open.stderr and "streams" in still_open.stderr
    assert python(program, cuda_library, here, "leak", FAKE_CUDA_CHECK="0").returncode == 0


def test_the_host_cannot_touch_the_gpus_memory(cuda_library: str) -> None:
    ended = python(
        """
        import ctypes, sys
        from r2ccl._native import core
        device = core.CudaDevice(0, sys.argv[1])
        ctypes.memset(device.allocate(100), 0, 1)
        """,
        cuda_library,
    )
    assert ended.returncode == -signal.SIGSEGV


def test_knobs_come_from_the_environment(cuda_library: str) -> None:
    program = "import sys\nfrom r2ccl._native import core\nprint(core.cuda_probe(sys.argv[1]))"
    assert python(program, cuda_library, FAKE_CUDA_DEVICES="3").stdout == "(3, '')\n"
    none = python(program, cuda_library, FAKE_CUDA_DEVICES="0").stdout
    assert none.startswith("(0, ") and "CUDA_ERROR_NO_DEVICE" in none


def test_missing_drivers_and_gpus_are_named(cuda_library: str) -> None:
    count, why = core.cuda_probe("/nowhere/libcuda.so.1")
    assert count == 0 and "/nowhere/libcuda.so.1" in why and "R2CCL_CUDA_LIBRARY" in why
    with pytest.raises(InvalidArgument, match="there is no GPU 5: this process sees 2"):
        core.CudaDevice(5, cuda_library)


def test_a_closed_device_says_so(cuda_library: str, driver: FakeDriver) -> None:
    device = core.CudaDevice(1, cuda_library)
    assert device.ordinal == 1 and device.memory_operations and device.blocks == 1
    assert device.pointer(device.allocate(10))[:2] == ("device", 1)
    device.close()
    device.close()
    with pytest.raises(InvalidArgument, match="GPU 1 was closed"):
        device.mark()


def test_cupy_arrays_live_in_the_drivers_memory(cuda_library: str, driver: FakeDriver, gpu_arrays: object) -> None:
    from fake_driver import CupyOnFake

    assert isinstance(gpu_arrays, CupyOnFake)
    device = core.CudaDevice(0, cuda_library)
    x = gpu_arrays.asarray(np.arange(1000, dtype=np.float32))
    y = gpu_arrays.asarray(np.ones((10, 100), np.float32))
    assert type(x).__module__.split(".")[0] == "cupy" and x.size == y.size and x.data.ptr != y.data.ptr
    assert device.pointer(x.data.ptr)[:2] == ("device", 0)
    device.reduce(x.data.ptr, [x.data.ptr, y.data.ptr], x.size, int(DType.FLOAT32), 0)
    mark, deadline = device.mark(), time.monotonic() + 20
    while device.passed() < mark and time.monotonic() < deadline:
        assert device.failure() is None
    assert np.array_equal(gpu_arrays.asnumpy(x), np.arange(1000, dtype=np.float32) + 1)
    assert np.array_equal(gpu_arrays.asnumpy(x[10:20]), np.arange(10, 20, dtype=np.float32) + 1)
    del x, y
    device.close()
