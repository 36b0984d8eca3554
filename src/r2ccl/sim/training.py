"""One training iteration: computing, messages between pipeline stages, and the all-reduce of the gradients.

Nothing overlaps unless the scenario says so: time that a slower network adds is added to the iteration. Tensor parallelism
stays inside a server, as in all settings modelled here, so no NIC serves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidArgument
from .cluster import Cluster
from .collective import collective_s, p2p_s
from .recovery import Costs, capacity_left

BYTES = 2  # of an activation


@dataclass(frozen=True)
class Training:
    """A job. tensor, pipeline, data: degrees of parallelism; their product is the number of GPUs.

    batch_tokens: of one iteration. micro_batch: sequences. gradient_bytes: of one gradient on the wire. mfu: share of the
    GPUs' peak while computing; tokens_per_s: measured without failure, takes its place where given. overlap: share of the
    all-reduce hidden behind the backward pass. exposed: share of the iteration that the wire of the all-reduce takes without
    failure; where given, it replaces what the model says, and only the ratio to it is modelled.
    """

    parameters: float
    hidden: int
    sequence: int
    tensor: int
    pipeline: int
    data: int
    batch_tokens: float
    micro_batch: int = 1
    gradient_bytes: int = 4
    mfu: float = 0.4
    tokens_per_s: float = 0.0
    overlap: float = 0.0
    exposed: float = 0.0


@dataclass(frozen=True)
class Iteration:
    """Seconds of one iteration, and its parts. tokens_per_s: 0 where the job cannot go on."""

    seconds: float
    compute_s: float
    pipeline_s: float
    all_reduce_s: float
    tokens_per_s: float
    how: str


class Job:
    """A training job on a cluster."""

    def __init__(self, cluster: Cluster, training: Training, costs: Costs | None = None, steps: int = 1500) -> None:
        self.cluster, self.training, self.costs, self.steps = cluster, training, costs or Costs(), steps
        t = training
        if t.tensor * t.pipeline * t.data != cluster.servers * cluster.gpus:
            raise InvalidArgument(
                f"tensor {t.tensor} x pipeline {t.pipeline} x data {t.data}: must be {cluster.servers * cluster.gpus} GPUs"
            )
        if cluster.gpus % t.tensor:
            raise InvalidArgument(f"tensor = {t.tensor}: must divide the {cluster.gpus} GPUs of a server")
        # Data-parallel ranks lie next to each other; the stages of a pipeline are on different servers.
        self.local = min(t.data, cluster.gpus // t.tensor)
        self.group = max(1, t.data // self.local)  # servers that one gradient is summed over

    def healthy(self, method: str = "r2ccl") -> Iteration:
        """The iteration without failure. Each method is compared with itself; where tokens/s is given, all have that."""
        return self._iteration(method, {})

    def after(self, method: str, failures: Mapping[int, int]) -> Iteration:
        """The iteration with so many NICs lost, {server: number}. Methods: see ``recovery``."""
        return self._iteration(method, {} if method == "vanilla" else failures)  # it restarts on a spare server

    def extra(self, method: str, failures: Mapping[int, int]) -> float:
        """Extra time per token, as a fraction; inf where the job cannot go on."""
        after = self.after(method, failures)
        return self.healthy(method).tokens_per_s / after.tokens_per_s - 1 if after.tokens_per_s else float("inf")

    def _iteration(self, method: str, failures: Mapping[int, int]) -> Iteration:
        t = self.training
        left = capacity_left(method, t.data, sum(failures.values()))
        wire = "balance" if method in ("adapcc", "vanilla") else method
        clean = self.cluster.lost_of({})
        lost = clean if method == "adapcc" else self.cluster.lost_of(failures)
        reduce_s, how = self._all_reduce(wire, lost)
        pipeline_s = self._pipeline(wire, max(lost))
        compute_s = self._compute(self._all_reduce(wire, clean)[0] + self._pipeline(wire, 0))
        seconds = compute_s / left + pipeline_s + reduce_s if left else float("inf")
        return Iteration(seconds, compute_s, pipeline_s, reduce_s, t.batch_tokens / seconds, how)

    def _all_reduce(self, method: str, lost: tuple[int, ...]) -> tuple[float, str]:
        t = self.training
        nbytes = t.parameters / (t.tensor * t.pipeline) * t.gradient_bytes
        timing = collective_s(self.cluster, lost[: self.group], nbytes, method, local=self.local, steps=self.steps)
        shown = 1 - t.overlap
        if not t.exposed:
            return timing.seconds * shown, f"{timing.algorithm}, {timing.how}"
        clean = collective_s(
            self.cluster, (0,) * self.group, nbytes, method, local=self.local, steps=self.steps
        ).seconds
        inside = collective_s(self.cluster, (0,), nbytes, local=self.local).seconds
        wire_s = t.batch_tokens / t.tokens_per_s * t.exposed
        return wire_s * (timing.seconds - inside) / (clean - inside), f"{timing.algorithm}, {timing.how}, scaled"

    def _pipeline(self, method: str, lost: int) -> float:
        """Each micro-batch crosses a boundary forward and its gradient backward; the first and last wait for all stages."""
        t = self.training
        if t.pipeline == 1:
            return 0.0
        micro = max(1.0, t.batch_tokens / (t.data * t.micro_batch * t.sequence))
        nbytes = t.micro_batch * t.sequence * t.hidden * BYTES * (self.cluster.gpus // t.tensor)
        clean, slow = p2p_s(self.cluster, 0, nbytes, method), p2p_s(self.cluster, lost, nbytes, method)
        return 2 * (micro * slow + (t.pipeline - 1) * clean)

    def _compute(self, network_s: float) -> float:
        t = self.training
        if t.tokens_per_s:
            return t.batch_tokens / t.tokens_per_s - network_s
        gpus = self.cluster.servers * self.cluster.gpus
        bubble = 1 + (t.pipeline - 1) / max(1.0, t.batch_tokens / (t.data * t.micro_batch * t.sequence))
        return 6 * t.parameters * t.batch_tokens / (gpus * self.cluster.tflops * 1e12 * t.mfu) * bubble
