"""``r2ccl-lab``: run any program on an emulated multi-NIC cluster, with faults."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator

from ..errors import InvalidArgument
from .fabric import Fabric
from .kinds import KINDS
from .launch import Run, RunResult
from .report import report, summary, table
from .requirements import LabError, available, has_capabilities, reexec_in_user_namespace
from .schedule import parse_fault

_USAGE_ERROR, _LAB_ERROR = 2, 3


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code. 2: wrong arguments, 3: the lab cannot run here, else that of the ranks."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["demo"]:  # it sees to rights, errors and exit codes itself
        from .demo import main as demo  # needs the demo extra

        return demo(argv[1:])
    own, command = _split(argv)
    options = _parser().parse_args(own)
    try:
        if not has_capabilities():
            reexec_in_user_namespace("r2ccl.lab.cli", argv)
        if options.verb == "check":
            return _check()
        return _run(options, command)
    except InvalidArgument as error:
        print(f"r2ccl-lab: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except (LabError, OSError) as error:
        print(f"r2ccl-lab: {error}", file=sys.stderr)
        return _LAB_ERROR


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Own arguments, and the command after ``--``."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    kinds = "\n".join(f"  {kind.usage:24} {kind.help}" for kind in KINDS.values())
    parser = argparse.ArgumentParser(prog="r2ccl-lab", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser(
        "run",
        help="run a program, one process per rank, on an emulated cluster",
        usage="r2ccl-lab run [options] -- COMMAND [ARGUMENT ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs COMMAND once per rank with torchrun's variables. Host h has 10.(100+r).0.(h+1) on rail{r}.",
        epilog=(
            f"kinds of faults:\n{kinds}\n\nexamples:\n"
            "  --fault 't=2s host=0 rail=1 down' --fault 't=6s host=0 rail=1 heal'\n"
            "  --fault \"on='step 3' host=1 rail=2 loss 30 for=500ms\"\n"
            "t counts from the start of the ranks; on=TEXT waits for a line of their output that contains TEXT,\n"
            "and after=TIME for so long after it."
        ),
    )
    run.add_argument("--hosts", type=int, default=2, help="hosts (default 2)")
    run.add_argument("--ranks", type=int, default=1, help="ranks per host (default 1)")
    run.add_argument("--rails", type=int, default=4, help="NICs per host (default 4)")
    run.add_argument("--rate", default="200mbit", help="limit of each rail and direction, or none (default 200mbit)")
    run.add_argument("--mtu", type=int, default=1500, help="bytes (default 1500)")
    run.add_argument("--fault", action="append", default=[], metavar="SPEC", help="a fault and its time; repeatable")
    run.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="variable for the ranks; repeatable"
    )
    run.add_argument("--timeout", type=float, metavar="SECONDS", help="end the run after so long, exit code 124")
    run.add_argument(
        "--grace", type=float, default=10.0, metavar="SECONDS", help="for the others when a rank failed (10)"
    )
    run.add_argument("--report", metavar="FILE", help="write faults, counters and verdicts as JSON")
    run.add_argument("--counters", action="store_true", help="print the counters of every rail at the end")
    run.add_argument("--quiet-others", action="store_true", help="pass on the output of rank 0 only")
    verbs.add_parser("check", help="say whether the lab can run here, and if not, why")
    verbs.add_parser("demo", help="training that loses a NIC in mid-collective, in one picture", add_help=False)
    return parser


def _check() -> int:
    why = available()
    print("the lab can run here" if why is None else f"the lab cannot run here: {why}")
    return 0 if why is None else _LAB_ERROR


def _run(options: argparse.Namespace, command: list[str]) -> int:
    if not command:
        raise InvalidArgument("no command: r2ccl-lab run [options] -- COMMAND [ARGUMENT ...]")
    if options.ranks < 1:
        raise InvalidArgument(f"--ranks {options.ranks}: must be at least 1")
    unequal = [text for text in options.env if "=" not in text]
    if unequal:
        raise InvalidArgument(f"--env {unequal[0]}: must be NAME=VALUE")
    fabric = Fabric(options.hosts, options.rails, options.rate, mtu=options.mtu)
    faults = [parse_fault(text, options.hosts, options.rails) for text in options.fault]
    env = dict(text.split("=", 1) for text in options.env)
    echo = _Echo(quiet_others=options.quiet_others)
    with fabric:
        run = Run(
            fabric,
            command,
            options.ranks,
            env,
            timeout_s=options.timeout,
            faults=faults,
            grace_s=options.grace,
            echo=echo,
        )
        with _stopping(run):
            result = run.run()
        echo.finish()
        _tell(options, fabric, command, result)
    return result.exit_code


def _tell(options: argparse.Namespace, fabric: Fabric, command: list[str], result: RunResult) -> None:
    lines = summary(fabric, result) + (table(result) if options.counters else [])
    print("\n".join(f"r2ccl-lab: {line}" for line in lines), file=sys.stderr)
    if options.report:
        with open(options.report, "w") as file:
            json.dump(report(fabric, command, result), file, indent=1)
            file.write("\n")


@contextlib.contextmanager
def _stopping(run: Run) -> Iterator[None]:
    """SIGINT and SIGTERM end the ranks instead of this process, which ends after them."""
    old = {n: signal.signal(n, lambda number, _: run.stop(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class _Echo:
    """Passes output on: rank 0 as it is, the others on standard error, each line with its rank."""

    def __init__(self, *, quiet_others: bool) -> None:
        self._quiet_others = quiet_others
        self._begun: dict[tuple[int, str], bytes] = {}

    def __call__(self, rank: int, stream: str, data: bytes) -> None:
        if rank == 0:
            out = sys.stdout if stream == "stdout" else sys.stderr
            out.buffer.write(data)
            out.flush()
        elif not self._quiet_others:
            *lines, self._begun[rank, stream] = (self._begun.get((rank, stream), b"") + data).split(b"\n")
            self._write(rank, lines)

    def finish(self) -> None:
        """Passes on last lines that have no end."""
        for (rank, _), line in self._begun.items():
            self._write(rank, [line] if line else [])

    def _write(self, rank: int, lines: list[bytes]) -> None:
        sys.stderr.buffer.write(b"".join(b"[rank %d] %s\n" % (rank, line) for line in lines))
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
