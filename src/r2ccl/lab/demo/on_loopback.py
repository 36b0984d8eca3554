"""One run with loopback addresses for NICs, where the transport of the damaged host's ranks injects the fault."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ...testing import Fault, FaultScript
from ...testing.ranks import free_port, rail_addresses
from .ranks import AIM, ENV, TAIL, command, name_of
from .settings import Settings
from .trial import Cut, DemoError, Logs, Trial, collect
from .watch import Watch


def run_on_loopback(settings: Settings, data: Path, folder: Path, calm: Trial | None) -> Trial:
    """The same with a loopback address for each rail; the transport of the ranks of ``cut_host`` breaks the rail."""
    name = name_of(calm)
    logs = Logs(folder, settings.size)
    with (
        _started(settings, data, folder, calm) as ranks,
        Watch(name, settings, logs, lambda: logs.nics(settings)) as watch,
    ):
        deadline_s = time.monotonic() + settings.timeout_s
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() not in (None, 0) for rank in ranks):
                time.sleep(1.0)  # for the others to say what they saw
                break
            if time.monotonic() > deadline_s:
                raise DemoError(f"the {name} run: not finished after {settings.timeout_s:g} s")
            time.sleep(0.02)
    for number, rank in enumerate(ranks):
        if rank.returncode > 0:
            told = (folder / f"rank{number}.err").read_text(errors="replace")[-TAIL:]
            raise DemoError(f"the {name} run: rank {number} ended with exit code {rank.returncode}\n{told}")
    trial = collect(name, folder, settings, watch.samples, None)
    suspicions = trial.suspicions_s()
    if calm is None or not suspicions:
        return trial
    return Trial(name, trial.steps, trial.reports, trial.samples, Cut(suspicions[0], suspicions[0], False, {}))


@contextlib.contextmanager
def _started(
    settings: Settings, data: Path, folder: Path, calm: Trial | None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks' processes; none is left when the context ends."""
    shared = {
        **ENV,
        "WORLD_SIZE": str(settings.size),
        "LOCAL_WORLD_SIZE": str(settings.ranks_per_host),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "R2CCL_SECRET": secrets.token_hex(16),
        "R2CCL_RAILS": rail_addresses(settings.rails),
    }
    ranks: list[subprocess.Popen[bytes]] = []
    errors: list[IO[bytes]] = []
    try:
        for rank in range(settings.size):
            host, local = divmod(rank, settings.ranks_per_host)
            own = {"RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(host), "R2CCL_HOST_ID": f"host{host}"}
            if calm is not None and host == settings.cut_host:
                own["R2CCL_FAULT_SCRIPT"] = str(fault_script(settings, calm.reports[rank]))
            errors.append((folder / f"rank{rank}.err").open("wb"))
            ranks.append(
                subprocess.Popen(
                    command(settings, data, folder, calm),
                    env={**os.environ, **shared, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors[-1],
                )
            )
        yield ranks
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
            process.wait()
        for file in errors:
            file.close()


def fault_script(settings: Settings, report: dict[str, object]) -> FaultScript:
    """Breaks each link of the rail when it has carried what it carried in the calm run up to within the cut step."""
    script = FaultScript()
    part = (settings.cut_step + AIM) / settings.steps
    stats = report["stats"]
    assert isinstance(stats, dict)
    name = stats["rails"][settings.cut_rail]["name"]
    for link in stats["links"]:
        if link["rail"] == name:
            after = int((link["tx_bytes"] + link["rx_bytes"]) * part)
            script = script.add(Fault(settings.fault, settings.cut_rail, link["peer"], after_bytes=max(after, 1)))
    return script
