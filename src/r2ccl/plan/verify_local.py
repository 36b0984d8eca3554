"""What can be proved about one rank's plan alone: well-formed records, and no two ops that race for memory."""

from __future__ import annotations

from ..errors import InternalError
from ..types import Collective
from .ir import Buf, Flag, OpKind, Plan
from .task import REDUCING
from .verify_memory import Sizes, here, space_of


class PlanError(InternalError):
    """A plan is wrong. rank, op (index, or None) and part (or None) say where; the message says what."""

    def __init__(self, what: str, plan: Plan, op: int | None = None, part: int | None = None) -> None:
        where = f"{plan.collective.name.lower()}/{plan.algorithm}: rank {plan.rank}"
        if op is not None:
            row = plan.ops[op]
            where += f", op {op} ({OpKind(int(row['kind'])).name}"
            where += f" peer {row['peer']}, lane {row['lane']})" if row["peer"] >= 0 else ")"
        if part is not None:
            where += f", part {part}"
        super().__init__(f"{where}: {what}")
        self.rank, self.op, self.part = plan.rank, op, part


def sides(plan: Plan, op: int) -> tuple[tuple[Buf, int] | None, tuple[Buf, int] | None]:
    """(buffer, first part) of dst and of src, None where the op has none."""
    row = plan.ops[op]
    kind = OpKind(int(row["kind"]))
    dst = None if kind is OpKind.SEND else (Buf(int(row["dst_buf"])), int(row["dst"]))
    src = None if kind is OpKind.RECV else (Buf(int(row["src_buf"])), int(row["src"]))
    return dst, src


def deps_of(plan: Plan, op: int) -> list[tuple[int, int]]:
    """(earlier op, whole) of an op."""
    first, count = int(plan.ops[op]["dep_first"]), int(plan.ops[op]["dep_count"])
    return [(int(d["op"]), int(d["whole"])) for d in plan.deps[first : first + count]]


def check_structure(plan: Plan, in_place: bool) -> None:
    """Every record is well formed by itself."""
    held = {Buf.SEND: plan.send_window, Buf.RECV: plan.recv_window, Buf.SCRATCH: plan.scratch_window}
    if in_place and plan.collective is Collective.ALL_TO_ALL:
        raise PlanError("all_to_all is never in place", plan)
    for op in range(len(plan.ops)):
        row = plan.ops[op]
        kind, flags, parts = OpKind(int(row["kind"])), int(row["flags"]), int(row["parts"])
        talks = kind in (OpKind.SEND, OpKind.RECV, OpKind.RECV_REDUCE)
        if talks and (not 0 <= row["peer"] < plan.nranks or row["peer"] == plan.rank):
            raise PlanError(f"peer {row['peer']} of {plan.nranks} ranks", plan, op)
        if row["lane"] >= plan.lanes:
            raise PlanError(f"lane {row['lane']} of {plan.lanes}", plan, op)
        if parts < 1:
            raise PlanError("covers no part", plan, op)
        dst, src = sides(plan, op)
        for buf, first in filter(None, (dst, src)):
            window = held[buf]
            if window is None or not window[0] <= first <= first + parts <= window[1]:
                raise PlanError(f"parts {first}..{first + parts} of {buf.name}, which holds {window}", plan, op, first)
        if dst and dst[0] is Buf.SEND:
            raise PlanError("writes the user's input", plan, op, dst[1])
        if dst and src and space_of(plan, dst[0]) == space_of(plan, src[0]) and dst[1] != src[1]:
            raise PlanError(f"dst part {dst[1]} is not src part {src[1]}", plan, op, dst[1])
        _check_flags(plan, op, kind, flags, dst, src)
        for earlier, whole in deps_of(plan, op):
            if not earlier < op:
                raise PlanError(f"waits for op {earlier}, which is not an earlier one", plan, op)
            if not whole and not _same_grid(plan, op, earlier):
                raise PlanError(f"waits chunk by chunk for op {earlier}, which covers other parts", plan, op)


def check_races(plan: Plan, sizes: Sizes, in_place: bool) -> None:
    """Ops that touch the same element, one of them writing, are ordered by dependencies."""
    first_node, before = _ancestors(plan, sizes)
    last_write: dict[tuple[int, int], tuple[int, int]] = {}
    readers: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for op in range(len(plan.ops)):
        dst, src = sides(plan, op)
        reads = [side for side in (src, dst if plan.ops[op]["kind"] == OpKind.REDUCE else None) if side]
        for chunk in range(sizes.chunks(plan, op)):
            node = first_node[op] + chunk
            for side, writes in [(side, False) for side in reads] + ([(dst, True)] if dst else []):
                memory = Buf.RECV if in_place and side[0] is Buf.SEND else side[0]
                for element in range(*sizes.elements(plan, op, chunk, *side)):
                    cell = (memory, element)
                    rivals = [last_write[cell]] if cell in last_write else []
                    rivals += readers.get(cell, []) if writes else []
                    for rival, rival_op in rivals:
                        if rival != node and not before[node] >> rival & 1:
                            verb = "overwrites" if writes else "reads"
                            what = f"{verb} {memory.name} without waiting for op {rival_op}, which uses the same memory"
                            raise PlanError(what, plan, op, sizes.part_at(plan, side[0], element))
                    if writes:
                        last_write[cell] = (node, op)
                        readers[cell] = []
                    else:
                        readers.setdefault(cell, []).append((node, op))


def _ancestors(plan: Plan, sizes: Sizes) -> tuple[list[int], list[int]]:
    """First node of each op, and for each node (chunk of an op) the set of nodes that it waits for, as a bit mask."""
    first_node: list[int] = []
    before: list[int] = []
    for op in range(len(plan.ops)):
        first_node.append(len(before))
        deps = deps_of(plan, op)
        for chunk in range(sizes.chunks(plan, op)):
            mask = 0
            for earlier, whole in deps:
                chunks = range(sizes.chunks(plan, earlier)) if whole else (chunk,)
                for c in chunks:
                    mask |= before[first_node[earlier] + c] | 1 << (first_node[earlier] + c)
            before.append(mask)
    return first_node, before


def _check_flags(
    plan: Plan, op: int, kind: OpKind, flags: int, dst: tuple[Buf, int] | None, src: tuple[Buf, int] | None
) -> None:
    wide = bool(flags & Flag.WIDE)
    if wide and (not plan.wide or kind in (OpKind.COPY, OpKind.REDUCE)):
        raise PlanError("a wide payload where there is none", plan, op)
    if plan.wide and kind is OpKind.SEND and src and wide != (src[0] is Buf.SCRATCH):
        raise PlanError(f"WIDE is {wide} but the payload comes from {src[0].name}", plan, op)
    if plan.wide and kind is OpKind.RECV and dst and wide != (dst[0] is Buf.SCRATCH):
        raise PlanError(f"WIDE is {wide} but the payload goes to {dst[0].name}", plan, op)
    if flags & Flag.FINAL and (kind in (OpKind.SEND, OpKind.RECV) or plan.collective not in REDUCING):
        raise PlanError("FINAL on an op that reduces nothing", plan, op)


def _same_grid(plan: Plan, a: int, b: int) -> bool:
    at, other = here(plan, a), here(plan, b)
    return (space_of(plan, at[0]), *at[1:]) == (space_of(plan, other[0]), *other[1:])
