"""Print what ``pip install`` needs to work on r2ccl: build requirements and the requirements of the given extras.

usage: requirements.py EXTRA...      (reads pyproject.toml beside this folder)

The package itself is not installed by this list, so that the environment stands before the first compilation.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CMAKE_AT_LEAST = (3, 20)


def load(path: Path) -> dict[str, Any]:
    """The parsed TOML file. Python 3.10 has no tomllib; pip brings the same parser along."""
    try:
        import tomllib as toml
    except ModuleNotFoundError:
        from pip._vendor import tomli as toml  # type: ignore[no-redef]
    return toml.loads(path.read_text())


def expand(extras: dict[str, list[str]], names: list[str], package: str) -> list[str]:
    """Requirements of the extras, those that an extra takes over from others (``r2ccl[perf]``) included."""
    found: dict[str, None] = {}
    for name in names:
        if name not in extras:
            raise SystemExit(f"pyproject.toml has no extra {name!r}; it has {', '.join(sorted(extras))}")
        for requirement in extras[name]:
            nested = re.fullmatch(rf"{re.escape(package)}\[([\w,\s-]+)\]", requirement)
            inner = expand(extras, [e.strip() for e in nested[1].split(",")], package) if nested else [requirement]
            found.update(dict.fromkeys(inner))
    return list(found)


def system_cmake() -> tuple[int, int] | None:
    """Version of the cmake on PATH, None if there is none that runs."""
    if shutil.which("cmake") is None:
        return None
    answer = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"version (\d+)\.(\d+)", answer.stdout)
    return (int(version[1]), int(version[2])) if version else None


def main(names: list[str]) -> None:
    data = load(Path(__file__).resolve().parent.parent / "pyproject.toml")
    project = data["project"]
    wanted = [*data["build-system"]["requires"], *project["dependencies"]]
    wanted += expand(project["optional-dependencies"], names, project["name"])
    version = system_cmake()
    if version is None or version < CMAKE_AT_LEAST:
        wanted.append("cmake>=" + ".".join(map(str, CMAKE_AT_LEAST)))
    print("\n".join(dict.fromkeys(wanted)))


if __name__ == "__main__":
    main(sys.argv[1:])
