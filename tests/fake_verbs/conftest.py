"""Everything in this folder runs over queue pairs of the fake devices: loopback rail K has device ``fake<K-1>``."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The checks of these suites are used here, over the other transport.
for suite in ("mp", "fault"):
    sys.path.append(str(HERE.parent / suite))

from fake_verbs import build_library, environment  # noqa: E402


@pytest.fixture(scope="session")
def fake_library() -> Path:
    """The fake libibverbs, compiled when its sources have changed."""
    return build_library()


@pytest.fixture(autouse=True)
def over_fake_verbs(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Communicators use the fake devices; returns the file in which faults that struck are noted."""
    log = tmp_path / "fake_verbs.log"
    for name, value in environment(fake_library, log).items():
        monkeypatch.setenv(name, value)
    return log
