"""Tell from the environment who started this process."""

from __future__ import annotations

from collections.abc import Mapping

_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK")
_RANK = ("RANK", "WORLD_SIZE")
# Their ranks are the innermost: mpiexec may have started one torchrun per host.
_INNER = ("TORCHELASTIC_RUN_ID", "R2CCL_LAB")


def launcher(environ: Mapping[str, str]) -> str:
    """Who started this process, by its variables: ``mpi``, ``env`` or ``alone``."""
    ranked = all(name in environ for name in _RANK)
    if ranked and any(name in environ for name in _INNER):
        return "env"
    if any(name in environ for name in _MPI):
        return "mpi"
    return "env" if ranked else "alone"
