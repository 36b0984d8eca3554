"""What an algorithm costs on a cluster, in closed form: latency of its steps, and the longer of wire and copying.

The model is alpha-beta with a cost per message and per reduced byte (Hockney 1994; Thakur et al., IJHPCA 19, 2005;
Chan et al., "Collective communication: theory, practice, and experience", CCPE 19, 2007, for the formulas), with two
path classes. Integers and the four basic operations only: all ranks compute the same bits, so they choose the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .shape import ClusterShape

REDUCE_WORK = 1.5  # copying a byte reads one and writes one; reducing one reads two and writes one


class Steps(NamedTuple):
    """Numbers of steps (one after the other) or messages: between hosts, and inside one."""

    net: int
    shm: int


@dataclass(frozen=True)
class Load:
    """What an algorithm asks of the cluster, with D the bytes of the main space.

    net: most bytes that a host sends or receives. sent, received, reduced: bytes that the busiest rank handles.
    messages, net_messages: of the busiest rank, beyond one a step, inside its host and to others. fill: steps that a
    chunk needs to reach the last rank of a pipeline. pipelined: chunks overlap, so wire and copying do too.
    host_work: bytes that all ranks of the busiest host handle together, where not all have the same to do.
    """

    steps: Steps
    net: float = 0
    sent: float = 0
    received: float = 0
    reduced: float = 0
    messages: float = 0
    net_messages: float = 0
    fill: float = 0
    pipelined: bool = True
    host_work: float = 0

    @property
    def work(self) -> float:
        """Bytes that the busiest rank handles, a reduced one counting ``REDUCE_WORK``."""
        return self.sent + self.received + REDUCE_WORK * self.reduced


class Model:
    """Sizes that the formulas share: n ranks, H hosts of at most L ranks, D bytes; w: a partial sum in units of D."""

    def __init__(self, shape: ClusterShape, nbytes: int, w: float = 1.0) -> None:
        self.shape = shape
        self.n, self.H, self.L = shape.nranks, len(shape.hosts), shape.most_local
        self.D, self.w = nbytes, w
        self.columns = shape.columns
        self.wires = self.H > 1
        self.share = (self.n - 1) / self.n  # of the data, that a rank gets from others or gives to them
        self.abroad = (self.n - self.L) / self.n  # of the ranks, that are on other hosts than the fullest
        self.rounds = ceil_log2(self.n)
        self.net_rounds = ceil_log2(self.H)
        self.others = Steps(self.n - self.L - 1, self.L - 1) if self.wires else Steps(0, max(0, self.L - 2))

    def us(self, load: Load, neighbours: bool = False) -> float:
        """Microseconds of a load. neighbours: a host sends all that it sends to one other, the next in a ring."""
        s = self.shape
        gbs = s.narrowest_gbs if neighbours else s.weakest_gbs
        cores = min(self.L, s.cores)
        wire = load.net / (gbs * 1e3)
        work = max(load.work, (load.host_work or self.L * load.work) / cores) / (s.shm_gbs * 1e3)
        number = load.steps.net + load.steps.shm
        move = max(wire, work) if load.pipelined else wire + work
        chunk = min(s.chunk_bytes, self.D)
        idle = load.fill if load.pipelined else number  # waits of one chunk, with nothing else to do meanwhile
        fill = idle * chunk * (1 / (gbs * 1e3) if self.wires else 2 / (s.shm_gbs * 1e3))
        steps = load.steps.net * s.alpha_net_us + load.steps.shm * s.alpha_shm_us
        each = load.messages * s.overhead_shm_us + load.net_messages * s.overhead_net_us
        return steps + each + move + fill

    def steps(self, number: int) -> Steps:
        """``number`` steps, each as slow as the slowest pair of neighbours."""
        return Steps(number, 0) if self.wires else Steps(0, number)


def ceil_log2(n: int) -> int:
    """ceil(log2 n) without rounding."""
    return (n - 1).bit_length()


def floor_log2(n: int) -> int:
    """floor(log2 n) without rounding."""
    return n.bit_length() - 1


def circulant_net(m: Model) -> float:
    """Bytes that a host of L neighbouring ranks sends in one circulant all-gather of D bytes (see doubling.steps)."""
    total, held = 0.0, 1
    while held < m.n:
        more = min(held, m.n - held)
        total += min(held, m.L) * more
        held += more
    return total * m.D / m.n if m.wires else 0.0
