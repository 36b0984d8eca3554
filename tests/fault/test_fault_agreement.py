"""The agreement on the state of rails, held up by a rank that is frozen: calls wait for it, and say so."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import numpy as np
import pytest

import r2ccl
from r2ccl.config import Config
from r2ccl.observe.events import EventKind
from r2ccl.testing import RankGroup

PATIENCE_S = 30.0  # a guard against hangs


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.01)


def under_freeze(comm: r2ccl.Communicator, folder: str) -> tuple[list[str], int]:
    """Rank 1 is frozen; then rank 0, on its host, loses its only link over rail 1, which leads to rank 2."""
    here = Path(folder)
    (here / f"ready{comm.rank}").touch()
    wait_for(here / "frozen")
    x = np.full(1000, comm.rank + 1.0)
    errors = []
    if comm.rank == 0:
        end = time.monotonic() + PATIENCE_S
        while EventKind.LINK_DOWN not in {e.kind for e in comm.events()}:
            assert time.monotonic() < end, "the fault has not struck"
            time.sleep(0.01)
        time.sleep(0.2)  # the ranks are told
        for _ in range(3):  # what is left of one attempt must not hurt the next
            with pytest.raises(r2ccl.Timeout) as caught:
                comm.all_reduce(x, async_op=True, timeout_s=0.3)
            errors.append(str(caught.value))
            del caught
            gc.collect()
        (here / "timeouts").touch()
    wait_for(here / "timeouts")
    wait_for(here / "awake")
    comm.all_reduce(x)
    assert x.tolist() == [6.0] * 1000
    return errors, comm.epoch


def test_a_call_that_the_agreement_holds_back_times_out_and_names_who_does_not_answer(tmp_path: Path) -> None:
    config = Config(
        fault_script="rail=1 peer=2 kind=blackhole after_ms=1500",
        heartbeat_ms=200.0,
        recovery=False,
        deterministic=True,
    )
    with RankGroup(under_freeze, 3, hosts=2, rails=2, config=config, args=(str(tmp_path),)) as group:
        for rank in range(3):
            wait_for(tmp_path / f"ready{rank}")
        group.stop(1)
        (tmp_path / "frozen").touch()
        wait_for(tmp_path / "timeouts")
        group.cont(1)
        (tmp_path / "awake").touch()
        outcomes = group.join(timeout_s=PATIENCE_S)
    errors, _ = outcomes[0]
    assert len(errors) == 3
    for text in errors:
        assert "no answer from rank 1" in text, text
    # Rank 1 loses its own link over rail 1 when it wakes, which may be a second agreement, under way at the end.
    assert {epoch for _, epoch in outcomes} <= {1, 2}, outcomes
