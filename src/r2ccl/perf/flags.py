"""Command line of r2ccl-perf: nccl-tests' flags where it has them, refused early where they make no sense."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..config import PREFIX, Config
from ..errors import InvalidArgument
from ..testing import Fault, FaultScript
from ..types import DType, ReduceOp
from .launcher import launcher
from .ops import OPS
from .sizes import parse_size

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
_ORDER_OPS = (ReduceOp.MIN, ReduceOp.MAX)


@dataclass(frozen=True)
class Flags:
    """What the command line asked for, checked as far as it can be without knowing the ranks."""

    op: str
    min_bytes: int
    max_bytes: int
    step_bytes: int
    factor: int
    iterations: int
    warmup: int
    check: bool
    dtypes: tuple[DType, ...]
    redops: tuple[ReduceOp, ...]
    root: int  # -1: every rank in turn
    ranks: int
    hosts: int
    rails: int
    json: str
    settings: tuple[tuple[str, str], ...]
    faults: tuple[tuple[int | None, Fault], ...]  # (rank that carries it out or None for every rank, fault)
    timeout_s: float | None

    def config(self, rank: int, environ: Mapping[str, str] | None = None) -> Config:
        """Settings of a rank: ``R2CCL_*`` variables, then ``--config``, ``--timeout-s`` and ``--fault``."""
        variables = dict(os.environ if environ is None else environ)
        variables.update((PREFIX + key.upper(), value) for key, value in self.settings)
        config = Config.from_env(variables)
        if self.timeout_s is not None:
            config = config.with_(timeout_s=self.timeout_s)
        mine = tuple(fault for where, fault in self.faults if where in (None, rank))
        if mine:
            config = config.with_(fault_script="\n".join(filter(None, (config.fault_script, str(FaultScript(mine))))))
        return config


def parse(argv: Sequence[str] | None = None) -> Flags:
    """The flags of ``argv`` (without the program's name). Prints usage and exits with 2 if they are wrong."""
    parser = _parser()
    a = parser.parse_args(argv)
    try:
        faults = tuple(_fault(text) for text in a.fault)
    except InvalidArgument as error:
        parser.error(f"--fault: {error}")
    if a.minbytes > a.maxbytes:
        parser.error(f"-b {a.minbytes} is more than -e {a.maxbytes}")
    if a.stepbytes and a.stepfactor:
        parser.error(f"-i {a.stepbytes} and -f {a.stepfactor}: give one of the two")
    if a.stepfactor == 1:
        parser.error("-f 1 never ends: at least 2")
    if a.root < -1 or (launcher(os.environ) == "alone" and a.root >= a.ngpus):
        parser.error(f"-r {a.root}: a rank from 0 to {a.ngpus - 1}, or -1 for each in turn")
    if a.hosts > a.ngpus:
        parser.error(f"--hosts {a.hosts} is more than -g {a.ngpus} ranks")
    op = OPS[a.op_name]
    redops = a.redop if op.reduces else (ReduceOp.SUM,)
    if op.reduces:
        _refuse_impossible(parser, a.datatype, redops)
    flags = Flags(
        a.op_name, a.minbytes, a.maxbytes, a.stepbytes, a.stepfactor, a.iters, a.warmup_iters, bool(a.check),
        a.datatype, redops, a.root, a.ngpus, a.hosts, a.rails, a.json, tuple(a.config), faults, a.timeout_s,
    )  # fmt: skip
    try:
        flags.config(0)
    except InvalidArgument as error:
        parser.error(str(error))
    return flags


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="r2ccl-perf",
        description="Time a collective over a range of sizes and check every element of every result.",
        epilog="Under mpiexec, torchrun or r2ccl-lab it measures their ranks; alone it starts -g local ranks.",
    )
    p.add_argument("op_name", metavar="OP", type=_op, help=", ".join(OPS))
    p.add_argument("-b", "--minbytes", type=parse_size, default="32M", help="smallest size (%(default)s)")
    p.add_argument("-e", "--maxbytes", type=parse_size, default="32M", help="largest size (%(default)s)")
    p.add_argument("-i", "--stepbytes", type=parse_size, default=0, help="add this to get the next size")
    p.add_argument("-f", "--stepfactor", type=_count, default=0, help="multiply by this to get the next size")
    p.add_argument("-n", "--iters", type=_positive, default=20, help="timed iterations (%(default)s)")
    p.add_argument("-w", "--warmup_iters", type=_count, default=5, help="iterations before (%(default)s)")
    p.add_argument(
        "-c", "--check", type=int, choices=(0, 1), default=1, metavar="0|1",
        help="1: check every element of every iteration, outside the timing, with a barrier before each "
        "iteration; 0: time a plain loop (%(default)s)",
    )  # fmt: skip
    p.add_argument(
        "-d", "--datatype", type=_dtypes, default="float32", help="data type or all (%(default)s)", metavar="TYPE"
    )
    p.add_argument(
        "-o", "--op", dest="redop", type=_redops, default="sum", metavar="OP",
        help="sum, prod, min, max, avg or all (%(default)s)",
    )  # fmt: skip
    p.add_argument("-r", "--root", type=int, default=0, help="root; -1: every rank in turn (%(default)s)")
    p.add_argument("-g", "--ngpus", type=_positive, default=2, metavar="RANKS", help="local ranks (%(default)s)")
    p.add_argument("--hosts", type=_positive, default=1, help="alone: spread the ranks over emulated hosts")
    p.add_argument("--rails", type=_count, default=0, help="alone: loopback rails between emulated hosts")
    p.add_argument("--json", default="", metavar="FILE", help="append one JSON line per result; - is stdout")
    p.add_argument(
        "--config", type=_setting, action="append", default=[], metavar="KEY=VALUE", help="a field of r2ccl.Config"
    )
    p.add_argument(
        "--fault", action="append", default=[], metavar="FAULT",
        help="'[rank=R] rail=N peer=* kind=blackhole after_bytes=N' (see r2ccl.testing.FaultScript)",
    )  # fmt: skip
    p.add_argument("-T", "--timeout-s", type=_seconds, default=None, metavar="S", help="deadline of each call")
    return p


def _refuse_impossible(parser: argparse.ArgumentParser, dtypes: Sequence[DType], redops: Sequence[ReduceOp]) -> None:
    for dtype in dtypes:
        for redop in redops:
            if dtype in _COMPLEX and redop in _ORDER_OPS:
                parser.error(f"-d {dtype.name.lower()} -o {redop.name.lower()}: complex numbers have no order")
            if dtype is DType.BOOL and redop not in _ORDER_OPS:
                parser.error(f"-d bool -o {redop.name.lower()}: only min and max are checked for bool")


def _op(text: str) -> str:
    name = text.lower().replace("-", "_").removesuffix("_perf")
    name = _OP_ALIAS.get(name, name)
    if name not in OPS:
        raise argparse.ArgumentTypeError(f"{text!r}: one of {', '.join(OPS)}")
    return name


def _dtypes(text: str) -> tuple[DType, ...]:
    if text == "all":
        return _ALL_DTYPES
    try:
        return (_DTYPE_ALIAS.get(text) or DType[text.upper()],)
    except KeyError:
        names = ", ".join(d.name.lower() for d in DType)
        raise argparse.ArgumentTypeError(f"{text!r}: all, {names}") from None


def _redops(text: str) -> tuple[ReduceOp, ...]:
    if text == "all":
        return tuple(ReduceOp)
    try:
        return (ReduceOp[text.upper()],)
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r}: all, {', '.join(o.name.lower() for o in ReduceOp)}") from None


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number, at least 0")
    return value


def _positive(text: str) -> int:
    value = _count(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: at least 1")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: seconds, more than 0")
    return value


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r}: KEY=VALUE with a field of r2ccl.Config")
    return key, value


def _fault(text: str) -> tuple[int | None, Fault]:
    """A fault, and the rank that carries it out: the field ``rank=`` is this program's own."""
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
