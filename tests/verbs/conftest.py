"""Tests over soft RDMA: they run in the guest that ``make test-verbs`` boots, and are deselected everywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
if str(PROJECT) not in sys.path:
    sys.path.insert(0, str(PROJECT))  # for tools.rdma_guest

from tools.rdma_guest.faults import Breaker  # noqa: E402
from tools.rdma_guest.rails import Rails  # noqa: E402

IN_GUEST = "RDMA_GUEST" in os.environ
HOSTS, RAILS = 3, 3


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything in this folder has the marker ``verbs``."""
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.verbs)
    if not IN_GUEST and mine:
        items[:] = [item for item in items if item not in mine]
        config.hook.pytest_deselected(items=mine)


@pytest.fixture(scope="session")
def rails() -> Rails:
    """Three emulated hosts with three rails each; laid once a guest."""
    laid = Rails(HOSTS, RAILS)
    laid.lay()
    return laid


@pytest.fixture
def breaker(rails: Rails) -> Iterator[Breaker]:
    """Breaks rails; they are whole again after the test."""
    breaker = Breaker(rails)
    yield breaker
    breaker.heal_all()
