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
from . import values
from .launcher import launcher
from .ops import OPS
from .sizes import parse_size

_COMPLEX = (DType.COMPLEX64, DType.COMPLEX128)
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
    explain: bool = False
    calibrate: str = ""  # file to write
    device: str = "cpu"

    def device_of(self, local_rank: int) -> str:
        """Of a rank, as ``r2ccl.init`` takes it."""
        return f"cuda:{local_rank}" if self.device == "cuda" else self.device

    def config(self, rank: int, environ: Mapping[str, str] | None = None) -> Config:
        """Settings of a rank: ``R2CCL_*`` variables, then ``--config``, ``--timeout-s`` and ``--fault``."""
        variables = dict(os.environ if environ is None else environ)
        variables.update((PREFIX + key.upper(), value) for key, value in self.settings)
        config = Config.from_env(variables)
        if self.calibrate:
            config = config.with_(costs="")
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
        faults = tuple(values.fault(text) for text in a.fault)
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
    if a.calibrate and a.device != "cpu":
        parser.error(f"--calibrate measures between processes: not with --device {a.device}")
    if a.hosts > a.ngpus:
        parser.error(f"--hosts {a.hosts} is more than -g {a.ngpus} ranks")
    settings = (*a.config, *([("transport", a.transport)] if a.transport else []))
    if a.op_name is None:
        if not a.calibrate:
            parser.error(f"OP is missing: one of {', '.join(OPS)}")
        a.op_name = "barrier"
    op = OPS[a.op_name]
    redops = a.redop if op.reduces else (ReduceOp.SUM,)
    if op.reduces:
        _refuse_impossible(parser, a.datatype, redops)
    flags = Flags(
        a.op_name, a.minbytes, a.maxbytes, a.stepbytes, a.stepfactor, a.iters, a.warmup_iters, bool(a.check),
        a.datatype, redops, a.root, a.ngpus, a.hosts, a.rails, a.json, settings, faults, a.timeout_s, a.explain,
        a.calibrate, a.device,
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
    p.add_argument("op_name", metavar="OP", type=values.op, nargs="?", help=", ".join(OPS))
    p.add_argument("-b", "--minbytes", type=parse_size, default="32M", help="smallest size (%(default)s)")
    p.add_argument("-e", "--maxbytes", type=parse_size, default="32M", help="largest size (%(default)s)")
    p.add_argument("-i", "--stepbytes", type=parse_size, default=0, help="add this to get the next size")
    p.add_argument("-f", "--stepfactor", type=values.count, default=0, help="multiply by this to get the next size")
    p.add_argument("-n", "--iters", type=values.positive, default=20, help="timed iterations (%(default)s)")
    p.add_argument("-w", "--warmup_iters", type=values.count, default=5, help="iterations before (%(default)s)")
    p.add_argument(
        "-c", "--check", type=int, choices=(0, 1), default=1, metavar="0|1",
        help="1: check every element of every iteration, outside the timing, with a barrier before each "
        "iteration; 0: time a plain loop (%(default)s)",
    )  # fmt: skip
    p.add_argument(
        "-d", "--datatype", type=values.dtypes, default="float32", help="data type or all (%(default)s)", metavar="TYPE"
    )
    p.add_argument(
        "-o", "--op", dest="redop", type=values.redops, default="sum", metavar="OP",
        help="sum, prod, min, max, avg or all (%(default)s)",
    )  # fmt: skip
    p.add_argument("-r", "--root", type=int, default=0, help="root; -1: every rank in turn (%(default)s)")
    p.add_argument("-g", "--ngpus", type=values.positive, default=2, metavar="RANKS", help="local ranks (%(default)s)")
    p.add_argument(
        "--device", default="cpu", metavar="DEVICE",
        help="where the buffers lie: cpu, cuda (the GPU of the rank's number on its host) or cuda:N (%(default)s)",
    )  # fmt: skip
    p.add_argument("--hosts", type=values.positive, default=1, help="alone: spread the ranks over emulated hosts")
    p.add_argument("--rails", type=values.count, default=0, help="alone: loopback rails between emulated hosts")
    p.add_argument(
        "--transport", choices=("auto", "tcp", "verbs"), default="", help="what rails speak (Config.transport)"
    )
    p.add_argument("--json", default="", metavar="FILE", help="append one JSON line per result; - is stdout")
    p.add_argument(
        "--config",
        type=values.setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a field of r2ccl.Config",
    )
    p.add_argument(
        "--fault", action="append", default=[], metavar="FAULT",
        help="'[rank=R] rail=N peer=* kind=blackhole after_bytes=N' (see r2ccl.testing.FaultScript)",
    )  # fmt: skip
    p.add_argument("--explain", action="store_true", help="print what each algorithm should take, and which is chosen")
    p.add_argument(
        "--calibrate", default="", metavar="FILE",
        help="instead of OP: measure what messages and bytes cost here; R2CCL_COSTS=FILE makes plans go by it",
    )  # fmt: skip
    p.add_argument("-T", "--timeout-s", type=values.seconds, default=None, metavar="S", help="deadline of each call")
    return p


def _refuse_impossible(parser: argparse.ArgumentParser, dtypes: Sequence[DType], redops: Sequence[ReduceOp]) -> None:
    for dtype in dtypes:
        for redop in redops:
            if dtype in _COMPLEX and redop in _ORDER_OPS:
                parser.error(f"-d {dtype.name.lower()} -o {redop.name.lower()}: complex numbers have no order")
            if dtype is DType.BOOL and redop not in _ORDER_OPS:
                parser.error(f"-d bool -o {redop.name.lower()}: only min and max are checked for bool")
