"""Derived dependencies: enough for any program, none too many, and quick to derive."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.errors import InternalError, InvalidArgument
from r2ccl.plan import direct, hierarchical, ring
from r2ccl.plan.builder import At, Builder
from r2ccl.plan.hazards import Accesses
from r2ccl.plan.ir import DEP, OP, Buf, Layout, OpKind, Plan
from r2ccl.plan.task import Task
from r2ccl.plan.verify import PlanError
from r2ccl.plan.verify_local import check_races, check_structure, deps_of
from r2ccl.plan.verify_memory import Sizes
from r2ccl.types import Collective as C

PARTS = 5
ranges = st.tuples(st.integers(0, PARTS - 1), st.integers(1, PARTS)).map(lambda t: (t[0], min(t[1], PARTS - t[0])))
programs = st.lists(st.tuples(st.sampled_from(OpKind), st.sampled_from(Buf), st.sampled_from(Buf), ranges), max_size=14)


def build(program: list[tuple[OpKind, Buf, Buf, tuple[int, int]]], in_place: bool) -> Plan:
    b = Builder(Task(C.ALL_REDUCE, 2, 0, in_place=in_place), "random", (1,) * PARTS)
    for kind, a, z, (first, parts) in program:
        dst, src = At(Buf.RECV if a is Buf.SEND else a, first, parts), At(z, first, parts)
        if kind is OpKind.SEND:
            b.send(1, src)
        elif kind is OpKind.RECV:
            b.recv(1, dst)
        elif kind is OpKind.RECV_REDUCE:
            b.recv_reduce(1, dst, src)
        elif kind is OpKind.COPY:
            b.copy(dst, src)
        else:
            b.reduce(dst, src)
    return b.finish()


@settings(max_examples=150, deadline=None)
@given(programs, st.booleans(), st.integers(0, 9))
def test_no_program_has_races(program: list[tuple[OpKind, Buf, Buf, tuple[int, int]]], ip: bool, seed: int) -> None:
    import random

    plan = build(program, ip)
    check_structure(plan, ip)
    check_races(plan, Sizes([plan], 2, None, random.Random(seed)), ip)


@settings(max_examples=80, deadline=None)
@given(programs, st.booleans())
def test_no_dependency_is_implied_by_others(
    program: list[tuple[OpKind, Buf, Buf, tuple[int, int]]], in_place: bool
) -> None:
    plan = build(program, in_place)
    before: list[set[int]] = []
    for op in range(len(plan.ops)):
        direct_deps = [d for d, _ in deps_of(plan, op)]
        before.append(set(direct_deps).union(*(before[d] for d in direct_deps)))
        for d in direct_deps:
            others = set().union(*(before[e] for e in direct_deps if e != d))
            assert d not in others, (op, d)


@given(st.lists(st.tuples(st.booleans(), ranges), max_size=20))
def test_accesses_against_one_part_at_a_time(trace: list[tuple[bool, tuple[int, int]]]) -> None:
    accesses = Accesses(PARTS)
    writer: list[int] = [-1] * PARTS
    readers: list[set[int]] = [set() for _ in range(PARTS)]
    for op, (writes, (first, parts)) in enumerate(trace):
        cells = range(first, first + parts)
        expected = {writer[c] for c in cells if writer[c] >= 0}
        if writes:
            expected |= set().union(*(readers[c] for c in cells))
            assert set(accesses.write(first, parts, op)) == expected
            for c in cells:
                writer[c], readers[c] = op, set()
        else:
            assert set(accesses.read(first, parts, op)) == expected
            for c in cells:
                readers[c].add(op)


def test_chunk_by_chunk_only_for_the_same_parts() -> None:
    b = Builder(Task(C.ALL_REDUCE, 2, 0), "x", (1, 1, 1))
    b.recv(1, At(Buf.RECV, 0, 2))
    b.send(1, At(Buf.RECV, 0, 2))
    b.send(1, At(Buf.RECV, 1, 1))
    b.recv(1, At(Buf.RECV, 1, 2))
    plan = b.finish()
    assert [deps_of(plan, op) for op in range(4)] == [[], [(0, 0)], [(0, 1)], [(1, 1), (2, 1)]]


def test_copy_onto_itself_is_left_out_in_place_only() -> None:
    for in_place, ops in ((True, 0), (False, 1)):
        b = Builder(Task(C.ALL_GATHER, 3, 1, in_place=in_place), "x")
        b.copy(At(Buf.RECV, 1), At(Buf.SEND, 1))
        assert len(b.finish().ops) == ops


def test_windows_and_scratch() -> None:
    plan = ring.reduce_scatter(Task(C.REDUCE_SCATTER, 4, 1))
    assert plan.send_window == (0, 4)
    assert plan.recv_window == (1, 2)
    assert plan.scratch_window is not None
    assert direct.gather(Task(C.GATHER, 4, 1, root=2)).recv_window is None
    assert direct.all_reduce(Task(C.ALL_REDUCE, 4, 1)).scratch_window is None
    assert direct.all_reduce(Task(C.ALL_REDUCE, 4, 1, wide=True)).scratch_window == (1, 2)


def test_records_are_read_only_and_packed() -> None:
    plan = ring.all_reduce(Task(C.ALL_REDUCE, 3, 0))
    assert (plan.ops.dtype, plan.ops.itemsize, plan.deps.dtype, plan.deps.itemsize) == (OP, 32, DEP, 8)
    assert not plan.ops.flags.writeable
    assert not plan.deps.flags.writeable
    empty = direct.all_to_all(Task(C.ALL_TO_ALL, 1, 0))
    assert (empty.deps.dtype, empty.deps.size) == (DEP, 0)


def test_layout() -> None:
    assert Layout((1, 1, 1), 2).starts(10) == [0, 1, 3, 4, 6, 8, 10]
    assert Layout((3, 1)).starts(8) == [0, 6, 8]
    assert Layout((1, 1, 1)).starts_v([4, 0, 1]) == [0, 4, 4, 5]
    assert Layout((1, 1)).starts(0) == [0, 0, 0]


def test_mistakes_are_refused() -> None:
    b = Builder(Task(C.ALL_REDUCE, 2, 0), "x")
    with pytest.raises(InternalError, match="lane 3"):
        b.send(1, At(Buf.SEND, 0), lane=3)
    with pytest.raises(InternalError, match="covers"):
        b.copy(At(Buf.RECV, 0, 2), At(Buf.SEND, 0, 1))
    b.send(1, At(Buf.SEND, 1, 4))
    with pytest.raises(PlanError, match="holds"):
        check_structure(b.finish(), False)
    with pytest.raises(InvalidArgument, match="rank 5"):
        Task(C.BROADCAST, 4, 5)
    with pytest.raises(InvalidArgument, match="cannot be wide"):
        Task(C.BROADCAST, 4, 0, wide=True)
    with pytest.raises(InvalidArgument, match="exactly once"):
        Task(C.BROADCAST, 3, 0, hosts=((0, 1), (1, 2)))
    with pytest.raises(InvalidArgument, match="in place"):
        Task(C.ALL_TO_ALL, 3, 0, in_place=True)
    with pytest.raises(InvalidArgument, match="peer -1"):
        Task(C.SEND, 3, 0)


def test_build_time_of_large_plans() -> None:
    """Printed, not asserted: a busy machine says nothing about the code."""
    hosts = tuple(tuple(range(8 * h, 8 * h + 8)) for h in range(64))
    for name, build_one in (
        ("ring", ring.all_reduce),
        ("direct", direct.all_reduce),
        ("hierarchical", hierarchical.all_reduce),
    ):
        start = time.perf_counter()
        plan = build_one(Task(C.ALL_REDUCE, 512, 100, hosts=hosts))
        print(f"{name} of 512 ranks: {len(plan.ops)} ops in {(time.perf_counter() - start) * 1e3:.1f} ms")
