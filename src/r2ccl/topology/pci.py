"""PCI devices as sysfs shows them: place in the machine, class and vendor, speed of the slot."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .place import Place

_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_GPU_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers
_NVIDIA = "0x10de"
_SPEED = re.compile(r"([0-9.]+) GT/s")
_MEANT_BY_8B10B = 5.0  # GT/s up to which 8 of 10 bits are data; above, 128 of 130


@dataclass(frozen=True)
class Gpu:
    """A GPU. ``index`` counts them by bus address, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID."""

    index: int
    place: Place
    model: str = ""
    """PCI device number (``0x2330``); empty: unknown."""


def find_gpus(root: Path) -> tuple[Gpu, ...]:
    """NVIDIA's GPUs under ``root`` (``/sys``)."""
    found = [
        (place_of(root, folder), read_text(folder / "device") or "")
        for folder in _devices(root)
        if (read_text(folder / "class") or "").startswith(_GPU_CLASSES) and read_text(folder / "vendor") == _NVIDIA
    ]
    ordered = sorted(found, key=lambda item: item[0].bus_id)
    return tuple(Gpu(index, place, model) for index, (place, model) in enumerate(ordered))


def place_of(root: Path, device: Path) -> Place:
    """The place of the PCI device that ``device`` leads to; without one, a place that says nothing."""
    try:
        parts = device.resolve().parts if device.exists() else ()
    except (OSError, RuntimeError):  # a loop of links
        parts = ()
    chain = [part for part in parts if _BUS_ID.fullmatch(part)]
    if not chain:
        return Place()
    complexes = [part for part in parts if _ROOT.fullmatch(part)]
    *bridges, bus_id = chain
    numa = read_number(root / "bus" / "pci" / "devices" / bus_id / "numa_node")
    if numa is None:
        numa = read_number(device / "numa_node")
    known = numa if numa is not None and numa >= 0 else None
    # A device behind a translating bridge of its own (VMD) shows a second root: the outer one is the machine's.
    return Place(bus_id, complexes[0] if complexes else "", tuple(bridges), known)


def slot_mbps(device: Path) -> int | None:
    """What the PCIe slot of a device can carry in one direction; None when sysfs does not say."""
    speed, width = (
        _SPEED.match(read_text(device / "current_link_speed") or ""),
        read_number(device / "current_link_width"),
    )
    if speed is None or not width or width < 0:
        return None
    gigatransfers = float(speed[1])
    data = 0.8 if gigatransfers <= _MEANT_BY_8B10B else 128 / 130
    return int(gigatransfers * 1000 * width * data)


def read_text(path: Path) -> str | None:
    """The stripped text of an attribute; None when it is absent or its driver refuses."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(file, 1 << 16).decode(errors="replace").strip()
    except OSError:
        return None
    finally:
        os.close(file)


def read_number(path: Path) -> int | None:
    """The whole number of an attribute, decimal or 0x…; None when there is none."""
    try:
        return int(read_text(path) or "", 0)
    except ValueError:
        return None


def _devices(root: Path) -> Iterator[Path]:
    folder = root / "bus" / "pci" / "devices"
    return iter(sorted(folder.iterdir())) if folder.is_dir() else iter(())
