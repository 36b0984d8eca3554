"""What r2ccl-perf says: a table with nccl-tests' columns, and the same as JSON lines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, TextIO


@dataclass(frozen=True)
class Result:
    """One measurement, the same on all ranks. Sizes in bytes of the larger buffer, bandwidths in 1e9 byte/s.

    time_us: median over the iterations of the slowest rank's time; with ``-c 0`` the loop's time per iteration.
    time_mean_us, time_max_us: likewise; an iteration that was repaired shows in the maximum.
    wrong: wrong elements of all ranks and iterations; None: not checked.
    replayed: chunks sent again, of all ranks. repair_ms: time spent in repairs, of the rank that spent most.
    """

    op: str
    bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    in_place: bool
    time_us: float
    time_mean_us: float
    time_max_us: float
    algbw_GBps: float
    busbw_GBps: float
    wrong: int | None
    replayed: int
    repair_ms: float
    ranks: int
    hosts: int
    rails: int
    plan: str


def algbw(size_bytes: int, time_us: float) -> float:
    """Algorithm bandwidth in 1e9 byte/s."""
    return size_bytes / (time_us * 1e3) if time_us > 0 else 0.0


class Report:
    """Writes results as they come. Only rank 0 has one.

    out: the table. lines: JSON lines, or None.
    """

    def __init__(self, out: TextIO, lines: TextIO | None = None) -> None:
        self._out = out
        self._lines = lines
        self.results: list[Result] = []

    def head(self, facts: dict[str, Any]) -> None:
        """The head of the table, ``facts`` in its first line."""
        self._say("# r2ccl-perf  " + "  ".join(f"{k} {v}" for k, v in facts.items()))
        self._say("#")
        half = f"{{:>{4 * 8 - 1}}}"
        self._say("#" + " " * 55 + half.format("out-of-place") + " " + half.format("in-place"))
        columns = f"{'time':>8}{'algbw':>8}{'busbw':>8}{'#wrong':>8}"
        units = f"{'(us)':>8}{'(GB/s)':>8}{'(GB/s)':>8}{'':>8}"
        self._say(
            f"#{'size':>12}{'count':>13}{'type':>15}{'redop':>7}{'root':>7}{columns}{columns}{'replayed':>10}{'repair':>9}"
        )
        self._say(f"#{'(B)':>12}{'(elements)':>13}{'':>15}{'':>7}{'':>7}{units}{units}{'(chunks)':>10}{'(ms)':>9}")

    def row(self, out_of_place: Result, in_place: Result | None) -> None:
        """One line of the table, and its JSON lines. ``in_place`` is None where there is no such form."""
        both = [r for r in (out_of_place, in_place) if r is not None]
        self.results += both
        o = out_of_place
        self._say(
            f" {o.bytes:>12}{o.count:>13}{o.dtype:>15}{o.redop:>7}{o.root:>7}"
            + _columns(o)
            + (_columns(in_place) if in_place else f"{'N/A':>8}" * 4)
            + f"{sum(r.replayed for r in both):>10}{sum(r.repair_ms for r in both):>9.1f}"
        )
        if self._lines is not None:
            for result in both:
                print(json.dumps(asdict(result)), file=self._lines, flush=True)

    def note(self, text: str) -> None:
        """A remark between the rows."""
        self._say(f"# {text}")

    def foot(self) -> None:
        """Totals: as nccl-tests ends, then what was repaired."""
        bandwidths = [r.busbw_GBps for r in self.results]
        if all(r.wrong is None for r in self.results):
            self._say("# Out of bounds values : not checked")
        else:
            wrong = self.wrong
            self._say(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        self._say(f"# Avg bus bandwidth    : {sum(bandwidths) / max(len(bandwidths), 1):.6g}")
        replayed = sum(r.replayed for r in self.results)
        self._say(f"# Replayed chunks      : {replayed}, {sum(r.repair_ms for r in self.results):.1f} ms in repairs")

    @property
    def wrong(self) -> int:
        """Wrong elements so far."""
        return sum(r.wrong or 0 for r in self.results)

    def _say(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def _columns(r: Result) -> str:
    wrong = "N/A" if r.wrong is None else str(r.wrong)
    return f"{_short(r.time_us):>8}{r.algbw_GBps:>8.2f}{r.busbw_GBps:>8.2f}{wrong:>8}"


def _short(time_us: float) -> str:
    """Four digits or so, as nccl-tests prints times."""
    for limit, digits in ((10.0, 2), (100.0, 1)):
        if time_us < limit:
            return f"{time_us:.{digits}f}"
    return f"{time_us:.1f}" if time_us < 10_000 else f"{time_us:.0f}"
