"""Puts a communicator together: bootstrap, topology, connections, engine. The slow loop's work, once, at the start."""

from __future__ import annotations

import json
import logging
import os
import secrets
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._native.core import CudaDevice, Engine, try_port
from .bootstrap import Bootstrap, Deadline, resolve
from .bootstrap.agree import check_agreed
from .bootstrap.door import Door
from .bootstrap.mesh import LinkEnd, Mesh, connect_mesh
from .config import Config
from .costs import Costs
from .errors import BootstrapError, InvalidArgument
from .health.monitor import Monitor, Place
from .plan.shares import shares
from .planner import Planner
from .topology.cluster import Cluster
from .topology.discover import describe_self
from .topology.machine import goes_direct, seen_from
from .topology.model import RailInfo, RankInfo
from .topology.rdma import drop_unusable, speak_verbs
from .windows import open_windows

log = logging.getLogger("r2ccl")
_MAX_JOB = 64
_MOST_AGREED_RAILS = 60_000  # of all ranks: their health is one message


@dataclass
class Parts:
    """What a communicator is made of."""

    engine: Engine
    planner: Planner
    cluster: Cluster
    rank: int
    rails: tuple[RailInfo, ...]
    secret: bytes
    monitor: Monitor | None
    local_hint: str | None
    door: Door | None
    job: str


@dataclass(frozen=True)
class _Settled:
    """cores: the fewest processors of any rank. any_gpu: some rank works on a GPU."""

    cores: int
    any_gpu: bool
    costs: Costs | None


def assemble(via: Any, config: Config, device: CudaDevice | None = None, costs: Costs | None = None) -> Parts:
    """Find the other ranks, connect, and start the engine; everything within ``config.init_timeout_s``.

    costs: those of the communicator that this one descends from; None: ``config.costs`` says.
    """
    logging.getLogger("r2ccl").setLevel(config.log_level.upper())
    deadline = Deadline(config.init_timeout_s)
    boot = resolve(via, config, deadline)
    try:
        return _from_bootstrap(boot, config, deadline, device, costs)
    finally:
        if boot is not via:
            boot.close()


def _from_bootstrap(
    boot: Bootstrap, config: Config, deadline: Deadline, device: CudaDevice | None, costs: Costs | None
) -> Parts:
    rank, size = boot.rank, boot.size
    check_agreed(boot, config, deadline)
    me = drop_unusable(describe_self(config, rank), config, try_port)
    if device is not None:
        me = seen_from(me, device.bus_id)
    answers = boot.all_gather("topology", me.to_bytes(), deadline)
    ranks = [RankInfo.from_bytes(answer, r) for r, answer in enumerate(answers)]
    cluster = Cluster.of(ranks)
    settled = _settle(boot, config, deadline, device is not None, costs)
    mesh = connect_mesh(boot, config, me, ranks, deadline, keep_listening=True) if size > 1 else Mesh()
    try:
        rails = len({link.my_rail for link in mesh.links})
        # Plans must come out alike on all ranks, so the number of rails is the smallest of all.
        counts = [int(c) for c in boot.all_gather("rails", str(rails).encode(), deadline)]
        planner = Planner(rank, cluster, config, settled.cores, min(counts), settled.costs)
        crowded = cluster.local_size(rank) > len(os.sched_getaffinity(0))
        engine = Engine(rank, size, config, planner, crowded, device)
        places = _connect(engine, mesh, me, ranks, cluster, config, device is not None)
    except BaseException:
        mesh.close()
        raise
    if settled.any_gpu:
        try:
            open_windows(engine, boot, deadline)
        except BaseException:
            engine.close(0.0)
            raise
    rails_of = [len(info.rails) for info in ranks]
    if size > 1 and 0 < sum(rails_of) <= _MOST_AGREED_RAILS:
        engine.set_rails(array("I", rails_of))
    engine.start()
    door = Door.of(mesh.around, boot.secret) if mesh.around is not None else None
    if not config.recovery or not places:
        mesh.close()  # nobody dials again
    monitor = Monitor(engine, mesh.around, places, config) if places and mesh.around is not None else None
    # Nobody sends before everybody listens.
    try:
        names = boot.all_gather("ready", (config.job or secrets.token_hex(4)).encode(), deadline)
    except BaseException:
        if monitor is not None:
            monitor.stop()
        engine.close(0.0)
        if door is not None:
            door.close()
        raise
    job = names[0].decode("utf-8", "replace")[:_MAX_JOB]
    return Parts(engine, planner, cluster, rank, me.rails, boot.secret, monitor, boot.local_hint, door, job)


def _settle(boot: Bootstrap, config: Config, deadline: Deadline, gpu: bool, costs: Costs | None) -> _Settled:
    """What every rank must know alike before it plans. costs: None: what rank 0 reads from its file, if it has one."""
    mine: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "gpu": gpu, "costs": "", "trouble": ""}
    if boot.rank == 0 and config.costs and costs is None:
        mine.update(_read_costs(config.costs))
    answers = boot.all_gather("machines", json.dumps(mine).encode(), deadline)
    try:
        found = [json.loads(answer) for answer in answers]
        cores = max(1, min(int(machine["cores"]) for machine in found))
        any_gpu = any(bool(machine["gpu"]) for machine in found)
        text, trouble = str(found[0]["costs"]), str(found[0]["trouble"])
    except (ValueError, TypeError, KeyError) as error:
        raise BootstrapError(f"a rank sent a malformed description of its machine: {error!r}") from None
    if trouble:
        raise InvalidArgument(f"rank 0: {trouble}")
    if costs is None and text:
        costs = Costs.from_json(text, "costs of rank 0")
    return _Settled(cores, any_gpu, costs)


def _read_costs(file: str) -> dict[str, str]:
    """The file's text, or the trouble with it, for all ranks to see."""
    try:
        text = Path(file).read_text("utf-8")
        Costs.from_json(text, f"Config.costs = {file!r}")
    except (OSError, UnicodeDecodeError) as error:
        return {
            "trouble": f"Config.costs = {file!r} cannot be read ({error}): r2ccl-perf --calibrate writes such files"
        }
    except InvalidArgument as error:
        return {"trouble": str(error)}
    return {"costs": text}


def _connect(
    engine: Engine, mesh: Mesh, me: RankInfo, ranks: list[RankInfo], cluster: Cluster, config: Config, on_gpu: bool
) -> list[Place]:
    """Hands every descriptor to the engine. Links of a pair come in the same order at both ends."""
    for rail in me.rails:
        watched = (0, "") if rail.is_loopback else (rail.ifindex, rail.address)
        engine.add_rail(rail.index, rail.name, *watched, float(rail.speed_mbps or 1))
        if rail.rdma_device:
            engine.set_rail_port(rail.index, rail.rdma_device, rail.rdma_port, rail.rdma_gid)
            if on_gpu:
                engine.set_rail_direct(rail.index, goes_direct(rail, config.gpu_direct))
    for peer, fd in sorted(mesh.oob.items()):
        engine.add_control(peer, fd, cluster.same_host(me.rank, peer))
        engine.set_host(peer, cluster.host_of(peer).index)
    mesh.oob.clear()
    for peer, fd in sorted(mesh.shm.items()):
        engine.add_shm_link(peer, fd, config.shm_ring_bytes)
    mesh.shm.clear()

    def order(link: LinkEnd) -> tuple[int, int, int]:
        lower_first = (link.my_rail, link.peer_rail) if me.rank < link.peer else (link.peer_rail, link.my_rail)
        return (link.peer, *lower_first)

    absent = [LinkEnd(peer, mine, theirs, -1) for peer, mine, theirs, _ in mesh.missing]
    links = sorted([*mesh.links, *absent], key=order)
    places: list[Place] = []
    for link in links:
        verbs = speak_verbs(me.rails[link.my_rail], ranks[link.peer].rails[link.peer_rail])
        add_link = engine.add_verbs_link if verbs else engine.add_tcp_link
        add_link(link.peer, link.my_rail, link.fd)
        number = sum(place.peer == link.peer for place in places)
        places.append(Place(link.peer, number, link.my_rail, link.peer_rail))
    mesh.links.clear()
    for warning in engine.take_warnings():
        log.warning("%s", warning)
    for peer in sorted({link.peer for link in links}):
        speeds = [
            min(me.rails[li.my_rail].mbps, ranks[peer].rails[li.peer_rail].mbps) for li in links if li.peer == peer
        ]
        engine.set_shares(peer, shares(speeds).table.astype("f8"))
    return places
