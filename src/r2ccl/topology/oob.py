"""Which addresses of this machine are told to other machines for control connections."""

from __future__ import annotations

import ipaddress

from ..config import Config
from ..errors import InvalidArgument
from .interface import find_interfaces
from .model import RankInfo


def oob_addresses(config: Config, me: RankInfo, hint: str | None) -> list[str]:
    """Addresses for control connections, the best first.

    ``Config.oob_interface`` (an interface or an address) alone when it is set, ``InvalidArgument`` when it has none;
    else the address that leads to rank 0 (``hint``), then the rails, since any rail may carry control messages.
    """
    if config.oob_interface:
        return _of_interface(config.oob_interface)
    found = [hint] if hint and not _is_loopback(hint) else []
    found += [rail.address for rail in me.rails if not rail.is_loopback]
    return list(dict.fromkeys(found))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _of_interface(text: str) -> list[str]:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        pass
    else:
        return [text]
    interfaces = find_interfaces()
    for interface in interfaces:
        if interface.name == text:
            usable = [a for a in interface.addresses if a.usable]
            ordered = sorted(usable, key=lambda a: (a.is_link_local, a.family))
            if ordered:
                return [f"{a.text}%{text}" if a.is_link_local and a.family == 6 else a.text for a in ordered]
            raise InvalidArgument(f"oob_interface={text!r} (R2CCL_OOB_INTERFACE) has no address")
    known = ", ".join(interface.name for interface in interfaces)
    raise InvalidArgument(f"oob_interface={text!r} (R2CCL_OOB_INTERFACE): no such interface; there are {known}")
