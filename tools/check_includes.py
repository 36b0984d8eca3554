"""Check which layer of the native core includes which (the rule stands in ``ALLOWED``).

usage: check_includes.py [ROOT]      ROOT: src/r2ccl/_native unless given

Reads the ``#include`` lines of every C++ and CUDA source. A quoted include is looked up beside the file, then
from ROOT. Exit status 1 and one line per violation if a layer reaches up or sideways.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

BELOW_MEMORY = frozenset({"base", "device", "transport", "oob"})
ALLOWED: dict[str, frozenset[str]] = {
    "base": frozenset(),
    "device": frozenset({"base"}),
    "transport": frozenset({"base"}),
    "oob": frozenset({"base"}),
    "flow": frozenset({"base"}),
    "memory": BELOW_MEMORY,
    "exec": BELOW_MEMORY | {"memory", "flow"},
}
TOP = "C ABI"  # files that lie in ROOT itself may include every layer
PUBLIC = "r2ccl/"  # include/r2ccl: records and status codes, no code; below every layer
SUFFIXES = frozenset({".h", ".hpp", ".inl", ".cc", ".cpp", ".cu", ".cuh"})
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, name) of every quoted include that is not a public header."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match and match[1] == '"' and not match[2].startswith(PUBLIC):
            yield number, match[2]


def layer_of(path: Path, root: Path) -> str:
    """Name of the layer a file belongs to: its first folder under ROOT."""
    parts = path.relative_to(root).parts
    return parts[0] if len(parts) > 1 else TOP


def judge(source: Path, name: str, root: Path) -> str | None:
    """Why ``source`` may not include ``name``; None if it may."""
    layer = layer_of(source, root)
    for folder in (source.parent, root):
        target = (folder / name).resolve()
        if target.is_file():
            break
    else:
        return "no such file beside it or under the root"
    if not target.is_relative_to(root):
        return "lies outside the native core"
    other = layer_of(target, root)
    if layer in (TOP, other):
        return None
    if layer not in ALLOWED:
        return f"unknown layer {layer}: add it to ALLOWED in tools/check_includes.py"
    if other in ALLOWED[layer]:
        return None
    return f"{layer} may include {', '.join(sorted(ALLOWED[layer])) or 'no other layer'}, not {other}"


def main(argv: list[str]) -> int:
    root = Path(argv[0] if argv else Path(__file__).parent.parent / "src" / "r2ccl" / "_native").resolve()
    sources = sorted(p for p in root.rglob("*") if p.suffix in SUFFIXES)
    if not sources:
        print(f"{root}: no C++ source found", file=sys.stderr)
        return 1
    wrong = 0
    for source in sources:
        for number, name in includes(source):
            reason = judge(source, name, root)
            if reason is not None:
                wrong += 1
                print(f"{source}:{number}: #include {name}: {reason}", file=sys.stderr)
    print(f"includes of {len(sources)} native files: " + (f"{wrong} wrong" if wrong else "in order"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
