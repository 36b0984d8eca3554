"""The symbolic run of all ranks together, with one chunk of buffer for each flow."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from .ir import Buf, Flag, OpKind, Plan
from .verify_local import PlanError, deps_of, sides
from .verify_memory import Memory, Sizes, Value, combine, here, leaf
from .verify_messages import Flow, flows

Node = tuple[int, int, int]  # rank, op, chunk


class Run:
    """Executes plans chunk by chunk in random order. A flow buffers one chunk; an acknowledgement takes its time."""

    def __init__(self, plans: Sequence[Plan], sizes: Sizes, in_place: bool, rng: random.Random) -> None:
        self._plans = {plan.rank: plan for plan in plans}
        self._sizes, self._in_place, self._rng = sizes, in_place, rng
        self._shapes: dict[object, int] = {}
        self._memory: Memory = {}
        self._pinned: dict[tuple[int, int, int], int] = defaultdict(int)
        self._waits: dict[Node, int] = {}
        self._then: dict[Node, list[Node]] = defaultdict(list)
        self._buffer: dict[Flow, list[Value | None] | None] = {}
        self._queue: dict[Flow, tuple[list[Node], list[Node]]] = {}
        self._next: dict[Flow, list[int]] = {}
        self._unacked: list[Node] = []
        for plan in plans:
            self._load(plan)
            self._link(plan)
        sends, recvs = flows(plans)
        for flow in sends:
            nodes = [
                [(rank, op, c) for op in ops for c in range(sizes.chunks(self._plans[rank], op))]
                for rank, ops in ((flow[0], sends[flow]), (flow[1], recvs[flow]))
            ]
            self._queue[flow], self._next[flow] = (nodes[0], nodes[1]), [0, 0]

    def finish(self) -> Memory:
        """Run to the end; returns what every rank holds. Raises PlanError, also when it cannot end."""
        ready = [node for node, left in self._waits.items() if left == 0]
        todo = {node for node in ready if not self._in_flow(node)}
        while True:
            moves: list[tuple[str, Node]] = [("local", node) for node in sorted(todo)]
            moves += [("ack", node) for node in self._unacked]
            for flow, (out, into) in self._queue.items():
                sent, applied = self._next[flow]
                if sent < len(out) and sent == applied and self._waits[out[sent]] == 0:
                    moves.append(("send", out[sent]))
                if applied < sent and self._waits[into[applied]] == 0:
                    moves.append(("apply", into[applied]))
            if not moves:
                break
            self._rng.shuffle(moves)
            for what, node in moves:  # an event once possible stays possible, so the whole batch may go
                freed = self._event(what, node)
                todo.discard(node)
                todo.update(n for n in freed if not self._in_flow(n))
        self._check_done()
        return self._memory

    def _load(self, plan: Plan) -> None:
        for buf in Buf:
            self._memory[plan.rank, buf] = [None] * self._sizes.total(plan, buf)
        if plan.send_window is None:
            return
        first, end = self._sizes.span(plan, Buf.SEND, plan.send_window[0], plan.send_window[1] - plan.send_window[0])
        if self._in_place and plan.recv_window is not None:
            self._memory[plan.rank, Buf.SEND] = self._memory[plan.rank, Buf.RECV]
        for e in range(first, end):
            self._memory[plan.rank, Buf.SEND][e] = leaf(plan.rank, self._tag(plan, e))

    def _tag(self, plan: Plan, element: int) -> object:
        """Name of an element: its number, which in an all-to-all is counted within the block for one receiver."""
        if plan.space1 is None:
            return element
        part = self._sizes.part_at(plan, Buf.SEND, element)
        return part, element - self._sizes.span(plan, Buf.SEND, part, 1)[0]

    def _link(self, plan: Plan) -> None:
        for op in range(len(plan.ops)):
            for chunk in range(self._sizes.chunks(plan, op)):
                node = (plan.rank, op, chunk)
                self._waits[node] = 0
                for earlier, whole in deps_of(plan, op):
                    for c in range(self._sizes.chunks(plan, earlier)) if whole else (chunk,):
                        self._then[plan.rank, earlier, c].append(node)
                        self._waits[node] += 1

    def _in_flow(self, node: Node) -> bool:
        return int(self._plans[node[0]].ops[node[1]]["peer"]) >= 0

    def _event(self, what: str, node: Node) -> list[Node]:
        """Carry out one move; returns the nodes that have become ready."""
        rank, op, chunk = node
        plan = self._plans[rank]
        row = plan.ops[op]
        dst, src = sides(plan, op)
        own = [] if src is None else self._read(plan, op, chunk, src)
        if what == "send":
            flow = (rank, int(row["peer"]), int(row["lane"]))
            self._buffer[flow] = list(own)
            self._next[flow][0] += 1
            self._unacked.append(node)
            self._pin(plan, op, chunk, src, 1)
            return []
        if what == "ack":
            self._unacked.remove(node)
            self._pin(plan, op, chunk, src, -1)
        elif what == "apply":
            flow = (int(row["peer"]), rank, int(row["lane"]))
            payload, self._buffer[flow] = self._buffer[flow] or [], None
            self._next[flow][1] += 1
            values = payload if row["kind"] == OpKind.RECV else self._combine(plan, op, own, payload)
            self._write(plan, op, chunk, dst, values)
        elif row["kind"] == OpKind.COPY:
            self._write(plan, op, chunk, dst, own)
        elif dst is not None:
            self._write(plan, op, chunk, dst, self._combine(plan, op, self._read(plan, op, chunk, dst), own))
        freed = []
        for later in self._then[node]:
            self._waits[later] -= 1
            if self._waits[later] == 0:
                freed.append(later)
        return freed

    def _read(self, plan: Plan, op: int, chunk: int, side: tuple[Buf, int]) -> list[Value | None]:
        start, end = self._sizes.elements(plan, op, chunk, *side)
        values = self._memory[plan.rank, side[0]][start:end]
        if None in values:
            part = self._sizes.part_at(plan, side[0], start + values.index(None))
            raise PlanError(f"reads {side[0].name} before it is written", plan, op, part)
        return values

    def _pin(self, plan: Plan, op: int, chunk: int, src: tuple[Buf, int] | None, by: int) -> None:
        if src is not None:
            for e in range(*self._sizes.elements(plan, op, chunk, *src)):
                self._pinned[plan.rank, self._place(plan, src[0]), e] += by

    def _place(self, plan: Plan, buf: Buf) -> int:
        return Buf.RECV if self._in_place and buf is Buf.SEND and plan.recv_window is not None else buf

    def _combine(self, plan: Plan, op: int, a: list[Value | None], b: list[Value | None]) -> list[Value | None]:
        out: list[Value | None] = []
        for x, y in zip(a, b, strict=True):
            if x is None or y is None or x.terms[0][1] != y.terms[0][1]:
                raise PlanError(f"combines different elements: {x} and {y}", plan, op)
            if x.final or y.final:
                raise PlanError(f"reduces a finished value: {x} and {y}", plan, op)
            out.append(combine(x, y, self._shapes))
        return out

    def _write(
        self, plan: Plan, op: int, chunk: int, dst: tuple[Buf, int] | None, values: Sequence[Value | None]
    ) -> None:
        if dst is None:
            return
        final = bool(plan.ops[op]["flags"] & Flag.FINAL)
        memory = self._memory[plan.rank, dst[0]]
        start, end = self._sizes.elements(plan, op, chunk, *dst)
        if len(values) != end - start:
            raise PlanError(f"writes {len(values)} elements to where {end - start} belong", plan, op, dst[1])
        for e, value in enumerate(values, start):
            if value is None:
                raise PlanError("receives what was never written", plan, op)
            if self._pinned[plan.rank, self._place(plan, dst[0]), e]:
                part = self._sizes.part_at(plan, dst[0], e)
                raise PlanError("overwrites what a pending SEND still needs", plan, op, part)
            if final and (value.final or [rank for rank, _ in value.terms] != list(range(plan.nranks))):
                raise PlanError(f"FINAL on {value}", plan, op, self._sizes.part_at(plan, dst[0], e))
            if plan.wide and dst[0] is not Buf.SCRATCH and len(value.terms) > 1 and not (final or value.final):
                raise PlanError("rounds a partial sum", plan, op, self._sizes.part_at(plan, dst[0], e))
            memory[e] = value._replace(final=value.final or final)

    def _check_done(self) -> None:
        for flow, (out, into) in self._queue.items():
            sent, applied = self._next[flow]
            for node in out[sent : sent + 1] + into[applied : applied + 1]:
                plan = self._plans[node[0]]
                what = f"deadlock: chunk {node[2]} never moves ({self._waits[node]} dependencies open)"
                raise PlanError(what, plan, node[1], here(plan, node[1])[1])
