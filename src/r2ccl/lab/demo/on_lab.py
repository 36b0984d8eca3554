"""One run on the emulated cluster, where the kernel cuts the NIC."""

from __future__ import annotations

import time
from pathlib import Path

from ..fabric import Fabric
from ..launch import Run
from .ranks import AIM, ENV, TAIL, command, name_of
from .settings import Settings
from .train import marker
from .trial import Cut, DemoError, Logs, Trial, collect
from .watch import Watch


class _Cutter:
    """Cuts the NIC when rank 0 says that the all_reduce of the step begins. Called by the run with its output."""

    def __init__(self, fabric: Fabric, settings: Settings, delay_s: float, watch: Watch) -> None:
        self._fabric, self._settings, self._delay_s, self._watch = fabric, settings, delay_s, watch
        self._begun = b""
        self.cut: Cut | None = None

    def __call__(self, rank: int, stream: str, data: bytes) -> None:
        if rank != 0 or stream != "stdout" or self.cut is not None:
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        if marker(self._settings.cut_step).encode() in lines:
            self._act()

    def _act(self) -> None:
        place = self._settings.cut_host, self._settings.cut_rail
        time.sleep(self._delay_s)
        called_s = time.monotonic()
        self._fabric.fault(self._settings.fault, *place)
        acted_s = time.monotonic()
        self._watch.cut = place
        self.cut = Cut(called_s, acted_s, True, self._fabric.evidence(*place))


class _Output:
    """Keeps the end of what each rank writes to standard error, and hands everything on."""

    def __init__(self, size: int) -> None:
        self.errors = [b""] * size
        self.then: _Cutter | None = None

    def __call__(self, rank: int, stream: str, data: bytes) -> None:
        if stream == "stderr":
            self.errors[rank] = (self.errors[rank] + data)[-TAIL:]
        if self.then is not None:
            self.then(rank, stream, data)


def run_on_lab(fabric: Fabric, settings: Settings, data: Path, folder: Path, calm: Trial | None) -> Trial:
    """One run on the cluster: undisturbed, or with the cut if the undisturbed run ``calm`` is given to aim by."""
    name = name_of(calm)
    output = _Output(settings.size)
    logs = Logs(folder, settings.size)
    places = [(h, r) for h in range(settings.hosts) for r in range(settings.rails)]

    def meter() -> dict[tuple[int, int], tuple[int, int]]:
        nics = {place: counters.nic for place, counters in fabric.counters(drops=False).items()}
        return {place: (nics[place].tx_bytes, nics[place].rx_bytes) for place in places}

    with Watch(name, settings, logs, meter) as watch:
        if calm is not None:
            output.then = _Cutter(fabric, settings, _delay_s(calm, settings), watch)
        run = Run(
            fabric,
            command(settings, data, folder, calm),
            settings.ranks_per_host,
            ENV,
            timeout_s=settings.timeout_s,
            grace_s=3.0,
            echo=output,
        )
        result = run.run()
    if result.exit_code != 0:
        late = [r.rank for r in result.ranks if r.returncode != 0]
        why = f"not finished after {settings.timeout_s:g} s" if result.timed_out else f"exit code {result.exit_code}"
        told = "\n".join(f"rank {rank}: {output.errors[rank].decode(errors='replace')}" for rank in late)
        raise DemoError(f"the {name} run: {why}\n{told}")
    return collect(name, folder, settings, watch.samples, output.then.cut if output.then else None)


def _delay_s(calm: Trial, settings: Settings) -> float:
    """How long after the marker to cut, so that it falls well inside the all_reduce; a packet filter takes 20 ms."""
    spans = [calm.reduce_span_s(step) for step in range(settings.steps)]
    waits = sorted(begin - calm.steps[0][i].reduce_s for i, (begin, _) in enumerate(spans))
    lengths = sorted(end - begin for begin, end in spans)
    middle = len(spans) // 2
    return max(0.0, waits[middle] + lengths[middle] * AIM - 0.02)
