"""Values of single flags, from text. What is wrong is raised as ``argparse.ArgumentTypeError`` with the text."""

from __future__ import annotations

import argparse

from ..errors import InvalidArgument
from ..testing import Fault
from ..types import DType, ReduceOp
from .ops import OPS

# nccl-tests' names beside ours.
_OP_ALIAS = {"alltoall": "all_to_all", "send_recv": "sendrecv"}
_DTYPE_ALIAS = {
    "half": DType.FLOAT16,
    "float": DType.FLOAT32,
    "double": DType.FLOAT64,
    "fp8_e4m3": DType.FLOAT8_E4M3FN,
    "f8e4m3": DType.FLOAT8_E4M3FN,
    "fp8_e5m2": DType.FLOAT8_E5M2,
    "f8e5m2": DType.FLOAT8_E5M2,
}
_COMPLEX = (DType.COMPLEX64, DType.COMPLEX128)
_ALL_DTYPES = tuple(d for d in DType if d is not DType.BOOL and d not in _COMPLEX)


def op(text: str) -> str:
    """Name of a collective."""
    name = text.lower().replace("-", "_").removesuffix("_perf")
    name = _OP_ALIAS.get(name, name)
    if name not in OPS:
        raise argparse.ArgumentTypeError(f"{text!r}: one of {', '.join(OPS)}")
    return name


def dtypes(text: str) -> tuple[DType, ...]:
    """One data type, or those of ``all``."""
    if text == "all":
        return _ALL_DTYPES
    try:
        return (_DTYPE_ALIAS.get(text) or DType[text.upper()],)
    except KeyError:
        names = ", ".join(d.name.lower() for d in DType)
        raise argparse.ArgumentTypeError(f"{text!r}: all, {names}") from None


def redops(text: str) -> tuple[ReduceOp, ...]:
    """One operator, or those of ``all``."""
    if text == "all":
        return tuple(ReduceOp)
    try:
        return (ReduceOp[text.upper()],)
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r}: all, {', '.join(o.name.lower() for o in ReduceOp)}") from None


def count(text: str) -> int:
    """A whole number, at least 0."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number, at least 0")
    return value


def positive(text: str) -> int:
    """A whole number, at least 1."""
    value = count(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: at least 1")
    return value


def seconds(text: str) -> float:
    """A time in seconds, more than 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: seconds, more than 0")
    return value


def setting(text: str) -> tuple[str, str]:
    """``KEY=VALUE``; whether Config knows the key shows when it is made."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r}: KEY=VALUE with a field of r2ccl.Config")
    return key, value


def fault(text: str) -> tuple[int | None, Fault]:
    """A fault, and the rank that carries it out: the field ``rank=`` is this program's own.

    Raises ``InvalidArgument``.
    """
    rank: int | None = None
    rest: list[str] = []
    for item in text.split():
        key, _, value = item.partition("=")
        if key != "rank":
            rest.append(item)
        elif value != "*":
            if not value.isdigit():
                raise InvalidArgument(f"{text!r}: rank={value!r} is not a rank")
            rank = int(value)
    return rank, Fault.parse(" ".join(rest))
