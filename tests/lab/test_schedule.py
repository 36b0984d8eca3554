"""The grammar of ``--fault``; needs no rights."""

from __future__ import annotations

import pytest

from r2ccl.errors import InvalidArgument
from r2ccl.lab import KINDS, MGMT, ScheduledFault, parse_fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t=2s host=0 rail=1 down", {"kind": "down", "host": 0, "rail": 1, "at_s": 2.0}),
        ("t=500ms host=1 rail=2 loss 30", {"kind": "loss", "host": 1, "rail": 2, "at_s": 0.5, "arguments": (30.0,)}),
        ("t=0s host=1 rail=2 loss 0.5%", {"kind": "loss", "host": 1, "rail": 2, "at_s": 0.0, "arguments": (0.5,)}),
        (
            "t=2s host=0 rail=1 rate 50mbit",
            {"kind": "rate", "host": 0, "rail": 1, "at_s": 2.0, "arguments": ("50mbit",)},
        ),
        ("t=3s host=0 rail=1 flap 200ms 5", {"kind": "flap", "host": 0, "rail": 1, "at_s": 3.0, "arguments": (0.2, 5)}),
        ("flap 1.5s t=3s rail=1 host=0", {"kind": "flap", "host": 0, "rail": 1, "at_s": 3.0, "arguments": (1.5,)}),
        ("t=6s host=0 rail=1 heal", {"kind": "heal", "host": 0, "rail": 1, "at_s": 6.0}),
        ("t=6s heal", {"kind": "heal", "host": None, "rail": None, "at_s": 6.0}),
        ("t=1s rail=2 switch", {"kind": "switch", "host": None, "rail": 2, "at_s": 1.0}),
        ("t=1s host=1 rail=mgmt blackhole", {"kind": "blackhole", "host": 1, "rail": MGMT, "at_s": 1.0}),
        (
            "on='step 3' host=0 rail=0 reset for=1s",
            {"kind": "reset", "host": 0, "rail": 0, "on": "step 3", "for_s": 1.0},
        ),
        (
            "on='step 3' after=80ms host=0 rail=0 down",
            {"kind": "down", "host": 0, "rail": 0, "on": "step 3", "after_s": 0.08},
        ),
    ],
)
def test_reads(text: str, expected: dict) -> None:
    assert parse_fault(text, hosts=2, rails=3) == ScheduledFault(text=text, **expected)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("host=0 rail=1 down", "t=TIME"),
        ("t=1s on=x host=0 rail=1 down", "t=TIME"),
        ("t=2 host=0 rail=1 down", "'2' is no duration"),
        ("t=1s host=2 rail=1 down", "host=2: this fabric has host=0 to host=1"),
        ("t=1s host=0 rail=x down", "rail=x: this fabric has rail=0 to rail=2"),
        ("t=1s rail=0 down", "host= is missing"),
        ("t=1s host=0 rail=0", "no kind"),
        ("t=1s host=0 rail=0 blackhol", "did you mean 'blackhole'"),
        ("t=1s host=0 rail=0 explode", "Allowed: down, port-down"),
        ("t=1s host=0 rail=0 loss", "loss PERCENT"),
        ("t=1s host=0 rail=0 loss 130", "'130' is no percentage"),
        ("t=1s host=0 rail=0 rate fast", "'fast' is no rate"),
        ("t=1s host=0 rail=0 rate 0mbit", "'0mbit' is no rate"),
        ("t=1s host=0 rail=0 flap 1s 0", "'0' is no count"),
        ("t=1s host=0 rail=0 down now", "'now'; it is written: down"),
        ("t=1s host=0 rail=0 heal for=1s", "for="),
        ("t=1s host=0 nic=0 down", "unknown word 'nic=0'"),
        ("t=1s t=2s host=0 rail=0 down", "t= is given twice"),
        ("t= host=0 rail=0 down", "'t=' has no value"),
        ("on='step host=0 rail=0 down", "quotes"),
        ("t=1s after=2s host=0 rail=0 down", "after="),
        ("on=x after=2 host=0 rail=0 down", "after='2' is no duration"),
    ],
)
def test_refuses_and_names_the_word(text: str, named: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_fault(text, hosts=2, rails=3)
    assert named in str(refused.value)
    assert text in str(refused.value)


def test_usage_shows_every_kind() -> None:
    assert {kind.usage.split()[0] for kind in KINDS.values()} == set(KINDS)
    assert KINDS["flap"].usage == "flap TIME [COUNT]"
