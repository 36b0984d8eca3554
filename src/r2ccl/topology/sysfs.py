"""What sysfs knows of an interface's device: speed, NUMA node, PCI address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MEANINGLESS_SPEED = ("veth", "virtio_net", "tun", "dummy")  # a constant of the driver, not of any wire


@dataclass(frozen=True)
class Device:
    """The device behind an interface; None stands for unknown."""

    speed_mbps: int | None = None
    numa: int | None = None
    pci_path: str | None = None
    driver: str | None = None
    is_bridge: bool = False


def read_device(root: Path, name: str, ifindex: int, kind: str = "") -> Device:
    """The device of interface ``name`` under ``root`` (``/sys``).

    Nothing is known when sysfs shows another interface of that name: it may belong to another network namespace.
    """
    folder = root / "class" / "net" / name
    if _number(folder / "ifindex") != ifindex:
        return Device()
    device = folder / "device"
    driver = _link_name(device / "driver")
    speed = _number(folder / "speed")
    if kind in _MEANINGLESS_SPEED or driver in _MEANINGLESS_SPEED or speed is None or speed <= 0:
        speed = None
    parts = [part for part in _resolved(device).parts if _PCI.fullmatch(part)] if device.exists() else []
    pci = parts[-1] if parts else None
    numa = _number(device / "numa_node")
    if numa is None and pci is not None:  # virtio: the node is an attribute of the PCI device above it
        numa = _number(root / "bus" / "pci" / "devices" / pci / "numa_node")
    return Device(speed, numa if numa is not None and numa >= 0 else None, pci, driver, (folder / "bridge").exists())


def numa_nodes(root: Path) -> dict[int, str]:
    """NUMA node -> its CPUs as the kernel lists them (``0-15,32-47``)."""
    folder = root / "devices" / "system" / "node"
    found = {}
    for entry in folder.glob("node[0-9]*"):
        found[int(entry.name[4:])] = _text(entry / "cpulist") or ""
    return dict(sorted(found.items()))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # absent, or the driver refuses: an interface that is down has no speed
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _link_name(path: Path) -> str | None:
    return _resolved(path).name if path.exists() else None


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path
