"""Runs one command in a guest: qemu, with this machine's files read-only under an overlay that is thrown away."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .kernel import HERE, GuestError, Kernel

TIMED_OUT, DIED = 124, 125
# Plain emulation copies `rep movs` byte by byte and PCLMULQDQ in a loop: without both soft RDMA is twice as fast.
# No AVX-512: what was compiled for the machine at hand would not run in an emulator that lacks it.
_EMULATED_CPU = "Haswell-noTSX,x2apic=off,pcid=off,invpcid=off,tsc-deadline=off,erms=off,pclmulqdq=off"
_KERNEL_LINE = "console=ttyS0 panic=-1 mitigations=off nokaslr tsc=reliable apparmor=0 audit=0"
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Size:
    """Of the guest: memory as qemu writes it, and processors."""

    memory: str = "4G"
    cpus: int = 2


def run_in_guest(
    kernel: Kernel,
    command: Sequence[str],
    *,
    timeout_s: float,
    size: Size | None = None,
    environment: Mapping[str, str] | None = None,
    console: Path | None = None,
) -> int:
    """The command's exit status; 124 when it had not ended in time, 125 when the guest died.

    Its output comes out of this process's streams as it is written. ``console``: keep the guest kernel's log there.
    """
    with tempfile.TemporaryDirectory(prefix="rdma-guest-") as folder:
        job = Path(folder)
        log = console or job / "console"
        _write_job(job, kernel, command, environment or {})
        outputs = [_Output(name, stream) for name, stream in (("out", sys.stdout.buffer), ("err", sys.stderr.buffer))]
        arguments = _qemu(kernel, job, log, size or Size(), outputs)
        try:
            ended = _run_qemu(arguments, outputs, timeout_s)
        except FileNotFoundError:
            raise GuestError(f"{arguments[0]} is missing; tools/rdma_guest/packages.sh installs it") from None
        if not ended:
            print(f"rdma_guest: no end after {timeout_s:g} s", file=sys.stderr)
            return TIMED_OUT
        try:
            return int((job / "status").read_text())
        except (OSError, ValueError):
            last = log.read_text(errors="replace").splitlines()[-40:] if log.exists() else []
            print("rdma_guest: the guest died; its last words:", *last, sep="\n", file=sys.stderr)
            return DIED


class _Output:
    """A stream of the guest's, copied to one of ours."""

    def __init__(self, name: str, to: BinaryIO) -> None:
        self.name = name
        self._reader, self.writer = os.pipe()
        self._thread = threading.Thread(target=self._copy, args=(to,), daemon=True)

    def start(self) -> None:
        os.close(self.writer)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(5.0)

    def _copy(self, to: BinaryIO) -> None:
        with open(self._reader, "rb", buffering=0) as source:
            while data := source.read(1 << 16):
                to.write(data)
                to.flush()


def _run_qemu(arguments: Sequence[str], outputs: Sequence[_Output], timeout_s: float) -> bool:
    """Whether it ended by itself. However this ends, no qemu is left behind."""
    fds = [output.writer for output in outputs]
    qemu = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, pass_fds=fds, preexec_fn=_die_with_parent)
    try:
        for output in outputs:
            output.start()
        qemu.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    finally:
        qemu.kill()
        qemu.wait()
        for output in outputs:
            output.join()
    return True


def _die_with_parent() -> None:
    """In the child: the kernel ends it when we end, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _qemu(kernel: Kernel, job: Path, log: Path, size: Size, outputs: Sequence[_Output]) -> list[str]:
    arguments = ["qemu-system-x86_64", "-M", "q35", "-smp", str(size.cpus), "-m", size.memory]
    arguments += ["-accel", "kvm", "-cpu", "host"] if _has_kvm() else _emulation()
    arguments += ["-nodefaults", "-no-user-config", "-nic", "none", "-display", "none", "-no-reboot"]
    arguments += ["-kernel", str(kernel.folder / "vmlinux"), "-initrd", str(kernel.folder / "initrd")]
    arguments += ["-append", _KERNEL_LINE]
    arguments += [
        "-chardev",
        f"file,id=console,path={log}",
        "-serial",
        "chardev:console",
        "-device",
        "virtio-serial-pci",
    ]
    for output in outputs:
        fd, name = output.writer, output.name
        arguments += ["-add-fd", f"set={fd},fd={fd}"]
        arguments += ["-chardev", f"file,id={name},path=/dev/fdset/{fd},append=on"]
        arguments += ["-device", f"virtserialport,chardev={name},name={name}"]
    for tag, path, option in (("root", "/", ",readonly=on"), ("job", str(job), "")):
        arguments += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{option}"]
        arguments += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return arguments


def _emulation() -> list[str]:
    return ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", _EMULATED_CPU]


def _has_kvm() -> bool:
    """/dev/kvm alone says little: without the processor's extensions it may only take kernels built for it."""
    flags = re.search(r"\b(vmx|svm)\b", Path("/proc/cpuinfo").read_text())
    return flags is not None and os.access("/dev/kvm", os.W_OK)


def _write_job(job: Path, kernel: Kernel, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """start.sh for process 1, command.sh for the command with its environment and folder."""
    start = (HERE / "start.sh").read_text()
    (job / "start.sh").write_text(start.replace("@MODULES@", shlex.quote(str(kernel.modules))))
    variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    variables |= {"RDMA_GUEST": kernel.version, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines += ["ulimit -l unlimited", f"cd {shlex.quote(os.getcwd())}", f"exec {shlex.join(command)}"]
    (job / "command.sh").write_text("\n".join(lines) + "\n")
