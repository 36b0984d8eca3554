"""These tests are about repair: what is lost stays lost, so that silence on it can be asserted. See test_recovery.py."""

import pytest


@pytest.fixture(autouse=True)
def what_is_lost_stays_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2CCL_RECOVERY", "0")
