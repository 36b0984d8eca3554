"""What each rank tells the others about its listening sockets."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import BootstrapError
from ..topology.model import MAX_RAILS

_TOKEN = re.compile(r"[0-9a-f]{16,64}")
_MAX_ADDRESSES = 4 * MAX_RAILS


@dataclass(frozen=True)
class RailPort:
    """Where a rail listens. Port 0: it cannot, for ``reason``."""

    rail: int
    address: str
    port: int
    reason: str = ""


@dataclass(frozen=True)
class Announcement:
    """The listening sockets of one rank.

    Attributes:
        token: names this set of sockets; diallers repeat it, so that an old port reused by another run is noticed.
        unix: abstract AF_UNIX name without its leading zero byte; empty: none.
        oob: addresses at which it listens for control connections, the best first; none: loopback only.
        oob_port: TCP port of control connections; 0: none.
        rails: by rail and address.
        shm: whether this rank wants shared memory.
    """

    token: str
    unix: str
    oob: tuple[str, ...]
    oob_port: int
    rails: tuple[RailPort, ...]
    shm: bool

    def to_bytes(self) -> bytes:
        """Compact JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, rank: int) -> Announcement:
        """The checked value; ``BootstrapError`` names the rank and what is wrong."""
        try:
            raw = json.loads(data)
            _require(isinstance(raw, dict), "not an object")
            token, unix, oob, rails = raw.get("token"), raw.get("unix"), raw.get("oob"), raw.get("rails")
            _require(isinstance(token, str) and _TOKEN.fullmatch(token), "token")
            _require(isinstance(unix, str) and len(unix) <= 64 and unix.isascii() and unix.isprintable(), "unix")
            _require(isinstance(oob, list) and len(oob) <= _MAX_ADDRESSES, "oob")
            _require(isinstance(rails, list) and len(rails) <= _MAX_ADDRESSES, "rails")
            _require(type(raw.get("shm")) is bool, "shm")
            return cls(
                token,
                unix,
                tuple(_address(item) for item in oob),
                _port(raw.get("oob_port")),
                tuple(_rail_port(item) for item in rails),
                raw["shm"],
            )
        except (ValueError, RecursionError) as error:
            raise BootstrapError(f"rank {rank} announced malformed listening sockets: {error}") from None

    def rail_port(self, rail: int, address: str) -> RailPort:
        """The entry of a rail and address; one that says so when there is none."""
        for entry in self.rails:
            if entry.rail == rail and entry.address == address:
                return entry
        return RailPort(rail, address, 0, "it does not listen on this address")


def _require(good: object, what: str) -> None:
    if not good:
        raise ValueError(what)


def _address(value: Any) -> str:
    _require(isinstance(value, str) and len(value) <= 64, "address")
    ipaddress.ip_address(value.partition("%")[0])
    return str(value)


def _port(value: Any) -> int:
    _require(type(value) is int and 0 <= value <= 65535, "port")
    return int(value)


def _rail_port(item: Any) -> RailPort:
    _require(isinstance(item, dict), "rails")
    rail, reason = item.get("rail"), item.get("reason")
    _require(type(rail) is int and 0 <= rail < MAX_RAILS, "rail")
    _require(isinstance(reason, str) and len(reason) <= 200 and reason.isprintable(), "reason")
    return RailPort(int(rail), _address(item.get("address")), _port(item.get("port")), reason)
