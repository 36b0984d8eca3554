"""Runs a scenario: one table each."""

from __future__ import annotations

from ..plan.bounds import connected_bound
from ..types import Collective
from .cluster import Cluster
from .collective import Timing, collective_s, ideal_s
from .montecarlo import all_reduce_spread, job_spread, patterns
from .scenario import Failure, Scenario
from .serving import Instance
from .tables import Cell, Table
from .training import Job

STEPS = 400  # of a collective where many are simulated


def run(scenario: Scenario) -> Table:
    """Simulate everything that the scenario names."""
    table = {"collective": _collective, "training": _training, "serving": _serving, "montecarlo": _montecarlo}
    return table[scenario.kind](scenario)


def _collective(s: Scenario) -> Table:
    assert s.call is not None
    which = Collective[s.call.collective.upper()]
    clean = s.cluster.lost_of({})
    rows: list[tuple[Cell, ...]] = []
    for failure in s.failures:
        lost = s.cluster.lost_of(failure.lost)
        for method in s.methods:
            healthy = collective_s(s.cluster, clean, s.call.bytes, method, which)
            after = collective_s(s.cluster, lost, s.call.bytes, method, which)
            ratio = _network(s, after, which) / _network(s, healthy, which)
            how = f"{after.algorithm}, {after.how}"
            rows.append((failure.name, method, ratio, *_beside(s, failure, method, ratio), 1e3 * after.seconds, how))
            ideal = ideal_s(method, tuple(map(s.cluster.share_left, lost)), 1.0)
            if after.how == "flows" and ideal is not None:
                best = 1e9 * ideal / connected_bound([1.0] * len(lost))
                rows.append((failure.name, f"{method} ideal", best, None, None, None, "closed form, many pieces"))
        for k in s.call.pieces if sum(k > 0 for k in lost) == 1 else ():
            name, ratio = (
                f"r2ccl_allreduce K={k}",
                paper_ratio(s.call.flat_ranks, 1 - s.cluster.share_left(max(lost)), k),
            )
            rows.append(
                (failure.name, name, ratio, *_beside(s, failure, name, ratio), None, "closed form of the paper")
            )
        if which is Collective.ALL_REDUCE:
            rows.append((failure.name, "lower bound", bound_ratio(s.cluster, lost), None, None, None, "formula"))
    columns = ("failure", "method", "T / T_healthy", "published", "difference", "ms", "how")
    return Table(s.name, s.title, columns, tuple(rows), "T / T_healthy", _notes(s))


def paper_ratio(n: int, x: float, k: int) -> float:
    """R2CCL-AllReduce in k pieces on a ring of n, one member having lost the fraction x (arXiv 2512.25059, Y = X)."""
    return 1 + (1 + 1 / k) * n * x / (2 * (n - 1) * (1 - x))


def bound_ratio(cluster: Cluster, lost: tuple[int, ...]) -> float:
    """Least possible time of an all-reduce between servers, relative to that of the undamaged cluster."""
    return connected_bound([cluster.share_left(k) for k in lost]) / connected_bound([1.0] * len(lost))


def _network(s: Scenario, timing: Timing, which: Collective) -> float:
    """Without what moves inside the servers, so that ratios are those of the network."""
    assert s.call is not None
    return timing.seconds - collective_s(s.cluster, (0,), s.call.bytes, collective=which).seconds


def _training(s: Scenario) -> Table:
    assert s.training is not None
    job = Job(s.cluster, s.training, s.costs)
    healthy = job.healthy()
    rows: list[tuple[Cell, ...]] = [
        (
            "none",
            "r2ccl",
            None,
            None,
            None,
            healthy.tokens_per_s,
            healthy.seconds,
            healthy.all_reduce_s,
            0.0,
            healthy.how,
        )
    ]
    for failure in s.failures:
        for method in s.methods:
            after, extra = job.after(method, failure.lost), 100 * job.extra(method, failure.lost)
            once = s.costs.once_s(method)
            beside = _beside(s, failure, method, extra)
            now = (after.tokens_per_s, after.seconds, after.all_reduce_s)
            rows.append((failure.name, method, extra, *beside, *now, once, after.how))
    columns = (
        "failure",
        "method",
        "extra %",
        "published",
        "difference",
        "tokens/s",
        "iteration s",
        "all-reduce s",
        "once s",
        "how",
    )
    return Table(s.name, s.title, columns, tuple(rows), "extra %", _notes(s))


def _serving(s: Scenario) -> Table:
    assert s.serving is not None
    instance = Instance(s.cluster, s.serving, s.costs)
    rows: list[tuple[Cell, ...]] = []
    clean = instance.run()
    rows.append(
        ("none", "r2ccl", None, None, None, None, 1e3 * clean.ttft_s, 1e3 * clean.ttft_p95_s, 1e3 * clean.tpot_s, 0.0)
    )
    for failure in s.failures:
        for method in s.methods:
            own = instance.run(method)
            got = instance.run(method, failure.lost)
            ttft, tpot = 100 * (got.ttft_s / own.ttft_s - 1), 100 * (got.tpot_s / own.tpot_s - 1)
            total = 100 * (instance.request_s(got) / instance.request_s(own) - 1)
            once = s.costs.serving_s(method)
            times = (1e3 * got.ttft_s, 1e3 * got.ttft_p95_s, 1e3 * got.tpot_s)
            rows.append((failure.name, method, total, ttft, tpot, s.published_of(failure.name, method), *times, once))
    columns = (
        "failure",
        "method",
        "request %",
        "TTFT %",
        "TPOT %",
        "published",
        "TTFT ms",
        "p95 ms",
        "TPOT ms",
        "once s",
    )
    return Table(s.name, s.title, columns, tuple(rows), "request %", _notes(s))


def _montecarlo(s: Scenario) -> Table:
    assert s.draws is not None
    found = patterns(s.cluster, s.draws.failures, s.draws.draws, s.draws.seed)
    case = Failure(f"{s.draws.failures} at random", {})
    rows: list[tuple[Cell, ...]] = []
    for method in s.methods:
        if s.training is not None:
            job = Job(s.cluster, s.training, s.costs, STEPS)
            got = job_spread(job, method, found)
            mean = 100 * got.mean
            parts = (100 * got.median, 100 * got.p95, 100 * got.worst)
            rows.append(("job", method, mean, *_beside(s, case, method, mean), *parts))
        if s.call is not None and method != "adapcc":
            got = all_reduce_spread(s.cluster, s.call.bytes, method, found, STEPS)
            rows.append(
                ("all-reduce", method, 100 * got.mean, None, None, *(100 * v for v in (got.median, got.p95, got.worst)))
            )
    columns = ("of", "method", "mean extra %", "published", "difference", "median %", "p95 %", "worst %")
    most = "; ".join(f"{list(hit)} x {number}" for hit, number in found.most_common(4))
    drawn = f"{s.draws.draws} draws (seed {s.draws.seed}); NICs lost per damaged server: {most}; {len(found)} patterns"
    return Table(s.name, s.title, columns, tuple(rows), "mean extra %", (*_notes(s), drawn))


def _beside(s: Scenario, failure: Failure, method: str, value: float) -> tuple[Cell, Cell]:
    """(published, difference)."""
    published = s.published_of(failure.name, method)
    return published, None if published is None else value - published


def _notes(s: Scenario) -> tuple[str, ...]:
    c = s.cluster
    hardware = (
        f"{c.servers} servers x {c.gpus} GPUs x {c.nics} NICs of {c.nic_gbs:g} GB/s, inside {c.inside_gbs:g} GB/s a GPU, "
        f"{c.alpha_us:g} us a hop, chunks of {c.chunk_bytes >> 10} KiB"
    )
    return (hardware, *s.assumptions, *((f"published: {s.source}",) if s.source else ()))
