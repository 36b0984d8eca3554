"""Breaks soft RDMA rails, proves that they were broken, and mends them. Inside the guest."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from .rails import Rails, sh

DOWN, PORT_DOWN, DROP, REMOVED = "down", "port-down", "drop", "removed"
KINDS = (DOWN, PORT_DOWN, DROP, REMOVED)
_TABLE = "bridge r2ccl_guest"


@dataclass
class Breaker:
    """``strike`` a rail of a host, ``evidence`` that it acted, ``heal`` it. One at a time or several."""

    rails: Rails
    broken: list[tuple[str, int, int]] = field(default_factory=list)
    """(kind, host, rail) of what was struck and is not healed."""

    def strike(self, kind: str, host: int, rail: int) -> None:
        """``down``: the NIC is switched off; ``port-down``: its cable is pulled at the switch; ``drop``: the switch
        silently loses what goes to it and comes from it; ``removed``: the NIC is pulled out of the machine."""
        nic, port = self.rails.nic(host, rail), self.rails.port(host, rail)
        if kind == DOWN:
            sh(f"ip link set {nic} down")
        elif kind == PORT_DOWN:
            sh(f"ip link set {port} down")
        elif kind == DROP:
            self._drop(port)
        elif kind == REMOVED:
            self.rails.remove_nic(host, rail)
        else:
            raise ValueError(f"fault {kind!r}: one of {', '.join(KINDS)}")
        self.broken.append((kind, host, rail))

    def heal(self, kind: str, host: int, rail: int) -> None:
        """Undoes ``strike``."""
        nic, port = self.rails.nic(host, rail), self.rails.port(host, rail)
        if kind == DOWN:
            lines = [f"link set {nic} up", *self.rails.road_lines(host, rail)]
            sh("ip -batch -", "\n".join(lines) + "\n")
        elif kind == PORT_DOWN:
            sh(f"ip link set {port} up")
        elif kind == DROP:
            sh(f"nft delete chain {_TABLE} {port}")
        elif kind == REMOVED:
            self.rails.insert_nic(host, rail)
        self.broken.remove((kind, host, rail))

    def heal_all(self) -> None:
        """Undoes all that was struck."""
        for place in reversed(self.broken[:]):
            self.heal(*place)

    def evidence(self, kind: str, host: int, rail: int) -> bool:
        """Whether the fault acts: by what the kernel shows of the link, or by dropped frames. Before ``heal``."""
        if kind == DROP:
            return self.dropped(host, rail) > 0
        links = {link["ifname"]: link for link in json.loads(sh("ip -json link"))}
        if kind == REMOVED:
            return self.rails.nic(host, rail) not in links
        flags = links[self.rails.nic(host, rail)]["flags"]
        return ("UP" not in flags) if kind == DOWN else ("NO-CARRIER" in flags)

    def dropped(self, host: int, rail: int) -> int:
        """Frames that ``drop`` has lost so far."""
        listed = json.loads(sh(f"nft -j list chain {_TABLE} {self.rails.port(host, rail)}"))
        rules = [item["rule"] for item in listed["nftables"] if "rule" in item]
        return sum(part["counter"]["packets"] for rule in rules for part in rule["expr"] if "counter" in part)

    def _drop(self, port: str) -> None:
        lines = [
            f"add table {_TABLE}",
            f"add chain {_TABLE} {port} {{ type filter hook forward priority 0; }}",
            f"add rule {_TABLE} {port} iifname {port} counter drop",
            f"add rule {_TABLE} {port} oifname {port} counter drop",
        ]
        sh("nft -f -", "\n".join(lines) + "\n")
