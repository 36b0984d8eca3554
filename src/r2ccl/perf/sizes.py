"""Message sizes: ``8``, ``64K``, ``256M``, ``1G`` in powers of 1024, and the ladder from one to another."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

_SUFFIX = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of a size as nccl-tests writes it. Raises ``argparse.ArgumentTypeError`` with the text."""
    number, factor = text, 1
    if text[-1:].upper() in _SUFFIX:
        number, factor = text[:-1], _SUFFIX[text[-1].upper()]
    try:
        size = int(float(number) * factor) if "." in number else int(number) * factor
    except ValueError:
        size = -1
    if size < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8, 64K, 256M or 1G")
    return size


def ladder(first: int, last: int, *, step: int = 0, factor: int = 0) -> Iterator[int]:
    """Sizes in bytes from ``first`` to at most ``last``: plus ``step`` each time, or times ``factor``.

    With neither, or when nothing fits in between, ``first`` alone.
    """
    size = first
    while size <= last:
        yield size
        larger = size + step if step else size * factor
        if larger <= size:
            return
        size = larger
