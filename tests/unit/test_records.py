"""What the C headers, the Cython module and the Python modules each state is the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from r2ccl import errors
from r2ccl._native import core
from r2ccl.observe.events import Cause, EventKind
from r2ccl.observe.records import RECORD, TraceKind
from r2ccl.plan import ir
from r2ccl.types import LOW_PRECISION, NUMPY_OF, Collective, DType, ReduceOp

ROOT = Path(__file__).resolve().parents[2]
C_TYPES = {"uint8_t": "u1", "uint16_t": "<u2", "int32_t": "<i4", "uint32_t": "<u4", "uint64_t": "<u8"}


def source(path: str) -> str:
    """A file of the repository, without // comments."""
    return re.sub(r"//[^\n]*", "", (ROOT / path).read_text())


PLAN_H = source("include/r2ccl/plan.h")
R2CCL_H = source("include/r2ccl/r2ccl.h")
DEVICE_H = source("src/r2ccl/_native/device/device.h")
TRACE_H = source("src/r2ccl/_native/exec/trace.h")
EVENT_LOG_H = source("src/r2ccl/_native/exec/event_log.h")
SIGHT_CC = source("src/r2ccl/_native/exec/sight.cc")


def struct_of(text: str, name: str) -> np.dtype:
    """The structure as NumPy lays it out by C's rules."""
    found = re.search(rf"struct {name} \{{(.*?)\}}", text, re.S)
    assert found, name
    members = re.findall(r"(\w+)\s+(\w+)(?:\[(\d+)\])?;", found[1])
    fields = [(member, C_TYPES[kind], (int(n),)) if n else (member, C_TYPES[kind]) for kind, member, n in members]
    return np.dtype(fields, align=True)


def enum_of(text: str, name: str) -> dict[str, int]:
    """Enumerators with their values, counted up where none is given."""
    found = re.search(rf"enum (?:class )?{name}\b[^{{]*\{{(.*?)\}}", text, re.S)
    assert found, name
    values: dict[str, int] = {}
    for item in filter(None, (piece.strip() for piece in found[1].split(","))):
        member, _, value = (part.strip() for part in item.partition("="))
        values[member] = int(value) if value else len(values)
    return values


def strings_of(text: str, name: str) -> list[str]:
    found = re.search(rf"{name}\[\] = \{{(.*?)\}};", text, re.S)
    assert found, name
    return re.findall(r'"(\w+)"', found[1])


def snake(name: str) -> str:
    """kFloat8E4m3fn -> FLOAT8_E4M3FN, kEventLinkDown -> EVENT_LINK_DOWN."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removeprefix("k")).upper()


def test_plan_records() -> None:
    for name, ours in (("r2ccl_op", ir.OP), ("r2ccl_dep", ir.DEP)):
        theirs = struct_of(PLAN_H, name)
        assert theirs.itemsize == ours.itemsize
        assert [n.lstrip("_") for n in ours.names or ()] == list(theirs.names or ())
        for mine, other in zip(ours.names or (), theirs.names or (), strict=True):
            assert ours.fields and theirs.fields
            assert ours.fields[mine][:2] == theirs.fields[other][:2], mine


def test_plan_numbers() -> None:
    assert enum_of(PLAN_H, "r2ccl_op_kind") == {f"R2CCL_{k.name}": k.value for k in ir.OpKind}
    assert enum_of(PLAN_H, "r2ccl_buf") == {f"R2CCL_BUF_{b.name}": b.value for b in ir.Buf}
    assert enum_of(PLAN_H, "r2ccl_flag") == {f"R2CCL_{f.name}": f.value for f in ir.Flag if f}


def test_status_codes() -> None:
    listed = re.findall(r'X\((\w+), (\d+), "(\w*)"\)', R2CCL_H)
    assert [int(number) for _, number, _ in listed] == list(range(len(listed)))
    assert len(listed) > 5
    assert core.STATUS == {name: getattr(errors, cls) if cls else None for name, _, cls in listed}
    classes = {c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.R2cclError)}
    # Raised by Python before there is a core, so they have no code.
    start_only = {errors.R2cclError, errors.BootstrapError, errors.NoRails}
    assert {cls for cls in core.STATUS.values() if cls} == classes - start_only


def test_dtypes() -> None:
    theirs = enum_of(DEVICE_H, "DType")
    assert theirs.pop("kCount") == len(DType)
    assert {snake(k): v for k, v in theirs.items()} == {d.name: d.value for d in DType}
    assert strings_of(SIGHT_CC, "kTypes") == [d.name.lower() for d in DType]
    assert set(NUMPY_OF) == set(DType)
    assert all(str(NUMPY_OF[d]) == d.name.lower() for d in DType)
    assert {d for d in DType if NUMPY_OF[d].itemsize <= 2 and "FLOAT" in d.name} == LOW_PRECISION


def test_operators() -> None:
    theirs = enum_of(DEVICE_H, "ReduceOp")
    assert theirs.pop("kCount") == len(ReduceOp)
    assert {snake(k): v for k, v in theirs.items()} == {o.name: o.value for o in ReduceOp}
    assert strings_of(SIGHT_CC, "kOps") == [o.name.lower() for o in ReduceOp]


def test_collectives() -> None:
    assert strings_of(SIGHT_CC, "kCollectives") == [c.name.lower() for c in Collective]
    assert [c.value for c in Collective] == list(range(len(Collective)))


def test_constants_of_the_edge() -> None:
    """core.pyx spells out the numbers that it looks at."""
    text = (ROOT / "src/r2ccl/_native/core.pyx").read_text()
    known = {c.name: c.value for c in Collective} | {o.name: o.value for o in ReduceOp}
    spelt = {name: int(value) for name, value in re.findall(r"^    ([A-Z_]+) = (\d+)$", text, re.M)}
    assert {name: value for name, value in spelt.items() if name in known}.items() <= known.items()
    assert {c.name for c in Collective} <= spelt.keys()


def test_events() -> None:
    ours = {f"EVENT_{k.name}": k.value for k in EventKind}
    assert {snake(k): v for k, v in enum_of(EVENT_LOG_H, "EventKind").items()} == ours
    causes = {f"CAUSE_{c.name}": c.value for c in Cause if c is not Cause.NONE}
    assert {snake(k): v for k, v in enum_of(EVENT_LOG_H, "SuspicionCause").items()} == causes


def test_trace_records() -> None:
    assert struct_of(R2CCL_H, "r2ccl_trace_record") == RECORD
    ours = {f"TRACE_{k.name}": k.value for k in TraceKind}
    assert {snake(k): v for k, v in enum_of(TRACE_H, "TraceKind").items()} == ours
