"""Which rail goes with which: same network first, never across separate ones, and alike from both ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.topology import RailInfo, pair_rails
from r2ccl.topology.model import fabric_of
from r2ccl.topology.pairing import addresses_of


def rail(index: int, address: str, bits: int = 24, name: str = "", routed: bool = False, others: str = "") -> RailInfo:
    family = 6 if ":" in address else 4
    more = tuple(others.split()) if others else ()
    return RailInfo(name or f"eth{index}", index, address, bits, family, fabric_of(address, bits), more, routed=routed)


def loopback(count: int, first: int = 1) -> list[RailInfo]:
    return [
        RailInfo(f"127.0.0.{first + k}", k, f"127.0.0.{first + k}", 32, 4, f"loopback/{k}", ifindex=1)
        for k in range(count)
    ]


def both_ways(a: list[RailInfo], b: list[RailInfo], same_machine: bool | None = False) -> list[tuple[int, int]]:
    pairs = pair_rails(a, b, same_machine=same_machine)
    assert sorted((i, j) for j, i in pair_rails(b, a, same_machine=same_machine)) == pairs
    return pairs


def test_case_15_other_names_orders_and_counts_are_paired_by_network() -> None:
    a = [rail(0, "10.0.1.1"), rail(1, "10.0.2.1"), rail(2, "10.0.3.1")]
    b = [rail(0, "10.0.3.2", name="ib0"), rail(1, "10.0.1.2", name="ib1")]
    assert both_ways(a, b) == [(0, 1), (2, 0)]


def test_case_36_separate_networks_are_never_crossed() -> None:
    assert both_ways([rail(0, "10.0.1.1")], [rail(0, "10.0.2.2")]) == []
    a = [rail(0, "10.0.1.1"), rail(1, "10.0.2.1")]
    b = [rail(0, "10.0.1.2"), rail(1, "10.0.3.2")]
    assert both_ways(a, b) == [(0, 0)]


def test_one_flat_network_is_paired_by_name_then_in_order() -> None:
    a = [rail(0, "10.0.0.1", name="x"), rail(1, "10.0.0.2", name="y"), rail(2, "10.0.0.3", name="z")]
    b = [rail(0, "10.0.0.4", name="y"), rail(1, "10.0.0.5", name="q")]
    assert both_ways(a, b) == [(0, 1), (1, 0)]


def test_case_12_equal_addresses_of_different_machines_do_not_meet() -> None:
    a, b = [rail(0, "172.17.0.1", 16)], [rail(0, "172.17.0.1", 16)]
    assert both_ways(a, b) == []
    assert both_ways(a, b, None) == []
    assert both_ways(a, b, True) == [(0, 0)]  # two ranks of one host, over their own NIC


def test_routed_point_to_point_rails_are_paired_by_name_or_in_order() -> None:
    a = [rail(0, "10.9.0.1", 31, "e0"), rail(1, "10.9.0.3", 31, "e1"), rail(2, "10.9.0.5", 31, "e2")]
    b = [rail(0, "10.9.1.1", 31, "e0"), rail(1, "10.9.1.5", 31, "e2")]
    assert both_ways(a, b) == [(0, 0), (2, 1)]
    elsewhere = [rail(i, f"10.8.0.{2 * i + 1}", 31, f"p{i}") for i in range(3)]
    assert both_ways(a, elsewhere) == [(0, 0), (1, 1), (2, 2)]
    # One rail of e0's network matched and other counts: guessing would cross networks.
    c = [rail(0, "10.0.0.1"), rail(1, "10.1.0.1", routed=True, name="g1")]
    d = [rail(0, "10.0.0.2"), rail(1, "10.2.0.1", routed=True, name="h1"), rail(2, "10.3.0.1", routed=True, name="h2")]
    assert both_ways(c, d) == [(0, 0)]


def test_case_18_mixed_families_meet_in_a_common_one_or_not_at_all() -> None:
    dual = rail(0, "10.0.0.1", others="fd00::1/64")
    assert both_ways([dual], [rail(0, "fd00::2", 64)]) == [(0, 0)]
    assert addresses_of(dual, rail(0, "fd00::2", 64)) == ("fd00::1", "fd00::2")
    assert both_ways([rail(0, "10.0.0.1", routed=True)], [rail(0, "fd00::2", 64, routed=True)]) == []


def test_loopback_rails_are_paired_by_order_on_one_machine_only() -> None:
    assert both_ways(loopback(3), loopback(2, first=7), True) == [(0, 0), (1, 1)]
    assert both_ways(loopback(3), loopback(3), None) == [(0, 0), (1, 1), (2, 2)]
    assert both_ways(loopback(3), loopback(3), False) == []


ADDRESSES = st.sampled_from([f"10.0.{net}.{host}" for net in range(4) for host in (1, 2, 3)])
RAILS = st.lists(st.tuples(ADDRESSES, st.sampled_from([24, 31]), st.sampled_from("abcd"), st.booleans()), max_size=6)


@given(RAILS, RAILS, st.sampled_from([None, True, False]))
@settings(max_examples=200, deadline=None)
def test_both_ends_compute_the_same_pairs_and_use_each_rail_once(
    a: list[tuple[str, int, str, bool]], b: list[tuple[str, int, str, bool]], same_machine: bool | None
) -> None:
    mine = [rail(i, *values) for i, values in enumerate(a)]
    theirs = [rail(i, *values) for i, values in enumerate(b)]
    pairs = both_ways(mine, theirs, same_machine)
    assert len({i for i, _ in pairs}) == len(pairs) == len({j for _, j in pairs})


@pytest.mark.parametrize("count", [1, 8, 64])
def test_any_number_of_rails(count: int) -> None:
    a = [rail(i, f"10.{i}.0.1") for i in range(count)]
    b = [rail(i, f"10.{i}.0.2") for i in range(count)]
    assert both_ways(a, b) == [(i, i) for i in range(count)]
