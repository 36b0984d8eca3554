"""What the lab needs of the machine: tools, rights, kernel features; and what to do when they are missing."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from typing import NoReturn

from ..errors import R2cclError

_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "unshare": "util-linux"}
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_REEXEC_MARK = "_LAB_IN_USER_NAMESPACE"  # not R2CCL_*: it reaches the ranks, whose Config refuses unknown names


class LabError(R2cclError):
    """The emulated cluster cannot be built or changed here. The message says what is missing and the remedy."""


def tool(name: str) -> str:
    """Path of a system tool, also when ``/usr/sbin`` is not on PATH. Raises ``LabError`` naming its package."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        package = _PACKAGES[name]
        raise LabError(f"the tool {name!r} is missing: install the package {package} (Debian: apt install {package})")
    return path


def has_capabilities() -> bool:
    """True when this process may create and configure namespaces."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("CapEff:"):
                held = int(line.split()[1], 16)
                return bool(held >> _CAP_NET_ADMIN & 1 and held >> _CAP_SYS_ADMIN & 1)
    return False


def require_capabilities() -> None:
    """Raises ``LabError`` with the remedy when this process may not create namespaces."""
    if not has_capabilities():
        raise LabError(
            "creating network namespaces needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) or a user namespace: run this as "
            f"root, or start it with: unshare --user --map-root-user {os.path.basename(sys.executable)} ..."
        )


def reexec_in_user_namespace(module: str, argv: list[str]) -> NoReturn:
    """Replaces this process by ``python -m module argv`` as the root of a new user namespace.

    A program, not a call: a process with several threads cannot enter a user namespace. Raises ``LabError`` when that
    has been tried already and gave no rights.
    """
    if os.environ.get(_REEXEC_MARK):
        raise LabError("a user namespace was entered but gives no rights over the network: run this as root")
    prefix = [tool("unshare"), "--user", "--map-root-user", "--"]
    probe = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        raise LabError(
            f"{probe.stderr.strip()}: this kernel does not let this user create user namespaces: run this as root, or "
            "allow it with sysctl user.max_user_namespaces=15000 (Debian: kernel.unprivileged_userns_clone=1; "
            "Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0; in a container: start it with --privileged)"
        )
    os.environ[_REEXEC_MARK] = "1"
    os.execv(prefix[0], [*prefix, sys.executable, "-m", module, *argv])


@functools.cache
def available() -> str | None:
    """Why the lab cannot run in this process, or None when it can: a small fabric is built to find out."""
    from .fabric import Fabric

    try:
        tool("nft")
        with Fabric(hosts=2, rails=1, rate="100mbit") as fabric:
            fabric.fault("blackhole", 0, 0)
    except (R2cclError, OSError) as error:
        return str(error)
    return None
