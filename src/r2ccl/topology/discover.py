"""From interfaces to rails: the user's choice, or every suitable interface; all others are left out with a reason."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ..config import Config
from ..errors import NoRails
from .filters import unsuitable, unusable
from .identity import read_identity
from .interface import Interface, find_interfaces
from .model import DOWN, MAX_LEFT_OUT, MAX_RAILS, UP, LeftOut, RailInfo, RankInfo, fabric_of
from .netlink import Address
from .rdma import add_rdma

log = logging.getLogger("r2ccl.topology")


@dataclass(frozen=True)
class Choice:
    """The rails, by index, and the candidates that are none."""

    rails: tuple[RailInfo, ...]
    left_out: tuple[LeftOut, ...]


def describe_self(config: Config, rank: int, interfaces: Sequence[Interface] | None = None) -> RankInfo:
    """What this process tells the other ranks about itself. Raises what ``choose_rails`` raises."""
    choice = choose_rails(find_interfaces() if interfaces is None else interfaces, config)
    rails, without_rdma = add_rdma(choice.rails, config)
    left_out = (*choice.left_out, *without_rdma)[:MAX_LEFT_OUT]
    identity = read_identity(config)
    label = "".join(c for c in socket.gethostname()[:64] if c.isprintable())  # for messages only
    return RankInfo(rank, identity.host_id, identity.netns_id, os.getpid(), label, rails, left_out)


def choose_rails(interfaces: Sequence[Interface], config: Config) -> Choice:
    """Pure. ``NoRails``, listing the candidates, when ``Config.rails`` selects nothing; else there may be no rails."""
    names = sorted(interfaces, key=lambda interface: _natural(interface.name))
    selectors = _selectors(config.rails)
    excluded = _selectors(config.exclude_rails)
    left: dict[str, str] = {}
    candidates = []
    for interface in names:
        hit = next((s for s in excluded if _matches(s, interface)), None)
        if hit is None:
            candidates.append(interface)
        else:
            left[interface.name] = f"excluded by exclude_rails={hit}"
    rails = _chosen(candidates, selectors, left) if selectors else _suitable(candidates, left)
    if not rails and not selectors and not config.shm:
        rails = [_loopback_rail("127.0.0.1", 0)]  # ranks of one host can still talk, without shared memory
        left.pop("lo", None)
    for rail in rails[MAX_RAILS:]:
        left[rail.name] = f"more than {MAX_RAILS} rails"
    numbered = tuple(replace(rail, index=i) for i, rail in enumerate(rails[:MAX_RAILS]))
    left_out = tuple(LeftOut(name[:64], reason[:128]) for name, reason in list(left.items())[:MAX_LEFT_OUT])
    if selectors and not numbered:
        listing = "; ".join(f"{entry.name}: {entry.reason}" for entry in left_out) or "none"
        raise NoRails(f"rails={config.rails!r} selects no usable interface (R2CCL_RAILS). Candidates: {listing}")
    return Choice(numbered, left_out)


def _suitable(candidates: Sequence[Interface], left: dict[str, str]) -> list[RailInfo]:
    rails = []
    for interface in candidates:
        reason = unsuitable(interface)
        if reason:
            left[interface.name] = reason
        else:
            rails.append(_rail(interface, [a for a in interface.addresses if not a.is_link_local]))
    return rails


def _chosen(candidates: Sequence[Interface], selectors: Sequence[str], left: dict[str, str]) -> list[RailInfo]:
    """Rails in the order of the selectors. An interface that is down stays a rail: it may come back."""
    rails: list[RailInfo] = []
    taken: set[str] = set()
    for selector in selectors:
        if _is_loopback(selector):
            if selector not in taken:
                rails.append(_loopback_rail(selector, len([r for r in rails if r.is_loopback])))
            taken.add(selector)
            continue
        hits = [interface for interface in candidates if _matches(selector, interface)]
        if not hits and selector not in left:
            left[selector] = "no interface has this name or address"
            log.warning("rails: %s matches no interface", selector)
        for interface in hits:
            addresses = _addresses_for(selector, interface)
            key = f"{interface.name} {addresses[0].text if _is_address(selector) else ''}"
            if key in taken:
                continue
            reason = unusable(interface)
            if interface.loopback and not _is_address(selector):
                rails.append(_loopback_rail("127.0.0.1", len([r for r in rails if r.is_loopback])))
            elif reason and not (interface.is_down and addresses):
                left[interface.name] = reason
                log.warning("rails: %s is chosen by %s, but it has %s", interface.name, selector, reason)
                continue
            else:
                rails.append(_rail(interface, addresses))
                if interface.is_down:
                    log.warning("rails: %s is chosen by %s, but it is down: %s", interface.name, selector, reason)
            taken.add(key)
            left.pop(interface.name, None)
    used = {rail.name for rail in rails}
    for interface in candidates:
        if interface.name not in used and not (interface.loopback and any(r.is_loopback for r in rails)):
            left.setdefault(interface.name, "not chosen by rails")
    return rails


def _rail(interface: Interface, addresses: Sequence[Address]) -> RailInfo:
    usable = [a for a in addresses if a.usable] or list(addresses)
    ordered = sorted(usable, key=lambda a: (a.is_link_local, a.family))  # global IPv4, global IPv6, link-local
    first = ordered[0]
    text = f"{first.text}%{interface.name}" if first.family == 6 and first.is_link_local else first.text
    return RailInfo(
        name=interface.name,
        index=0,
        address=text,
        prefix_len=first.prefix_len,
        family=first.family,
        fabric=fabric_of(first.text, first.prefix_len),
        others=tuple(f"{a.text}/{a.prefix_len}" for a in ordered[1:8] if not a.is_link_local),
        speed_mbps=interface.speed_mbps,
        numa=interface.numa,
        pci_path=interface.pci_path,
        ifindex=interface.ifindex,
        routed=interface.routed,
        state=DOWN if interface.is_down else UP,
    )


def _loopback_rail(address: str, order: int) -> RailInfo:
    """An emulated rail. All of 127/8 is local without being assigned; such rails are paired by their order."""
    family = ipaddress.ip_address(address).version
    return RailInfo(address, 0, address, 32 if family == 4 else 128, family, f"loopback/{order}", ifindex=1)


def _selectors(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _matches(selector: str, interface: Interface) -> bool:
    if _is_address(selector):
        return bool(_addresses_for(selector, interface))
    return fnmatchcase(interface.name, selector)


def _addresses_for(selector: str, interface: Interface) -> list[Address]:
    """The addresses that a selector stands for: all of an interface's, or the one that it names."""
    if not _is_address(selector):
        return list(interface.addresses)
    bare, _, scope = selector.partition("%")
    if scope and scope not in (interface.name, str(interface.ifindex)):
        return []
    wanted = ipaddress.ip_address(bare)
    return [a for a in interface.addresses if ipaddress.ip_address(a.text) == wanted]


def _is_address(selector: str) -> bool:
    try:
        ipaddress.ip_address(selector.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(selector: str) -> bool:
    return _is_address(selector) and ipaddress.ip_address(selector.partition("%")[0]).is_loopback


def _natural(name: str) -> list[tuple[int, str]]:
    """eth2 before eth10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
