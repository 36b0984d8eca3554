"""These tests are about repair: what is lost stays lost, so that silence on it can be asserted, and plans stay what they
are, so that bits can be compared. See tests/lab/test_recovery.py and test_verdicts.py for the rest.
"""

import pytest


@pytest.fixture(autouse=True)
def what_is_lost_stays_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_RECOVERY", "0")
    monkeypatch.setenv("R2CCL_DETERMINISTIC", "1")
