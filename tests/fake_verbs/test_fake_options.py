"""What queue pairs agree on beyond what every device can, and how their packets are marked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_fake_devices import assert_struck, lines, under

pytestmark = pytest.mark.timeout(60)


def connected(log: Path) -> list[tuple[int, int, int]]:
    """(options, service level, traffic class) of every queue pair that was connected."""
    pattern = r"connects: options=(\d+) service_level=(\d+) traffic_class=(\d+)"
    return [(int(m[1]), int(m[2]), int(m[3])) for m in (re.search(pattern, line) for line in lines(log)) if m]


@pytest.mark.parametrize(
    ("first", "second", "agreed"), [(7, 7, 7), (7, 5, 5), (5, 7, 5), (6, 5, 4), (7, 0, 0), (0, 7, 0), (0, 0, 0)]
)
def test_both_ends_have_the_options_that_both_devices_can_do(
    first: int, second: int, agreed: int, over_fake_verbs: Path
) -> None:
    """A fake queue pair reads nothing from one with other options: so results prove that both have the same."""
    script = ";".join(f"rank={rank} kind=options status={can}" for rank, can in enumerate((first, second)) if can)
    seen = under(script)
    assert all(s.states == ["up", "up"] for s in seen)
    assert {options for options, _, _ in connected(over_fake_verbs)} == {agreed}
    assert not [event for s in seen for event in s.events if event.kind.name == "LINK_SUSPECT"]


@pytest.mark.parametrize("refuses", [0, 1])
def test_a_device_that_refuses_what_it_offered_does_without(refuses: int, over_fake_verbs: Path) -> None:
    """The end that chooses goes on without options at once; the other one makes a new queue pair, which offers none."""
    seen = under(f"kind=options status=3; rank={refuses} kind=no-options", back=True)
    assert_struck(over_fake_verbs, "no-options")
    assert all(s.states == ["up", "up"] for s in seen)
    assert connected(over_fake_verbs)[-1][0] == 0


def test_packets_are_marked_as_the_settings_say(over_fake_verbs: Path) -> None:
    under("", rdma_service_level=5, rdma_traffic_class=106)
    assert {(level, traffic) for _, level, traffic in connected(over_fake_verbs)} == {(5, 106)}
