"""What one demonstration consists of, and what the command line may change of it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import InvalidArgument
from ..kinds import KINDS, kind_named, parse_rate

PROG = "r2ccl-lab demo"


@dataclass(frozen=True)
class Settings:
    """Both runs of a demonstration are made with the same settings; only the second one loses a NIC.

    rate: limit of each rail and direction on the emulated cluster; loopback addresses are not limited.
    cut_step: the NIC ``cut_rail`` of host ``cut_host`` is cut during the all_reduce of this step (the first is 0).
    width: units of each hidden layer; 1280 make 1.7 million parameters, a gradient of 6.9 MB.
    batch: examples per rank and step.
    corrupt_rank: for tests: this rank changes one weight by its last bit at the end of the second run.
    timeout_s: for each of the two runs.
    """

    hosts: int = 3
    ranks_per_host: int = 2
    rails: int = 3
    rate: str = "200mbit"
    fault: str = "blackhole"
    cut_host: int = 0
    cut_rail: int = 1
    steps: int = 60
    cut_step: int = 24
    width: int = 1280
    batch: int = 48
    seed: int = 1
    timeout_s: float = 55.0
    loopback: bool = False
    out: Path = Path("out/demo")
    corrupt_rank: int | None = None

    @property
    def size(self) -> int:
        """Ranks in all; rank r lives on host ``r // ranks_per_host``."""
        return self.hosts * self.ranks_per_host

    def __post_init__(self) -> None:
        if not 1 <= self.cut_step < self.steps - 1:
            raise InvalidArgument(
                f"--cut-step {self.cut_step}: 1 to {self.steps - 2}, so that there is a step before it and one after it"
            )
        for name in ("width", "batch"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"--{name} {getattr(self, name)}: must be at least 1")
        try:
            parse_rate(self.rate)
        except ValueError as error:
            raise InvalidArgument(f"--rate: {error}") from None
        if kind_named(self.fault).name not in cutting_faults():
            raise InvalidArgument(f"--fault {self.fault}: one that cuts a NIC: {', '.join(cutting_faults())}")


def cutting_faults() -> list[str]:
    """The kinds of faults that end the service of one NIC; a switch would take one of every host."""
    return [kind.name for kind in KINDS.values() if kind.cuts and kind.name != "switch"]


def parse(argv: Sequence[str]) -> Settings:
    """Settings from the command line. Raises ``InvalidArgument``; ends the process for ``--help``, as argparse does."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Trains a small network twice on an emulated cluster of 3 hosts x 2 ranks x 3 NICs. In the second "
        "run a NIC is cut in the middle of an all_reduce. The weights must come out bitwise equal.",
    )
    parser.add_argument(
        "--fault", default=default.fault, metavar="KIND", help=f"{', '.join(cutting_faults())} (blackhole)"
    )
    parser.add_argument("--rate", default=default.rate, help=f"limit of each NIC and direction ({default.rate})")
    parser.add_argument("--steps", type=int, default=default.steps, help=f"of training ({default.steps})")
    parser.add_argument("--cut-step", type=int, help="step whose all_reduce the cut hits (two fifths of the steps)")
    parser.add_argument("--width", type=int, default=default.width, help=f"units of a hidden layer ({default.width})")
    parser.add_argument("--batch", type=int, default=default.batch, help=f"examples per rank ({default.batch})")
    parser.add_argument("--seed", type=int, default=default.seed, help=f"of weights and batches ({default.seed})")
    parser.add_argument(
        "--out", type=Path, default=default.out, metavar="FOLDER", help="for picture and record (out/demo)"
    )
    parser.add_argument("--loopback", action="store_true", help="do without network namespaces: see below")
    parser.add_argument("--corrupt-rank", type=int, help=argparse.SUPPRESS)
    parser.epilog = (
        "Without the rights or tools for network namespaces, or with --loopback, loopback addresses stand for the NICs "
        "and the transport injects the fault. Exit code 0: the weights are bitwise equal and chunks were replayed."
    )
    values = vars(parser.parse_args(argv))
    if values["cut_step"] is None:
        values["cut_step"] = max(1, values["steps"] * 2 // 5)
    return dataclasses.replace(default, **values)
