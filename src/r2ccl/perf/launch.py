"""Who the ranks are: those of mpiexec, of torchrun (or r2ccl-lab), or local ones started here."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from ..testing import RankError, RankGroup
from .flags import Flags
from .launcher import launcher
from .run import run


def launch(flags: Flags) -> int:
    """Run the measurement on all ranks; the exit status of this process: 0 only if nothing was wrong."""
    who = launcher(os.environ)
    if who == "mpi":
        return _under_mpi(flags)
    if who == "env":
        return _under_env(flags)
    return _alone(flags)


def mpi_world() -> Any:
    """``COMM_WORLD`` of the MPI that started this process."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _local_rank(world: Any) -> int:
    """The number of this rank among those of its host."""
    from mpi4py import MPI

    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    rank = int(local.rank)
    local.Free()
    return rank


def _under_mpi(flags: Flags) -> int:
    import r2ccl

    world = mpi_world()
    try:
        place = flags.device_of(_local_rank(world))
        with r2ccl.init(world, device=place, config=flags.config(world.rank)) as comm:
            return _status(run(comm, flags))
    except BaseException:
        # An exception on one rank would leave the others in MPI_Finalize.
        traceback.print_exc()
        sys.stderr.flush()
        world.Abort(1)
        raise


def _under_env(flags: Flags) -> int:
    import r2ccl

    place = flags.device_of(int(os.environ.get("LOCAL_RANK", "0")))
    with r2ccl.init(device=place, config=flags.config(int(os.environ["RANK"]))) as comm:
        return _status(run(comm, flags))


def _alone(flags: Flags) -> int:
    on_gpus = flags.device != "cpu"
    group = RankGroup(
        run,
        flags.ranks,
        hosts=flags.hosts,
        rails=flags.rails,
        config=flags.config,
        args=(flags,),
        start_method="spawn" if on_gpus else "fork",
        device=flags.device_of if on_gpus else None,
    )
    try:
        with group:
            wrong: list[Any] = group.join(timeout_s=None)
    except RankError as error:
        print(f"r2ccl-perf: {error}", file=sys.stderr)
        return 1
    return _status(wrong[0])


def _status(wrong: int) -> int:
    return 1 if wrong else 0
