"""The command: two runs of the same training, one of them disturbed, then verdict, picture and record."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from ...errors import InvalidArgument, R2cclError
from ...testing import KINDS as INJECTED
from ..fabric import Fabric
from ..requirements import LabError, available, has_capabilities, reexec_in_user_namespace
from .settings import PROG, Settings, parse
from .trial import Trial

_FAILED, _USAGE_ERROR, _LAB_ERROR = 1, 2, 3


def main(argv: Sequence[str]) -> int:
    """Entry point. Returns 0 if the weights are bitwise equal and chunks were replayed, 1 if not or if a run failed,
    2 for wrong arguments, 3 if this machine lacks something that the message names."""
    try:
        settings = parse(argv)
        _need_packages()
        with _ended_by_sigterm():
            return _show(settings, _why_loopback(settings, list(argv)))
    except InvalidArgument as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except LabError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return _LAB_ERROR
    except R2cclError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _why_loopback(settings: Settings, argv: list[str]) -> str | None:
    """Why loopback addresses stand for the NICs, or None: the emulated cluster is used."""
    if settings.loopback:
        why: str | None = "--loopback is given"
    else:
        if not has_capabilities():
            with contextlib.suppress(LabError):  # available() finds the same out, and says it
                reexec_in_user_namespace(__package__, argv)
        why = available()
    if why is not None and settings.fault not in INJECTED:
        raise InvalidArgument(
            f"--fault {settings.fault} needs network namespaces ({why}); without: {', '.join(INJECTED)}"
        )
    return why


def _show(settings: Settings, why_loopback: str | None) -> int:
    from . import picture, record
    from .verdict import judge, lines

    emulated = why_loopback is None
    shape = f"{settings.hosts} hosts x {settings.ranks_per_host} ranks x {settings.rails} NICs"
    if emulated:
        notes = [f"emulated cluster: {shape} of {settings.rate} each, in network namespaces"]
    else:
        notes = [
            f"NO network namespaces here: {why_loopback}",
            f"{shape}: loopback addresses of unlimited rate stand for the NICs, and the transport injects the fault",
        ]
    _say(notes)
    with tempfile.TemporaryDirectory(prefix="r2ccl-demo-") as name:
        calm, disturbed = _two_runs(settings, Path(name), emulated=emulated, notes=notes)
    verdict = judge(settings, calm, disturbed)
    settings.out.mkdir(parents=True, exist_ok=True)
    png, json = settings.out / "demo.png", settings.out / "demo.json"
    picture.save(png, settings, verdict, calm, disturbed, emulated=emulated)
    record.save(json, settings, notes, verdict, [calm, disturbed])
    _say([*lines(settings, verdict, calm, disturbed), f"saved: {png} {json}"])
    return 0 if verdict.passed else _FAILED


def _two_runs(settings: Settings, folder: Path, *, emulated: bool, notes: list[str]) -> tuple[Trial, Trial]:
    """The undisturbed run, then the disturbed one."""
    from .model import Digits
    from .on_lab import run_on_lab
    from .on_loopback import run_on_loopback

    data = folder / "digits.npz"
    Digits.from_sklearn().save(data)
    folders = folder / "undisturbed", folder / "disturbed"
    for own in folders:
        own.mkdir()
    if not emulated:
        calm = run_on_loopback(settings, data, folders[0], None)
        return calm, run_on_loopback(settings, data, folders[1], calm)
    with Fabric(settings.hosts, settings.rails, settings.rate) as fabric:
        notes += fabric.notes
        _say([f"note: {note}" for note in fabric.notes])
        calm = run_on_lab(fabric, settings, data, folders[0], None)
        return calm, run_on_lab(fabric, settings, data, folders[1], calm)


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _need_packages() -> None:
    names = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}
    missing = [package for module, package in names.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise LabError(f"the demonstration needs {' and '.join(missing)}: pip install 'r2ccl[demo]'")


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds as an exception, so that the ranks and the cluster are taken down."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    old = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
