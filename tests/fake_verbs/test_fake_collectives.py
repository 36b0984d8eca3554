"""Every collective over queue pairs, against NumPy: the battery of tests/mp."""

from __future__ import annotations

import numpy as np
import pytest
from test_collectives import battery

import r2ccl
from r2ccl.testing import run_ranks

pytestmark = pytest.mark.timeout(100)


def uses_verbs(comm: r2ccl.Communicator) -> bool:
    with open("/proc/self/maps") as maps:
        return "libfakeverbs" in maps.read()


def test_all_reduce() -> None:
    def rank(comm: r2ccl.Communicator) -> bool:
        for count in (1, 1000, 1_000_003):
            array = np.full(count, comm.rank + 1, np.int32)
            comm.all_reduce(array)
            assert (array == 3).all()
        return uses_verbs(comm)

    assert run_ranks(rank, 2, hosts=2, rails=2) == [True, True]


@pytest.mark.parametrize(("n", "hosts", "rails"), [(2, 2, 1), (3, 3, 2), (4, 2, 3)])
def test_battery(n: int, hosts: int, rails: int) -> None:
    assert min(run_ranks(battery, n, hosts=hosts, rails=rails, args=(300_007,), timeout_s=90)) > 100
