"""Watching a run from outside: counters every 100 ms, and what they say drawn live or printed as lines."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from ..wiring import Place
from .settings import Settings
from .trial import Logs, Sample

PERIOD_S = 0.1
_LINES_PER_RUN = 6
_WINDOW = 5  # samples that a drawn rate is the mean of: about two steps
_SPARKS = " ▁▂▃▄▅▆▇█"
_HISTORY = 40

Meter = Callable[[], Mapping[Place, tuple[int, int]]]
"""Bytes (sent, received) so far of the NIC of every (host, rail)."""


class Watch:
    """Samples a run in a thread of its own while the context lasts; ``samples`` is complete afterwards.

    Draws throughput per rail with rich when standard output is a terminal; otherwise prints a few progress lines.
    """

    def __init__(self, name: str, settings: Settings, logs: Logs, meter: Meter) -> None:
        self.samples: list[Sample] = []
        self.cut: Place | None = None
        self._name, self._settings, self._logs, self._meter = name, settings, logs, meter
        self._said = 0
        self._drawn = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="r2ccl-demo-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is None:
            self._sample()
            if not self._drawn:
                self._say(at_end=True)

    def _run(self) -> None:
        live = _live(self) if sys.stdout.isatty() else None
        self._drawn = live is not None
        if live is not None:
            live.start()
        try:
            while not self._over.wait(PERIOD_S):
                self._sample()
                if live is not None:
                    live.refresh()
                else:
                    self._say()
        finally:
            if live is not None:
                live.stop()

    def _sample(self) -> None:
        self._logs.read()
        self.samples.append(Sample(time.monotonic(), self._meter()))

    def _say(self, *, at_end: bool = False) -> None:
        done = self._logs.steps[0]
        every = max(1, self._settings.steps // _LINES_PER_RUN)
        if len(done) >= self._said + (1 if at_end else every):
            self._said = len(done)
            print(f"{self._name}: {self.progress()}", flush=True)

    def progress(self) -> str:
        """How far rank 0 is, in a few words."""
        done = self._logs.steps[0]
        if not done:
            return "starting"
        last = done[-1]
        took_ms = (last.done_s - last.begin_s) * 1e3
        return f"step {len(done)} of {self._settings.steps}, loss {last.loss:.4f}, {took_ms:.0f} ms a step"

    def rates(self, place: Place) -> list[float]:
        """Mbit/s sent by a NIC, one number per sample, each the mean of the last few samples."""
        recent = list(deque(self.samples, _HISTORY + _WINDOW))
        pairs = zip(recent, recent[_WINDOW:], strict=False)
        return [(b.nics[place][0] - a.nics[place][0]) * 8e-6 / (b.at_s - a.at_s) for a, b in pairs]

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        rates = {place: self.rates(place) for place in self.samples[-1].nics}
        highest = max((max(r, default=0.0) for r in rates.values()), default=0.0) or 1.0
        table = Table(title=f"{self._name} run: {self.progress()}", title_justify="left", box=None, pad_edge=False)
        table.add_column("NIC")
        table.add_column("sends, Mbit/s", justify="right")
        table.add_column("the last seconds", min_width=_HISTORY)
        for place, series in rates.items():
            style = "red" if place == self.cut else "green"
            name = Text(f"host {place[0]} rail {place[1]}" + ("  CUT" if place == self.cut else ""), style=style)
            sparks = "".join(_SPARKS[min(8, round(rate / highest * 8))] for rate in series)
            table.add_row(name, f"{series[-1] if series else 0.0:.0f}", Text(sparks, style=style))
        return table


def _live(watch: Watch) -> Any:
    """rich's live display of the watch, or None where rich is not installed."""
    try:
        from rich.live import Live
    except ImportError:
        return None
    return Live(watch, auto_refresh=False)
