"""The guest's kernel: Debian's own package, downloaded and unpacked, never installed; kept for the next run."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
INIT = HERE / "initramfs_init.sh"
META_PACKAGE = "linux-image-amd64"
BOOT_MODULES = ("virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay")
# The rest of the modules is drivers for hardware that the guest does not have: nine tenths of the size.
KEPT_MODULES = (
    "arch",
    "crypto",
    "lib",
    "net",
    "drivers/infiniband",
    "drivers/virtio",
    "drivers/char",
    "drivers/net/veth",
    "fs/9p",
    "fs/overlayfs",
    "fs/netfs",
    "fs/fscache",
)
_XZ, _ZSTD = b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"


class GuestError(Exception):
    """The guest cannot be had; the message says what is missing."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel: ``vmlinux``, ``initrd`` and ``lib/modules/VERSION`` in one folder."""

    folder: Path
    version: str

    @property
    def modules(self) -> Path:
        """What the guest finds in /lib/modules."""
        return self.folder / "lib" / "modules" / self.version


def default_cache() -> Path:
    """Where kernels are kept: ``RDMA_GUEST_CACHE``, or a folder of the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("RDMA_GUEST_CACHE") or Path(base) / "r2ccl" / "rdma-guest")


def get_kernel(cache: Path, suite: str = "") -> Kernel:
    """The newest kernel that apt knows (of another Debian suite, when one is given), from the cache if it is there.

    Raises ``GuestError``. Several callers may come at once.
    """
    with _locked(cache):
        environment = _suite_environment(cache, suite) if suite else dict(os.environ)
        packages = _kernel_packages(environment)
        if not packages:
            _run(["apt-get", "-qq", "update"], environment)
            packages = _kernel_packages(environment)
        if not packages:
            raise GuestError(f"apt knows no {META_PACKAGE}: the guest needs Debian's kernel (apt-get update?)")
        version = packages[0].split("-", 2)[2]
        recipe = hashlib.sha256(INIT.read_bytes() + repr((BOOT_MODULES, KEPT_MODULES)).encode()).hexdigest()[:8]
        kernel = Kernel(cache / f"{version}-{recipe}", version)
        if not kernel.folder.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as folder:
                _unpack(packages, environment, Kernel(Path(folder) / "kernel", version))
                os.rename(Path(folder) / "kernel", kernel.folder)
        return kernel


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, env=environment, cwd=cwd, check=False, capture_output=True, text=True, timeout=300
        )
    except FileNotFoundError:
        raise GuestError(f"{command[0]} is missing; tools/rdma_guest/packages.sh says what to install") from None
    except subprocess.TimeoutExpired:
        raise GuestError(f"{' '.join(command)}: no end after 300 s") from None
    if done.returncode:
        raise GuestError(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _suite_environment(cache: Path, suite: str) -> dict[str, str]:
    """apt with lists of its own, from the mirror that this machine uses."""
    folder = cache / f"apt-{suite}"
    for name in ("lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sites = _run(["apt-get", "indextargets", "--format", "$(SITE)"]).split()
    mirror = next((site for site in sites if not site.endswith("-security")), "http://deb.debian.org/debian")
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "etc" / "sources.list").write_text(f"deb [signed-by={keys}] {mirror} {suite} main\n")
    (folder / "apt.conf").write_text(
        f'Dir::Etc "{folder}/etc"; Dir::State::lists "{folder}/lists"; Dir::Cache "{folder}/cache";\n'
        f'APT::Default-Release "{suite}";\n'
    )
    return {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}


def _kernel_packages(environment: dict[str, str]) -> list[str]:
    """The image and what it consists of; the image first."""
    found: list[str] = []
    todo = [META_PACKAGE]
    while todo:
        try:
            text = _run(["apt-cache", "depends", todo.pop()], environment)
        except GuestError:
            return []
        for name in re.findall(r"Depends: (linux-(?:image|binary|modules|base)-\d\S*)$", text, re.M):
            if name not in found:
                found.append(name)
                todo.append(name)
    return found


def _unpack(packages: list[str], environment: dict[str, str], kernel: Kernel) -> None:
    folder = kernel.folder
    folder.mkdir()
    _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages], environment, folder)
    for package in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(folder)])
        package.unlink()
    if (folder / "usr" / "lib" / "modules").exists():
        (folder / "usr" / "lib").rename(folder / "lib")
    images = [*folder.glob("boot/vmlinuz-*"), *kernel.modules.glob("vmlinuz")]
    if not images:
        raise GuestError(f"no kernel in {', '.join(packages)}")
    (folder / "vmlinux").write_bytes(_decompressed(images[0].read_bytes()))
    _prune(kernel.modules)
    for name in ("boot", "usr"):
        shutil.rmtree(folder / name, ignore_errors=True)
    _run(["depmod", "-b", str(folder), kernel.version])
    _make_initramfs(kernel)


def _decompressed(image: bytes) -> bytes:
    """The kernel inside its own unpacker: unpacking it here is quicker than in the guest."""
    at = image.find(_XZ)
    if at >= 0:
        return lzma.LZMADecompressor().decompress(image[at:])
    at = image.find(_ZSTD)
    if at < 0:
        raise GuestError("the kernel is packed neither by xz nor by zstd")
    try:
        done = subprocess.run(["zstd", "-dcq"], input=image[at:], capture_output=True, check=False, timeout=60)
    except FileNotFoundError:
        raise GuestError("this kernel is packed by zstd, and the program is missing: apt-get install zstd") from None
    return done.stdout  # its exit status complains of what follows the packed kernel


def _prune(modules: Path) -> None:
    root = modules / "kernel"
    for path in sorted(root.rglob("*.ko*")):
        if not str(path.relative_to(root)).startswith(KEPT_MODULES):
            path.unlink()


def _make_initramfs(kernel: Kernel) -> None:
    root = kernel.folder / "initramfs"
    for name in ("bin", "proc", "modules", "lower", "up", "new"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    shutil.copy(INIT, root / "init")
    (root / "init").chmod(0o755)
    show = ["modprobe", "-d", str(kernel.folder), "-S", kernel.version, "-a", "--show-depends", *BOOT_MODULES]
    order: list[str] = []
    for path in re.findall(r"^insmod (\S+)", _run(show), re.M):
        name = Path(path).name.partition(".ko")[0] + ".ko"
        if name not in order:
            data = Path(path).read_bytes()
            (root / "modules" / name).write_bytes(lzma.decompress(data) if path.endswith(".xz") else data)
            order.append(name)
    (root / "modules" / "order").write_text("\n".join(order) + "\n")
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names.encode(), capture_output=True, check=True
    )
    (kernel.folder / "initrd").write_bytes(packed.stdout)
    shutil.rmtree(root)
