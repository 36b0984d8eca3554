"""Makes a sysfs tree of a listing in tests/fixtures/topology."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures" / "topology"
_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CLASSES = ("infiniband", "net")


def listings() -> list[str]:
    """Names of all recorded machines."""
    return sorted(path.stem for path in FIXTURES.glob("*.txt"))


def tree(name: str, root: Path) -> Path:
    """``root`` with the tree of a listing below it, to be given as ``/sys``."""
    for line in (FIXTURES / f"{name}.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            folder, _, files = line.partition(": ")
            _add(root, folder, dict(item.split("=", 1) for item in shlex.split(files)))
    return root


def _add(root: Path, folder: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    parts = folder.split("/")
    for depth, part in enumerate(parts):
        here = "/".join(parts[: depth + 1])
        if _BUS_ID.fullmatch(part):
            _link(root, f"bus/pci/devices/{part}", here)
        elif depth and parts[depth - 1] in _CLASSES:
            _link(root, f"class/{parts[depth - 1]}/{part}", here)
            if depth > 1 and parts[1] != "virtual":
                _link(root, f"{here}/device", "/".join(parts[: depth - 1]))


def _link(root: Path, at: str, to: str) -> None:
    path = root / at
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(os.path.relpath(root / to, path.parent))
