"""Starts under mpiexec: MPI introduces the ranks and is not used afterwards."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(60),
    pytest.mark.skipif(MPIEXEC is None, reason="mpiexec is missing: pip install mpich"),
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is missing: pip install mpi4py"),
]

PROGRAM = """
import sys
from mpi4py import MPI
from r2ccl.bootstrap import Deadline, resolve
from r2ccl.bootstrap.mesh import connect_mesh
from r2ccl.config import Config
from r2ccl.topology import RankInfo
from r2ccl.topology.discover import describe_self

comm = MPI.COMM_WORLD
if comm.rank == int(sys.argv[1]):
    import time
    time.sleep(float(sys.argv[2]) + 0.7)
    sys.stdout.write("late\\n")
    sys.stdout.flush()
    sys.exit(0)
deadline = Deadline(float(sys.argv[2]))
try:
    boot = resolve(comm, Config(), deadline)
    values = boot.all_gather("values", bytes([comm.rank]) * comm.rank * 1000, deadline)
    assert values == [bytes([r]) * r * 1000 for r in range(comm.size)]
    config = Config(rails="127.0.0.1,127.0.0.2", host_id=f"host {comm.rank // 2}")
    me = describe_self(config, comm.rank)
    ranks = [RankInfo.from_bytes(a, r) for r, a in enumerate(boot.all_gather("init", me.to_bytes(), deadline))]
    mesh = connect_mesh(boot, config, me, ranks, deadline)
    line = f"rank {comm.rank}: {len(mesh.oob)} oob {len(mesh.links)} links {len(mesh.shm)} shm {boot.secret.hex()}"
    mesh.close()
    boot.close()
except Exception as error:
    line = f"rank {comm.rank}: {type(error).__name__}: {error}"
sys.stdout.write(line + "\\n")
sys.stdout.flush()
"""


def mpiexec(tmp_path: Path, late: int, deadline_s: float) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    source = Path(__file__).parents[2] / "src"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    command = [str(MPIEXEC), "-n", "4", sys.executable, str(program), str(late), str(deadline_s)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.split("\n"))


def test_a_mesh_of_two_hosts_from_an_mpi_communicator(tmp_path: Path) -> None:
    lines = [line for line in mpiexec(tmp_path, -1, 10) if line]
    assert len(lines) == 4, lines
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank}: 3 oob 4 links 1 shm "), lines
    assert len({line.split()[-1] for line in lines}) == 1


def test_case_24_a_rank_that_is_late_is_named_by_all_others(tmp_path: Path) -> None:
    lines = [line for line in mpiexec(tmp_path, 3, 1.0) if line.startswith("rank")]
    assert lines == [f"rank {rank}: Timeout: init: rank 3 of 4 did not arrive within 1 s" for rank in range(3)], lines
