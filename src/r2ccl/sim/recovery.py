"""What happens to a job when a NIC dies, by method, besides the network being slower afterwards.

Each is modelled from its authors' description, not from its code; the numbers that are assumed are in ``Costs``.

vanilla          the call fails, the job ends, and restarts from its last checkpoint
adapcc           AdapCC (as described in arXiv 2512.25059): workers without a NIC are left out between collectives; tensor
                 and pipeline parallel jobs cannot lose a rank, so a whole replica stops, and a job with one replica ends
dejavu           DejaVu (arXiv 2403.01876): the KV cache is copied to another worker all the time, and a failed worker restarts
hot_repair       the NIC's load moves to one backup NIC
balance          the load is spread over the healthy NICs in proportion to their bandwidth (arXiv 2512.25059)
r2ccl_allreduce  arXiv 2512.25059, section 5: a ring of all servers beside a ring of the undamaged
optcc            arXiv 2606.01680
unpaced_packing  tree packing on links that share a host alike, instead of in proportion to what the plan sends over them
r2ccl            this library: the plan that ``r2ccl.plan.select`` picks, weighted tree packing among them
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidArgument
from .collective import METHODS


@dataclass(frozen=True)
class Costs:
    """Seconds once per failure.

    restart_s: vanilla; the median recovery by checkpoint in arXiv 2512.25059 is 68 minutes. paper_repair_s: the published
    artefact's black-holed iteration takes 1.5 s longer. repair_s: of this library, its acceptance limit for silent
    faults. exclude_s: AdapCC agrees on the members anew. worker_restart_s: DejaVu loads a worker's weights again;
    instance_restart_s: vanilla serving starts all over.
    """

    restart_s: float = 68 * 60.0
    paper_repair_s: float = 1.5
    repair_s: float = 0.12
    exclude_s: float = 1.0
    worker_restart_s: float = 20.0
    instance_restart_s: float = 60.0

    def once_s(self, method: str) -> float:
        """How long a training job stands still at the failure."""
        if method == "vanilla":
            return self.restart_s
        if method == "adapcc":
            return self.exclude_s
        return self.repair_s if method in ("r2ccl", "tree_packing") else self.paper_repair_s

    def serving_s(self, method: str) -> float:
        """How long a serving instance stands still."""
        stops = {"vanilla": self.instance_restart_s, "dejavu": self.worker_restart_s}
        return stops[method] if method in stops else self.once_s(method)


def capacity_left(method: str, replicas: int, failed: int) -> float:
    """Share of the replicas that still work. AdapCC: each failed NIC costs one, as if on servers of different replicas."""
    return max(0.0, 1 - failed / replicas) if method == "adapcc" else 1.0


def check_methods(methods: list[str], more: tuple[str, ...] = ()) -> None:
    """Raise InvalidArgument when one of ``methods`` is unknown."""
    known = (*METHODS, *more)
    for method in methods:
        if method not in known:
            raise InvalidArgument(f"method {method!r} is not one of {', '.join(known)}")
