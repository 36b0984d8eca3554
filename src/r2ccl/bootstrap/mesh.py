"""Brings up all connections of a communicator and hands them over as plain descriptors.

Every rank: opens its listening sockets, announces them, dials the lower ranks and accepts the higher ones side by side,
tells the others what came up, and keeps what both ends have.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from os import close as close_fd

from ..config import Config
from ..errors import BootstrapError, Mismatch
from ..topology.model import RankInfo
from ..topology.oob import oob_addresses
from .announce import Announcement
from .auth import derive, job_id
from .base import Bootstrap, Deadline, Watchful
from .connect import Connector
from .listeners import Listeners, open_listeners
from .route import Around, Keys
from .settle import Outcome, settle
from .shared import segment_bytes
from .wanted import Wanted, link_between, lonely_rails, require_rails, wanted_by

log = logging.getLogger("r2ccl.bootstrap")


@dataclass(frozen=True)
class LinkEnd:
    """This rank's end of a link: a connected, non-blocking TCP socket. control: it is for control frames instead."""

    peer: int
    my_rail: int
    peer_rail: int
    fd: int
    control: bool = False


@dataclass
class Mesh:
    """The connections of one rank. Whoever takes a descriptor out closes it.

    Attributes:
        oob: control socket by peer (AF_UNIX within a host, TCP otherwise), non-blocking.
        links: over rails, to ranks with which no memory is shared; ordered by peer and rail.
        shm: memfd by peer, of ``2 * (Config.shm_ring_bytes + 4096)`` bytes; the lower rank made it.
        missing: (peer, my rail, peer's rail, reason) of links that should exist and do not: a degraded start.
        listeners: open still when asked for, so that links can be dialled again; else closed.
        around: what ``relink`` needs to bring up a link again.
    """

    oob: dict[int, int] = field(default_factory=dict)
    links: list[LinkEnd] = field(default_factory=list)
    shm: dict[int, int] = field(default_factory=dict)
    missing: list[tuple[int, int, int, str]] = field(default_factory=list)
    listeners: Listeners | None = None
    around: Around | None = None

    def close(self) -> None:
        """Close every descriptor that is still here. Idempotent."""
        for fd in [*self.oob.values(), *(link.fd for link in self.links), *self.shm.values()]:
            close_fd(fd)
        self.oob.clear()
        self.links.clear()
        self.shm.clear()
        if self.listeners is not None:
            self.listeners.close()


def connect_mesh(
    boot: Bootstrap,
    config: Config,
    me: RankInfo,
    ranks: Sequence[RankInfo],
    deadline: Deadline,
    *,
    keep_listening: bool = False,
) -> Mesh:
    """Connect this rank with all others; every rank calls it with the same ``ranks``.

    Raises, on every rank alike: ``NoRails`` when two hosts share no rail, ``PeerUnreachable`` when none of their rails
    connects, ``Mismatch`` when ranks of one host disagree on ``Config.shm``; and ``Timeout`` or ``PeerLost`` from the
    bootstrap. A rail that is missing while another one works is a warning and an entry of ``Mesh.missing``.
    """
    require_rails(ranks, config.shm)
    wanted = wanted_by(me, ranks, config.shm)
    addresses = oob_addresses(config, me, boot.local_hint)
    try:
        chosen = bool(config.oob_interface)
        listeners = open_listeners(me, ranks, wanted, addresses, config.shm, only_first=chosen)
    except OSError as error:
        raise BootstrapError(f"rank {me.rank} cannot listen for control connections on {addresses}: {error}") from error
    for sentence in lonely_rails(me, ranks, wanted):
        log.warning("degraded start: %s", sentence)
    connector: Connector | None = None
    try:
        answers = boot.all_gather("announce", listeners.announcement.to_bytes(), deadline)
        announcements = {rank: Announcement.from_bytes(answer, rank) for rank, answer in enumerate(answers)}
        _check_shm(ranks, announcements)
        keys = Keys(derive(boot.secret, "mesh"), job_id("mesh", derive(boot.secret, "mesh id").hex()))
        size = segment_bytes(config) if config.shm else 0
        around = Around(me, ranks, announcements, listeners, keys, boot.local_hint, size)
        connector = Connector(around, wanted)
        # A fifth of what is left stays for the exchange at the end.
        check = boot.check if isinstance(boot, Watchful) else None
        connector.run(deadline.at_most(0.8 * deadline.remaining()), check)
        outcome = settle(boot, ranks, config.shm, connector, deadline)
    except BaseException:
        if connector is not None:
            connector.close()
        listeners.close()
        raise
    if not keep_listening:
        listeners.close()
    return _hand_over(around, connector, outcome)


def _check_shm(ranks: Sequence[RankInfo], announcements: dict[int, Announcement]) -> None:
    first: dict[str, int] = {}
    for info in ranks:
        other = first.setdefault(info.host_id, info.rank)
        if announcements[info.rank].shm != announcements[other].shm:
            raise Mismatch(
                f"Config.shm is {announcements[info.rank].shm} at rank {info.rank} and {announcements[other].shm} at "
                f"rank {other} of the same host: set R2CCL_SHM alike"
            )


def relink(
    around: Around,
    links: Sequence[tuple[int, int, int]],
    deadline: Deadline,
    on_up: Callable[[LinkEnd], None],
    controls: Sequence[tuple[int, int, int]] = (),
) -> None:
    """Dial or accept links again, (peer, my rail, peer's rail) each, while the job runs, until the deadline at the latest.

    ``on_up`` gets each as soon as it is up: the other end may be using it already. Both ends call this for the same link
    at about the same time, with listeners that were kept open. An end may hold a link that the other one has given up; its
    first use tells, and the same link may come up again in the same run. controls: the same for connections over rails that
    are to take the place of control connections.
    """
    wanted = [
        replace(link_between(around.me, around.ranks[peer], mine, theirs), down="", control=control)
        for places, control in ((links, False), (controls, True))
        for peer, mine, theirs in places  # down: it was so at the start
    ]

    def hand_over(which: Wanted, sock: socket.socket) -> None:
        fd = sock.detach()
        try:
            on_up(LinkEnd(*which.place, fd, which.control))
        except BaseException:  # the engine has ended: it took nothing
            close_fd(fd)
            raise

    Connector(around, wanted, hand_over).run(deadline)


def _hand_over(around: Around, connector: Connector, outcome: Outcome) -> Mesh:
    me, ranks = around.me, around.ranks
    mesh = Mesh(listeners=around.listeners, around=around, missing=outcome.missing)
    for connection in sorted(connector.connections.values(), key=lambda c: (c.wanted.peer, c.wanted.my_rail)):
        wanted = connection.wanted
        if connection.sock is None:
            continue
        fd = connection.sock.detach()
        if wanted.is_oob:
            mesh.oob[wanted.peer] = fd
            if connection.segment is not None:
                mesh.shm[wanted.peer] = connection.segment
        else:
            mesh.links.append(LinkEnd(wanted.peer, wanted.my_rail, wanted.peer_rail, fd))
    for peer, my_rail, peer_rail, reason in mesh.missing:
        log.warning(
            "degraded start: no link from %s of rank %d to %s of %s: %s",
            me.rails[my_rail].name,
            me.rank,
            ranks[peer].rails[peer_rail].name,
            ranks[peer].host_name,
            reason,
        )
    return mesh
