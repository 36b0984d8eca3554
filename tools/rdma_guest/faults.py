"""Breaks soft RDMA rails, proves that they were broken, and mends them. Inside the guest."""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import subprocess
from dataclasses import dataclass, field

from .rails import Rails, sh

DOWN, PORT_DOWN, ADDRESS, REMOVED = "down", "port-down", "address", "removed"
BLACKHOLE, RX_DROP, TX_DROP = "blackhole", "rx-drop", "tx-drop"
SILENT = (BLACKHOLE, RX_DROP, TX_DROP)
KINDS = (DOWN, PORT_DOWN, ADDRESS, REMOVED, *SILENT)
_RELEASE_S = 20.0
_TABLE = "bridge r2ccl_guest"
_REQUEST = struct.Struct("=16sh22x")  # struct ifreq: name, flags
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


@dataclass
class Breaker:
    """``strike`` a rail of a host, ``evidence`` that it acted, ``heal`` it. One at a time or several.

    ``down``: the NIC is switched off. ``port-down``: its cable is pulled at the switch. ``address``: it loses its
    address, and with it the GID. ``removed``: it is pulled out of the machine. ``blackhole``: the switch silently loses
    what comes from it and what goes to it; ``tx-drop`` and ``rx-drop``: only the one or the other.
    """

    rails: Rails
    broken: list[tuple[str, int, int]] = field(default_factory=list)
    """(kind, host, rail) of what was struck and is not healed."""
    _removals: dict[tuple[int, int], subprocess.Popen[bytes]] = field(default_factory=dict)

    def strike(self, kind: str, host: int, rail: int) -> None:
        """Breaks it now. ``ValueError`` for a kind that does not exist."""
        nic, port = self.rails.nic(host, rail), self.rails.port(host, rail)
        if kind == DOWN:
            switch(nic, False)
        elif kind == PORT_DOWN:
            switch(port, False)
        elif kind == ADDRESS:
            sh(f"ip addr del {self.rails.address(host, rail)}/24 dev {nic}")
        elif kind == REMOVED:
            self._removals[host, rail] = self.rails.remove_nic(host, rail)
        elif kind in SILENT:
            self._drop(kind, port)
        else:
            raise ValueError(f"fault {kind!r}: one of {', '.join(KINDS)}")
        self.broken.append((kind, host, rail))

    def heal(self, kind: str, host: int, rail: int) -> None:
        """Undoes ``strike``."""
        nic, port = self.rails.nic(host, rail), self.rails.port(host, rail)
        roads = "\n".join(self.rails.road_lines(host, rail)) + "\n"
        if kind == DOWN:
            switch(nic, True)
            sh("ip -batch -", roads)
        elif kind == PORT_DOWN:
            switch(port, True)
        elif kind == ADDRESS:
            sh("ip -batch -", f"addr add {self.rails.address(host, rail)}/24 dev {nic}\n{roads}")
        elif kind == REMOVED:
            # Ends when everybody has closed the device, and not before: a program that holds on to it fails here.
            self._removals.pop((host, rail)).wait(_RELEASE_S)
            self.rails.insert_nic(host, rail)
        else:
            sh(f"nft delete chain {_TABLE} {port}")
        self.broken.remove((kind, host, rail))

    def heal_all(self) -> None:
        """Undoes all that was struck."""
        for place in reversed(self.broken[:]):
            self.heal(*place)

    def evidence(self, kind: str, host: int, rail: int) -> bool:
        """Whether the fault acts: by what the kernel shows of the link, or by dropped frames. Before ``heal``."""
        if kind in SILENT:
            return self.dropped(host, rail) > 0
        nic = self.rails.nic(host, rail)
        links = {link["ifname"]: link for link in json.loads(sh("ip -json addr"))}
        if kind == REMOVED:
            return nic not in links
        if kind == ADDRESS:
            return not links[nic]["addr_info"]
        return ("UP" not in links[nic]["flags"]) if kind == DOWN else ("NO-CARRIER" in links[nic]["flags"])

    def dropped(self, host: int, rail: int) -> int:
        """Frames that a silent fault has lost so far."""
        listed = json.loads(sh(f"nft -j list chain {_TABLE} {self.rails.port(host, rail)}"))
        rules = [item["rule"] for item in listed["nftables"] if "rule" in item]
        return sum(part["counter"]["packets"] for rule in rules for part in rule["expr"] if "counter" in part)

    def _drop(self, kind: str, port: str) -> None:
        lines = [f"add table {_TABLE}", f"add chain {_TABLE} {port} {{ type filter hook forward priority 0; }}"]
        if kind != RX_DROP:
            lines.append(f"add rule {_TABLE} {port} iifname {port} counter drop")
        if kind != TX_DROP:
            lines.append(f"add rule {_TABLE} {port} oifname {port} counter drop")
        sh("nft -f -", "\n".join(lines) + "\n")


def switch(interface: str, up: bool) -> None:
    """Switches an interface on or off, by the call itself: starting a program would take longer than its detection."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, _REQUEST.pack(interface.encode(), 0))
        flags = _REQUEST.unpack(answer)[1]
        flags = flags | _IFF_UP if up else flags & ~_IFF_UP
        fcntl.ioctl(sock, _SIOCSIFFLAGS, _REQUEST.pack(interface.encode(), flags))
