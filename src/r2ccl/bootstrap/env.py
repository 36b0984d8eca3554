"""Bootstrap from the variables that torchrun and its kin set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from ..config import Config
from ..errors import BootstrapError
from .base import Bootstrap, Deadline, SingleBootstrap
from .secret import load_secret
from .tcp import Meeting, candidate_ports, tcp_bootstrap

_MAX_WORLD = 1 << 16
_REMEDY = "start the ranks with torchrun or mpiexec, or set it yourself"


def env_bootstrap(config: Config, deadline: Deadline, environ: Mapping[str, str] | None = None) -> Bootstrap:
    """The bootstrap that the environment describes. Without WORLD_SIZE: a world of one rank.

    Raises ``BootstrapError`` that names the variable, its value and the remedy.
    """
    env = os.environ if environ is None else environ
    if "WORLD_SIZE" not in env:
        if env.get("RANK", "0") != "0":
            raise BootstrapError(f"RANK={env['RANK']} is set, but WORLD_SIZE is not: {_REMEDY}")
        return SingleBootstrap(secrets.token_bytes(32))
    size = _number(env, "WORLD_SIZE", 1, _MAX_WORLD)
    rank = _number(env, "RANK", 0, _MAX_WORLD)
    if rank >= size:
        raise BootstrapError(f"RANK={rank} with WORLD_SIZE={size}: ranks count from 0 to WORLD_SIZE - 1 = {size - 1}")
    if size == 1:
        return SingleBootstrap(secrets.token_bytes(32))
    host = env.get("MASTER_ADDR", "").strip()
    if not host:
        raise BootstrapError(f"MASTER_ADDR is not set: it is the address of rank 0's machine; {_REMEDY}")
    port = _number(env, "MASTER_PORT", 1, 65535)
    agent_store = env.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    ports = (config.port,) if config.port else candidate_ports(port, skip_first=agent_store)
    if not ports:
        raise BootstrapError(f"MASTER_PORT={port} is taken by torchrun and no port follows it: set R2CCL_PORT")
    run = f"{port} {env.get('TORCHELASTIC_RUN_ID', '')}"
    return tcp_bootstrap(Meeting(host, ports, size, run, load_secret(config)), rank, deadline)


def _number(env: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        raise BootstrapError(f"{name} is not set: {_REMEDY}")
    if not (text.isascii() and text.isdigit()) or not low <= int(text[:9]) <= high:
        raise BootstrapError(f"{name}={text!r}: must be a whole number from {low} to {high}; {_REMEDY}")
    return int(text)
