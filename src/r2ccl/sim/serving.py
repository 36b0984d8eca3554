"""An instance that serves a language model over several servers: TTFT and TPOT of requests before and after a NIC is lost.

Continuous batching: a waiting request is prefilled as soon as the batch has room, then all running requests decode together,
a token a step. Tensor parallelism over more GPUs than a server has needs two all-reduces a layer over the network; pipeline
parallelism a message per stage; ``kv_bytes`` > 0: prefill and decode are different instances, and the cache moves between.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidArgument
from .cluster import Cluster
from .collective import collective_s, p2p_s
from .recovery import Costs

BYTES = 2  # of a weight and of an activation


@dataclass(frozen=True)
class Serving:
    """tensor, pipeline: degrees of parallelism; their product is the GPUs of the instance. rate: requests per second,
    Poisson. prompt, output: tokens of each request. batch: requests decoded together, at most. requests: simulated.

    mfu: share of the peak in prefill. memory: share of the memory bandwidth in decode. fail_at_s: when the NIC is lost.
    kv_bytes: of one token in the cache, moved after prefill; 0: prefill and decode are one instance.
    """

    parameters: float
    layers: int
    hidden: int
    tensor: int
    pipeline: int
    rate: float
    prompt: int = 2048
    output: int = 256
    batch: int = 64
    requests: int = 400
    mfu: float = 0.5
    memory: float = 0.6
    fail_at_s: float = 60.0
    kv_bytes: float = 0.0


@dataclass(frozen=True)
class Latency:
    """Of a run, in seconds: mean and 95th percentile of the time to the first token, mean time per further token."""

    ttft_s: float
    ttft_p95_s: float
    tpot_s: float


class Instance:
    """A serving instance on a cluster."""

    def __init__(self, cluster: Cluster, serving: Serving, costs: Costs | None = None) -> None:
        self.cluster, self.serving, self.costs = cluster, serving, costs or Costs()
        self.gpus = serving.tensor * serving.pipeline
        if self.gpus != cluster.servers * cluster.gpus:
            raise InvalidArgument(
                f"tensor {serving.tensor} x pipeline {serving.pipeline}: must be {cluster.servers * cluster.gpus} GPUs"
            )

    def prefill_s(self, method: str, lost: int) -> float:
        """Of one request; its chunks fill all stages."""
        s = self.serving
        compute = 2 * s.parameters * s.prompt / (self.gpus * self.cluster.tflops * 1e12 * s.mfu)
        kv = p2p_s(self.cluster, lost, s.kv_bytes * s.prompt, method) if s.kv_bytes else 0.0
        return compute + self._network_s(s.prompt, method, lost) + kv

    def decode_s(self, requests: int, method: str, lost: int) -> float:
        """One token of each of ``requests``; the stages work one after the other, each reading its weights once."""
        s = self.serving
        weights = BYTES * s.parameters / (s.tensor * self.cluster.memory_gbs * 1e9 * s.memory)
        return weights + self._network_s(requests, method, lost)

    def run(self, method: str = "", failures: Mapping[int, int] | None = None, seed: int = 1) -> Latency:
        """Serve all requests; ``failures`` {server: NICs} strike at ``fail_at_s`` and are handled by ``method``."""
        s = self.serving
        lost = max((failures or {}).values(), default=0)
        wire = method if method not in ("", "vanilla", "dejavu") else "r2ccl"
        later = 0 if wire != method else lost  # the others restart elsewhere, on healthy servers
        rng = random.Random(seed)
        waiting: deque[float] = deque()
        at = 0.0
        for _ in range(s.requests):
            at += rng.expovariate(s.rate)
            waiting.append(at)
        running: list[list[float]] = []  # [first token at, tokens left]
        now, bad, ttft, tpot = 0.0, not lost, [], []
        while waiting or running:
            if not bad and now >= s.fail_at_s:
                now, bad = now + self.costs.serving_s(method), True
            damage = later if bad and lost else 0
            if waiting and waiting[0] <= now and len(running) < s.batch:
                came = waiting.popleft()
                now += self.prefill_s(wire, damage)
                ttft.append(now - came)
                running.append([now, s.output - 1.0])
            elif running:
                now += self.decode_s(len(running), wire, damage)
                for request in running:
                    request[1] -= 1
                tpot += [(now - r[0]) / (s.output - 1) for r in running if r[1] <= 0]
                running = [r for r in running if r[1] > 0]
            else:
                now = max(now, waiting[0])
        return Latency(sum(ttft) / len(ttft), sorted(ttft)[int(0.95 * len(ttft))], sum(tpot) / len(tpot))

    def request_s(self, latency: Latency) -> float:
        """Of a whole request, on average."""
        return latency.ttft_s + (self.serving.output - 1) * latency.tpot_s

    def _network_s(self, tokens: int, method: str, lost: int) -> float:
        s = self.serving
        nbytes = tokens * s.hidden * BYTES
        hops = (s.pipeline - 1) * p2p_s(self.cluster, lost, nbytes, method)
        servers = s.tensor // self.cluster.gpus
        if servers < 2:
            return hops
        damaged = (lost,) + (0,) * (servers - 1)
        return hops + 2 * s.layers * float(
            collective_s(self.cluster, damaged, float(nbytes), method, steps=200).seconds
        )
