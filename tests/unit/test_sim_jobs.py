"""Collectives by method, training, serving and random failures, against what can be worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from r2ccl.errors import InvalidArgument
from r2ccl.sim.cluster import Cluster
from r2ccl.sim.collective import METHODS, collective_s, p2p_s
from r2ccl.sim.montecarlo import Spread, all_reduce_spread, patterns, spread
from r2ccl.sim.run import bound_ratio, paper_ratio
from r2ccl.sim.serving import Instance, Serving
from r2ccl.sim.training import Job, Training

CLUSTER = Cluster(servers=4, gpus=4, nics=4, nic_gbs=10.0, inside_gbs=1e6, alpha_us=1.0, alpha_inside_us=0.0)
NBYTES = 64e6
TRAINING = Training(1e9, 2048, 1024, tensor=1, pipeline=1, data=16, batch_tokens=1e5, tokens_per_s=1e5)
SERVING = Serving(7e9, 32, 4096, tensor=4, pipeline=4, rate=1.0, prompt=512, output=16, requests=60, fail_at_s=20.0)


def ratio(method: str, failures: dict[int, int], cluster: Cluster = CLUSTER) -> float:
    clean = collective_s(cluster, cluster.lost_of({}), NBYTES, method).seconds
    return collective_s(cluster, cluster.lost_of(failures), NBYTES, method).seconds / clean


@pytest.mark.parametrize("lost", [1, 2])
def test_hot_repair_doubles_and_balance_divides_by_what_is_left(lost: int) -> None:
    assert ratio("hot_repair", {0: lost}) == pytest.approx(2.0, rel=0.02)
    assert ratio("balance", {0: lost}) == pytest.approx(4 / (4 - lost), rel=0.02)


def test_three_of_four_nics_lost_leave_one_for_all() -> None:
    assert ratio("hot_repair", {0: 3}) == pytest.approx(4.0, rel=0.02)
    assert CLUSTER.share_on_backups(3) == CLUSTER.share_left(3) == 0.25


@pytest.mark.parametrize("method", METHODS)
def test_no_method_beats_the_bound(method: str) -> None:
    for failures in ({0: 1}, {0: 2}, {0: 1, 1: 1}):
        clean = NBYTES / 4 * 1.5 / 10e9  # a column over four servers: 2 (n - 1) / n of it
        least = bound_ratio(CLUSTER, CLUSTER.lost_of(failures)) * clean
        assert collective_s(CLUSTER, CLUSTER.lost_of(failures), NBYTES, method).seconds >= least * (1 - 1e-6)


def test_which_server_is_damaged_makes_no_difference() -> None:
    assert CLUSTER.lost_of({0: 1, 2: 2}) == CLUSTER.lost_of({3: 1, 1: 2}) == (2, 1, 0, 0)


def test_published_closed_form_of_the_artefact() -> None:
    """n = 6 and X = 1/3: the values of its model."""
    got = [paper_ratio(6, 1 / 3, k) for k in (1, 2, 4, 8, 16)]
    assert got == pytest.approx([1.600, 1.450, 1.375, 1.338, 1.319], abs=1e-3)


@pytest.mark.parametrize(
    ("n", "x", "bound"), [(3, 1, 1.125), (4, 1, 1.032), (4, 2, 1.067), (8, 1, 1.016), (64, 1, 1.002)]
)
def test_bound_of_one_damaged_server(n: int, x: int, bound: float) -> None:
    nics = 3 if n == 3 else 8
    cluster = replace(CLUSTER, servers=n, nics=nics)
    assert bound_ratio(cluster, cluster.lost_of({0: x})) == pytest.approx(bound, abs=5e-4)


def test_a_message_takes_latency_and_wire() -> None:
    assert p2p_s(CLUSTER, 1, 3e6) == pytest.approx(1e-6 + 3e6 / 30e9)
    assert p2p_s(CLUSTER, 1, 3e6, "hot_repair") == pytest.approx(1e-6 + 3e6 / 20e9)


def test_extra_time_of_training_is_that_of_its_all_reduce() -> None:
    job = Job(CLUSTER, TRAINING)
    clean = job.healthy("balance")
    assert clean.tokens_per_s == pytest.approx(1e5)
    assert job.extra("balance", {0: 1}) == pytest.approx(clean.all_reduce_s / clean.seconds / 3, rel=0.03)
    assert 0 < job.extra("r2ccl", {0: 1}) < job.extra("balance", {0: 1}) < job.extra("hot_repair", {0: 1})


def test_a_given_share_of_the_network_replaces_the_modelled_one() -> None:
    job = Job(CLUSTER, replace(TRAINING, exposed=0.3))
    assert job.healthy("balance").all_reduce_s == pytest.approx(0.3)
    assert job.extra("balance", {0: 1}) == pytest.approx(0.1, rel=0.03)
    hidden = Job(CLUSTER, replace(TRAINING, overlap=1.0))
    assert hidden.extra("hot_repair", {0: 1}) == pytest.approx(0.0, abs=1e-9)


def test_adapcc_loses_a_rank_or_the_job() -> None:
    job = Job(CLUSTER, replace(TRAINING, overlap=1.0))
    assert job.extra("adapcc", {0: 1}) == pytest.approx(1 / 15)
    one_replica = Job(CLUSTER, replace(TRAINING, tensor=4, pipeline=4, data=1))
    assert one_replica.extra("adapcc", {0: 1}) == float("inf")
    assert one_replica.extra("r2ccl", {0: 1}) < 0.01


def test_a_job_must_fit_its_cluster() -> None:
    with pytest.raises(InvalidArgument, match="must be 16 GPUs"):
        Job(CLUSTER, replace(TRAINING, data=8))
    with pytest.raises(InvalidArgument, match="must be 16 GPUs"):
        Instance(CLUSTER, replace(SERVING, tensor=8))


def test_an_idle_instance_answers_at_the_speed_of_its_steps() -> None:
    instance = Instance(CLUSTER, replace(SERVING, rate=0.01, requests=5, fail_at_s=1e9))
    got = instance.run()
    assert got.ttft_s == pytest.approx(instance.prefill_s("r2ccl", 0))
    assert got.tpot_s == pytest.approx(instance.decode_s(1, "r2ccl", 0))


def test_serving_is_repeatable_and_a_restart_costs_more_than_a_repair() -> None:
    instance = Instance(CLUSTER, SERVING)
    clean = instance.run()
    assert clean == instance.run()
    total = [instance.request_s(instance.run(m, {0: 1})) for m in ("r2ccl", "hot_repair", "dejavu", "vanilla")]
    assert instance.request_s(clean) <= total[0] * (1 + 1e-3)
    assert total == sorted(total) and total[0] < total[1] < total[2] < total[3]


def test_random_failures_have_a_fixed_seed_and_leave_every_server_a_nic() -> None:
    found = patterns(CLUSTER, 5, 200, seed=7)
    assert found == patterns(CLUSTER, 5, 200, seed=7) != patterns(CLUSTER, 5, 200, seed=8)
    assert found.total() == 200
    assert all(sum(hit) == 5 and max(hit) < 4 and list(hit) == sorted(hit, reverse=True) for hit in found)
    with pytest.raises(InvalidArgument, match="keep one each"):
        patterns(CLUSTER, 13, 1, seed=1)


def test_one_failure_of_balance_is_no_spread_at_all() -> None:
    got = all_reduce_spread(CLUSTER, NBYTES, "balance", patterns(CLUSTER, 1, 50, seed=1), steps=400)
    assert [got.mean, got.median, got.p95, got.worst] == pytest.approx([1 / 3] * 4, rel=0.03)


def test_statistics() -> None:
    value = {(1,): 1.0, (2,): 5.0}
    assert spread(value, Counter({(1,): 98, (2,): 2})) == Spread(1.08, 1.0, 1.0, 5.0)
