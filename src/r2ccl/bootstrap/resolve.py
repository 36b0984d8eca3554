"""What the user passed as ``via``, as a Bootstrap."""

from __future__ import annotations

from typing import Any

from ..config import Config
from ..errors import InvalidArgument
from .base import Bootstrap, Deadline
from .env import env_bootstrap


def resolve(via: Any, config: Config, deadline: Deadline) -> Bootstrap:
    """A Bootstrap from None (the environment), an mpi4py communicator, or a Bootstrap, which is taken as it is."""
    if via is None:
        return env_bootstrap(config, deadline)
    if hasattr(via, "Get_rank") and hasattr(via, "Iallgather"):
        from .mpi import MpiBootstrap  # imports mpi4py, which the caller has imported already

        return MpiBootstrap(via, deadline)
    if isinstance(via, Bootstrap):
        return via
    raise InvalidArgument(
        f"via={type(via).__name__}: must be None (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), an mpi4py communicator, "
        "or an object with rank, size, secret, local_hint, all_gather and close"
    )
