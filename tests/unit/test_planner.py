"""What the agreed health of rails changes in plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2ccl.config import Config
from r2ccl.costs import Costs
from r2ccl.errors import InvalidArgument
from r2ccl.planner import Planner, shape_of
from r2ccl.topology.cluster import Cluster
from r2ccl.topology.model import DOWN, RailInfo, RankInfo
from r2ccl.types import Collective, DType, ReduceOp

RAILS = 4
WHOLE = bytes([255]) * RAILS


def cluster(hosts: int, ranks: int) -> Cluster:
    rails = tuple(
        RailInfo(f"rail{i}", i, f"10.{i}.0.1", 24, 4, f"10.{i}.0.0/24", speed_mbps=100_000) for i in range(RAILS)
    )
    return Cluster.of([RankInfo(r, f"h{r // ranks}", f"n{r // ranks}", 1, "", rails) for r in range(hosts * ranks)])


def test_a_rail_is_lost_when_no_rank_of_the_host_has_it() -> None:
    shape = shape_of(cluster(2, 2), Config(), 8)
    assert shape.host_gbs == (50.0, 50.0)
    dead = bytes([255, 0, 255, 255])
    assert shape_of(cluster(2, 2), Config(), 8, dead + WHOLE + WHOLE + WHOLE).host_gbs == (50.0, 50.0)
    assert shape_of(cluster(2, 2), Config(), 8, dead + dead + WHOLE + WHOLE).host_gbs == (37.5, 50.0)


def test_measured_costs_count() -> None:
    costs = Costs(alpha_net_us=7.0, shm_gbs=11.0, wire_share=0.5)
    shape = shape_of(cluster(2, 2), Config(), 8, bytes([255, 0, 255, 255]) * 2 + WHOLE * 2, costs)
    assert shape.host_gbs == (18.75, 25.0)
    assert shape.undamaged.host_gbs == (25.0, 25.0)
    assert (shape.alpha_net_us, shape.shm_gbs) == (7.0, 11.0)
    planner = Planner(0, cluster(2, 1), Config(), 8, RAILS, costs)
    planner.renew(1, WHOLE * 2)
    assert planner.shape.host_gbs == (25.0, 25.0)


def test_a_file_of_costs() -> None:
    costs = Costs(alpha_net_us=7.0, wire_share=0.5)
    assert Costs.from_json(costs.to_json(), "here") == costs
    assert Costs.from_json('{"shm_gbs": 3}', "here") == Costs(shm_gbs=3)
    for text, message in (
        ("{", "here is not JSON"),
        ("[1]", "here: a JSON object with the fields alpha_net_us"),
        ('{"beta": 1}', "here: a JSON object with the fields"),
        ('{"shm_gbs": -1}', "shm_gbs = -1 must be a number"),
        ('{"shm_gbs": "fast"}', "shm_gbs = 'fast' must be a number"),
        ('{"shm_gbs": NaN}', "shm_gbs = nan must be a number"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            Costs.from_json(text, "here")


def test_a_host_without_rails_counts_for_nearly_nothing() -> None:
    shape = shape_of(cluster(2, 1), Config(), 8, bytes(RAILS) + WHOLE)
    assert 0 < shape.host_gbs[0] < 0.1


def test_what_is_down_at_the_start_is_lost_until_health_is_agreed() -> None:
    whole = cluster(3, 1)
    rails = tuple(replace(rail, state=DOWN) if rail.index == 1 else rail for rail in whole.ranks[0].rails)
    started = Cluster.of([replace(whole.ranks[0], rails=rails), *whole.ranks[1:]])
    shape = shape_of(started, Config(), 8)
    assert shape.host_gbs == (37.5, 50.0, 50.0)
    assert shape.undamaged.host_gbs == (50.0, 50.0, 50.0)
    assert shape_of(started, Config(), 8, WHOLE * 3).host_gbs == (50.0, 50.0, 50.0)


def test_plans_follow_the_health_there_and_back() -> None:
    call = (Collective.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, 64 << 20, -1, False, False, -1)
    damaged = bytes([255, 0, 255, 255]) + WHOLE * 2
    for deterministic in (False, True):
        planner = Planner(0, cluster(3, 1), Config(deterministic=deterministic), 8, RAILS)
        names = [planner(*call).algorithm]
        for epoch, health in enumerate((damaged, WHOLE * 3), 1):
            planner.renew(epoch, health)
            names.append(planner(*call).algorithm)
        assert names == [names[0], names[0] if deterministic else "tree_packing", names[0]]
        assert names[0] != "tree_packing"


@pytest.mark.parametrize(("level", "slow"), [(255, False), (1, True), (0, False)])
def test_chunks_are_smaller_where_a_rail_is_slow(level: int, slow: bool) -> None:
    """The levels: ``SpeedClass`` in flow/rate.h; 0: lost."""
    made = {}
    for deterministic in (False, True):
        planner = Planner(0, cluster(2, 1), Config(deterministic=deterministic), 8, RAILS)
        call = (Collective.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, 64 << 20, -1, False, False, -1)
        before = planner(*call).chunk_bytes
        planner.renew(1, WHOLE + bytes([255, level, 255, 255]))
        made[deterministic] = (before, planner(*call).chunk_bytes)
    assert made[False] == made[True] == (256 << 10, (128 if slow else 256) << 10)
