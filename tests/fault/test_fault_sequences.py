"""Failures that meet other failures: one after another, during a repair, down to the last rail."""

from __future__ import annotations

import itertools

import pytest
from fault_checks import run_case
from fault_scenarios import STEPS, all_reduce, repeat

from r2ccl import EventKind
from r2ccl.testing import KINDS, Fault, FaultScript

pytestmark = pytest.mark.timeout(90)
MIB = 1 << 20
COUNT = MIB // 2


def faults(*given: tuple[str, int, int]) -> FaultScript:
    """A script of (kind, rail, after_bytes)."""
    return FaultScript(tuple(Fault(kind, rail, after_bytes=after) for kind, rail, after in given))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_case_06_down_to_the_last_rail_in_every_order(order: tuple[int, ...]) -> None:
    """R = 3: two rails fail one after the other, each time while a later call runs."""
    first, second, _ = order
    outcomes = run_case(
        repeat(all_reduce, COUNT, 5),
        {0: faults(("blackhole", first, MIB // 4), ("reset", second, 3 * MIB))},
        [(0, 1, first), (0, 1, second)],
        rails=3,
    )
    for o in outcomes:
        assert o.first(EventKind.REPAIRED, first) < o.first(EventKind.LINK_SUSPECT, second)


@pytest.mark.parametrize("kind", KINDS)
def test_four_rails_lose_three(kind: str) -> None:
    """Each end breaks rails; the last one carries everything."""
    run_case(
        repeat(all_reduce, COUNT, 6),
        {0: faults((kind, 3, 0), (kind, 0, MIB)), 1: faults((kind, 2, MIB // 2))},
        [(0, 1, 3), (0, 1, 0), (0, 1, 2)],
        rails=4,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_two_rails_at_once(kind: str) -> None:
    """Both are lost with the same chunk; what was on one must not be sent again over the other for good."""
    run_case(
        repeat(all_reduce, COUNT, 3),
        {0: faults((kind, 0, MIB // 4), (kind, 1, MIB // 4))},
        [(0, 1, 0), (0, 1, 1)],
        rails=3,
    )


def test_both_ends_break_a_different_rail_at_once() -> None:
    run_case(
        repeat(STEPS["all_to_all"], COUNT, 3),
        {0: faults(("tx-drop", 0, MIB // 8)), 1: faults(("rx-drop", 2, MIB // 8))},
        [(0, 1, 0), (0, 1, 2)],
        rails=3,
    )


@pytest.mark.parametrize("second", ["blackhole", "tx-drop"])
def test_a_failure_during_the_repair_of_another(second: str) -> None:
    """Rail 0 resets; its chunks are sent again over rail 1, which swallows them, and then over rail 2.

    A broadcast goes one way only, and one chunk is larger than what rail 1 carries before its fault: whatever is
    replayed there is lost. So the repair of rail 0 can end only after rail 1 has been given up as well.
    """
    during = 0
    for tries in range(6):
        outcomes = run_case(
            repeat(STEPS["broadcast"], COUNT, 1),
            {0: faults(("reset", 0, (tries + 1) * MIB // 8), (second, 1, (tries + 1) * MIB // 8))},
            [(0, 1, 0), (0, 1, 1)],
            rails=3,
            settings={"chunk_bytes": 64 << 10},
        )
        o = outcomes[0]
        during += o.first(EventKind.LINK_SUSPECT, 1) < o.first(EventKind.REPAIRED, 0)
        if during:
            break
    assert during, "in no case was rail 1 lost while rail 0 was being repaired"


def test_a_chunk_is_replayed_twice() -> None:
    """Rails 0, 1 and 2 swallow everything from their first chunk on, one is left: every chunk of theirs moves."""
    outcomes = run_case(
        repeat(STEPS["broadcast"], COUNT, 1),
        {0: faults(("reset", 0, 1), ("tx-drop", 1, 1), ("blackhole", 2, 1))},
        [(0, 1, 0), (0, 1, 1), (0, 1, 2)],
        rails=4,
        settings={"chunk_bytes": 64 << 10},
    )
    assert outcomes[0].replayed > 0


def test_three_hosts_lose_different_rails() -> None:
    """Every host loses another rail; every pair keeps at least one."""
    run_case(
        repeat(STEPS["all_to_all"], COUNT, 3),
        {r: faults((KINDS[r], r, MIB // 16)) for r in range(3)},
        [(a, b, rail) for a, b in [(0, 1), (0, 2), (1, 2)] for rail in (a, b)],
        n=3,
        rails=4,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_six_ranks_on_three_hosts(kind: str) -> None:
    """The same rail fails at both ranks of a host; a hierarchical plan and whatever links it uses."""
    run_case(
        repeat(STEPS["all_to_all"], COUNT, 2),
        {r: faults((kind, 1, MIB // 64)) for r in (2, 3)},
        [(min(r, p), max(r, p), 1) for r in (2, 3) for p in (0, 1, 4, 5)],
        n=6,
        hosts=3,
        rails=2,
    )
