"""Rails whose interface was made anew, or whose address changed: this rank reads them again, and tells the others."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

from .._native.core import Engine
from ..bootstrap.address import socket_address
from ..bootstrap.announce import RailPort
from ..bootstrap.route import Around
from ..topology.model import RailInfo, fabric_of
from ..topology.netlink import Address, Link, read_links

log = logging.getLogger("r2ccl.health")


class Identities:
    """What is known of the rails' interfaces and addresses, own and others', kept up to date in ``around``."""

    def __init__(self, engine: Engine, around: Around) -> None:
        self._engine = engine
        self._around = around

    def renew(self) -> None:
        """Read this rank's interfaces again. Nothing is lost when one is not there: it is looked at the next time."""
        try:
            links = {link.name: link for link in read_links()}
        except OSError as error:
            log.info("interfaces cannot be read: %s", error)
            return
        for rail in self._around.me.rails:
            link = links.get(rail.name)
            if not rail.is_loopback and link is not None:
                self._compare(rail, link)

    def _compare(self, rail: RailInfo, link: Link) -> None:
        bare = rail.address.partition("%")[0]
        present = {address.text for address in link.addresses}
        fresh = next((a for a in link.addresses if a.usable and a.family == rail.family and not a.is_link_local), None)
        moved = bare not in present and fresh is not None
        if link.ifindex == rail.ifindex and not moved:
            return
        changed = replace(rail, ifindex=link.ifindex)
        if moved and fresh is not None:
            changed = _with_address(changed, fresh)
        elif bare not in present:
            return  # it has no address yet
        try:
            ports = self._around.listeners.renew(rail.index, changed.address)
        except OSError as error:
            log.info("rail %s cannot listen yet: %s", rail.name, error)
            return
        self._set(self._around.me.rank, changed)
        self._engine.set_rail_identity(rail.index, changed.ifindex, changed.address)
        if moved:
            log.warning("rail %s has address %s now, it was %s", rail.name, changed.address, rail.address)
            self._tell(changed, ports)

    def _set(self, rank: int, rail: RailInfo) -> None:
        around = self._around
        info = around.ranks[rank]
        rails = tuple(rail if known.index == rail.index else known for known in info.rails)
        ranks = list(around.ranks)
        ranks[rank] = replace(info, rails=rails)
        around.ranks = ranks
        if rank == around.me.rank:
            around.me = ranks[rank]

    def _tell(self, rail: RailInfo, ports: list[RailPort]) -> None:
        port = next((p.port for p in ports if p.address == rail.address), 0)
        note = json.dumps(
            {"rail": rail.index, "address": rail.address, "prefix_len": rail.prefix_len, "port": port}
        ).encode()
        for peer in range(len(self._around.ranks)):
            if peer != self._around.me.rank:
                self._engine.post_note(peer, note)

    def hear(self, peer: int, note: bytes) -> None:
        """A peer's rail has another address."""
        try:
            said = json.loads(note)
            index, address, port = said["rail"], said["address"], said["port"]
            if type(index) is not int or type(port) is not int or not 0 <= port < 65536:
                raise ValueError("rail or port")
            rail = next(r for r in self._around.ranks[peer].rails if r.index == index)
            socket_address(address.partition("%")[0], port)
            changed = _with_address(rail, Address(address.partition("%")[0], int(said["prefix_len"])))
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
            log.warning("rank %d sent a malformed note: %s", peer, error)
            return
        self._set(peer, changed)
        announced = self._around.announcements[peer]
        others = tuple(p for p in announced.rails if p.rail != index)
        entry = RailPort(index, changed.address, port)
        self._around.announcements = {
            **self._around.announcements,
            peer: replace(announced, rails=(*others, entry)),
        }


def _with_address(rail: RailInfo, address: Address) -> RailInfo:
    return replace(
        rail,
        address=address.text,
        prefix_len=address.prefix_len,
        fabric=fabric_of(address.text, address.prefix_len),
        others=(),
    )
