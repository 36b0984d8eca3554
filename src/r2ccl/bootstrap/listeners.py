"""The listening sockets of one rank: one per rail address, one for control connections, one AF_UNIX name."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..topology.model import RankInfo
from .address import listen_everywhere, listen_on, listen_on_loopback, socket_address
from .announce import Announcement, RailPort
from .wanted import Wanted

_BACKLOG = 1024


@dataclass
class Listeners:
    """Owned by whoever brought up the mesh. Kept open, they let links be dialled again while the job runs."""

    announcement: Announcement
    rails: dict[socket.socket, RailPort] = field(default_factory=dict)
    oob: list[socket.socket] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)
    """Interface that a rail's listening sockets are pinned to, by rail."""
    _to_renew: list[RailPort] = field(default_factory=list)

    def take_control(self) -> list[socket.socket]:
        """Hand over the control sockets: connections of the mesh are made once, and may not come in by them any more."""
        taken, self.oob = self.oob, []
        return taken

    def renew(self, rail: int, address: str) -> list[RailPort]:
        """Listen anew for a rail whose interface was made anew or has another address: on the same ports if they are
        free. Returns where. ``OSError`` when it cannot be (then the old sockets are closed, and are tried again)."""
        ports = []
        for sock, port in list(self.rails.items()):
            if port.rail == rail:
                del self.rails[sock]
                sock.close()
                self._to_renew.append(port)
        for port in [p for p in self._to_renew if p.rail == rail]:
            family, where = socket_address(address, port.port)
            listener = listen_on(family, where, _BACKLOG, device=self.devices.get(rail, ""))
            ports.append(RailPort(rail, address, int(listener.getsockname()[1])))
            self.rails[listener] = ports[-1]
            self._to_renew.remove(port)
        return ports

    @property
    def sockets(self) -> list[socket.socket]:
        """All of them."""
        return [*self.rails, *self.oob]

    def close(self) -> None:
        """Stop listening. Idempotent."""
        for sock in self.sockets:
            sock.close()
        self.rails.clear()
        self.oob.clear()


def open_listeners(
    me: RankInfo,
    ranks: Sequence[RankInfo],
    wanted: Sequence[Wanted],
    oob_addresses: Sequence[str],
    shm: bool,
    *,
    only_first: bool = False,
) -> Listeners:
    """Listen for the connections of ``wanted`` that a higher rank dials, and for control connections of any rank.

    The latter serve survivors later (``door.py``), so what is announced for them is where they are really listened for.
    ``only_first``: at the first of ``oob_addresses`` and nowhere else. A rail that cannot listen is announced with the
    reason; that costs one link, not the start. ``OSError`` when nothing else can listen.
    """
    higher = [entry for entry in wanted if entry.peer > me.rank]
    local = {info.rank for info in ranks if info.host_id == me.host_id and info.netns == me.netns}
    here = {info.rank for info in ranks if info.netns == me.netns}
    rails: dict[socket.socket, RailPort] = {}
    oob: list[socket.socket] = []
    devices: dict[int, str] = {}
    token, unix, oob_port = secrets.token_hex(8), "", 0
    ports: list[RailPort] = []
    try:
        for rail, address in dict.fromkeys((e.my_rail, e.my_address) for e in higher if not e.is_oob):
            # Traffic between addresses of one network stack never touches the NIC, so it must not be pinned to it.
            pinned = not any(e.peer in here for e in higher if e.my_rail == rail)
            devices[rail] = me.rails[rail].name if pinned and not me.rails[rail].is_loopback else ""
            port = _listen_on_rail(rail, address, devices[rail], rails)
            ports.append(port)
        if any(e.is_oob and e.peer in local for e in wanted):
            unix = f"r2ccl-{secrets.token_hex(8)}"
            oob.append(_listen_on_name(unix))
        all_here = len(here) == len(ranks)
        if any(e.is_oob and e.peer not in local for e in wanted):
            oob += _listen_for_control(oob_addresses, all_here, only_first)
            oob_port = int(oob[-1].getsockname()[1])
    except OSError:
        for sock in [*rails, *oob]:
            sock.close()
        raise
    # On loopback alone nothing needs to be announced: it is the same for everybody.
    reached = oob_addresses[:1] if only_first else [] if all_here else oob_addresses
    announcement = Announcement(token, unix, tuple(reached), oob_port, tuple(ports), shm)
    return Listeners(announcement, rails, oob, devices)


def _listen_on_rail(rail: int, address: str, device: str, into: dict[socket.socket, RailPort]) -> RailPort:
    try:
        family, where = socket_address(address, 0)
        sock = listen_on(family, where, _BACKLOG, device=device)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return RailPort(rail, address, 0, f"cannot listen on {address}: {reason}"[:200])
    port = RailPort(rail, address, int(sock.getsockname()[1]))
    into[sock] = port
    return port


def _listen_for_control(addresses: Sequence[str], all_here: bool, only_first: bool) -> list[socket.socket]:
    """On the chosen address; else on loopback when nobody comes from outside; else on every address."""
    if only_first:
        family, where = socket_address(addresses[0], 0)
        return [listen_on(family, where, _BACKLOG)]
    return listen_on_loopback(0, _BACKLOG) if all_here else listen_everywhere(0, _BACKLOG)


def _listen_on_name(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind("\0" + name)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
