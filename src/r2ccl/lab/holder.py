"""First process (PID 1) of an emulated host: a script run inside fresh namespaces, which imports nothing of r2ccl.

It gives the host its name, /etc/hosts, /dev/shm, /proc and /sys, says ``ready`` and then waits. When it ends, the
kernel ends every process of the host; and it ends with the lab, however the lab ends: its parent's death kills it, and
so does the end of its standard input.

Arguments: host name, text of /etc/hosts, boot id. Output: ``note: ...`` lines, then ``ready``; or ``error: ...``.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
MS_BIND, MS_MOVE, MS_REC, MS_SLAVE = 0x1000, 0x2000, 0x4000, 0x80000

libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); raises ``OSError``."""
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind or source} on {target}: {os.strerror(number)}")


def replace_file(target: str, text: str) -> None:
    """Lets this host see another content of one file. The content lives in this host's memory only."""
    source = "/dev/shm/.lab-file"
    with open(source, "w") as file:
        file.write(text)
    try:
        mount(source, target, flags=MS_BIND)
    finally:
        os.unlink(source)


def replace_sysfs() -> None:
    """/sys with this host's interfaces; the control groups stay visible, for programs that read their limits."""
    stash = "/dev/shm/.lab-cgroup"
    os.mkdir(stash)
    stashed = False
    try:
        with contextlib.suppress(OSError):
            mount("/sys/fs/cgroup", stash, flags=MS_BIND | MS_REC)
            stashed = True
        mount("sysfs", "/sys", "sysfs")
        if stashed:
            mount(stash, "/sys/fs/cgroup", flags=MS_MOVE)
            stashed = False
    finally:
        if not stashed:
            os.rmdir(stash)


def set_up(hostname: str, hosts: str, boot_id: str) -> None:
    """Everything that makes this a host of its own; what may fail without harm is reported as a note."""
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    name = hostname.encode()
    if libc.sethostname(name, len(name)) != 0:
        raise OSError(ctypes.get_errno(), "sethostname")
    mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    replace_file("/etc/hosts", hosts)
    try_to_replace("/proc", lambda: mount("proc", "/proc", "proc"))
    try_to_replace("/sys", replace_sysfs)
    try_to_replace("boot id", lambda: replace_file("/proc/sys/kernel/random/boot_id", boot_id + "\n"))


def try_to_replace(what: str, action: Callable[[], None]) -> None:
    """Does without, with a note, if need be: where a container hides parts of /proc, the kernel refuses a fresh one."""
    try:
        action()
    except OSError as error:
        print(f"note: the host shares {what} with this machine: {error}")


def main() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the orphans that end up here
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        set_up(*sys.argv[1:4])
    except OSError as error:
        print(f"error: {error}", flush=True)
        return
    print("ready", flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
