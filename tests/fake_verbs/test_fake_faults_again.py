"""The fault suite of tests/fault over queue pairs: the same faults of links, the same bits."""

from __future__ import annotations

import pytest
from test_fault_collectives import *  # noqa: F403

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(autouse=True)
def what_is_lost_stays_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_RECOVERY", "0")
    monkeypatch.setenv("R2CCL_DETERMINISTIC", "1")
