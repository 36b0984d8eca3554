"""Cases of tests/fault over queue pairs: faults of links in every collective, the same bits as without."""

from __future__ import annotations

import pytest
from test_fault_collectives import (  # noqa: F401
    test_a_leak_is_noticed,
    test_all_reduce,
    test_case_09_causes_of_suspicion,
    test_chunks_that_vanished_are_sent_again,
    test_collective,
    test_idle_between_two_collectives,
    test_three_hosts_lose_a_rail_of_one,
    test_two_ranks_a_host,
)
from test_fault_sequences import *  # noqa: F403

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(autouse=True)
def what_is_lost_stays_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_RECOVERY", "0")
    monkeypatch.setenv("R2CCL_DETERMINISTIC", "1")
