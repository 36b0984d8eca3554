"""Which RDMA port belongs to a rail: from sysfs, or as ``Config.rdma_devices`` says."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..config import Config
from ..errors import InvalidArgument
from .model import ETHERNET, INFINIBAND, MAX_LEFT_OUT, MAX_TEXT, LeftOut, RailInfo, RankInfo

log = logging.getLogger("r2ccl.topology")

SYSFS = Path("/sys")
_ZERO_GID = ipaddress.IPv6Address(0)


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device. ``gid_index`` -1: peers are named by local identifiers (InfiniBand)."""

    device: str
    port: int
    gid_index: int
    layer: str


@dataclass(frozen=True)
class GidEntry:
    """A line of a port's table of global identifiers."""

    index: int
    gid: ipaddress.IPv6Address
    kind: str
    interface: str


def add_rdma(
    rails: tuple[RailInfo, ...], config: Config, root: Path = SYSFS
) -> tuple[tuple[RailInfo, ...], list[LeftOut]]:
    """The rails with their RDMA ports filled in; with ``transport="verbs"`` those without one are left out."""
    if config.transport == "tcp":
        return rails, []
    kept: list[RailInfo] = []
    left = []
    for rail in rails:
        port = port_of(rail, config, root)
        if port is not None:
            kept.append(with_port(rail, port))
        elif config.transport == "auto":
            kept.append(rail)
        else:
            left.append(LeftOut(rail.name, "no RDMA port belongs to it (transport is verbs)"))
    return tuple(replace(rail, index=i) for i, rail in enumerate(kept)), left


def with_port(rail: RailInfo, port: RdmaPort) -> RailInfo:
    """The rail over that port."""
    return replace(rail, rdma_device=port.device, rdma_port=port.port, rdma_gid=port.gid_index, rdma_layer=port.layer)


def drop_unusable(info: RankInfo, config: Config, try_port: Callable[[str, str, int, int], str]) -> RankInfo:
    """The rank without the RDMA ports that it cannot use; ``try_port`` says why, or nothing.

    A rail whose port is no good is one without a port: over TCP, or left out with ``transport="verbs"``.
    """
    rails: list[RailInfo] = []
    left = list(info.left_out)
    for rail in info.rails:
        why = ""
        if rail.rdma_device:
            why = try_port(config.verbs_library, rail.rdma_device, rail.rdma_port, rail.rdma_gid)
        if not why:
            rails.append(rail)
        elif config.transport == "verbs":
            log.warning("rail %s is left out: %s", rail.name, why)
            left.append(LeftOut(rail.name, why[:MAX_TEXT]))
        else:
            log.warning("rail %s goes over TCP: %s", rail.name, why)
            rails.append(with_port(rail, RdmaPort("", 0, -1, "")))
    numbered = tuple(replace(rail, index=i) for i, rail in enumerate(rails))
    return replace(info, rails=numbered, left_out=tuple(left[-MAX_LEFT_OUT:]))


def speak_verbs(a: RailInfo, b: RailInfo) -> bool:
    """Whether two rails are joined by queue pairs: both have a port, of the same kind. Equal at both ends."""
    return bool(a.rdma_device and b.rdma_device) and a.rdma_layer == b.rdma_layer


def port_of(rail: RailInfo, config: Config, root: Path = SYSFS) -> RdmaPort | None:
    """The RDMA port of a rail as it is now; None: there is none."""
    given = chosen_ports(config.rdma_devices).get(rail.name)
    if given is not None:
        device, port, gid_index = given
        layer = _text(_port_folder(root, device, port) / "link_layer") or ETHERNET
        if gid_index is None:
            best = _best_gid(read_gids(_port_folder(root, device, port)), rail)
            gid_index = best.index if best is not None else -1 if layer == INFINIBAND else 0
        return RdmaPort(device, port, gid_index, layer)
    if rail.is_loopback:
        return None
    for device, port in _ports(root):
        folder = _port_folder(root, device, port)
        if (_text(folder / "link_layer") or "") == INFINIBAND:
            if (device, port) == _device_of_interface(root, rail.name):
                return RdmaPort(device, port, -1, INFINIBAND)
            continue
        entries = [entry for entry in read_gids(folder) if entry.interface == rail.name]
        best = _best_gid(entries, rail)
        if best is not None:
            return RdmaPort(device, port, best.index, ETHERNET)
    return None


def chosen_ports(text: str) -> dict[str, tuple[str, int, int | None]]:
    """``Config.rdma_devices``: rail -> (device, port, GID index or None)."""
    found: dict[str, tuple[str, int, int | None]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        rail, sign, where = item.partition("=")
        parts = where.split(":")
        try:
            if not sign or not rail or not parts[0] or len(parts) > 3:
                raise ValueError
            port = int(parts[1]) if len(parts) > 1 else 1
            gid_index = int(parts[2]) if len(parts) > 2 else None
            if not 1 <= port <= 255 or (gid_index is not None and not -1 <= gid_index <= 255):
                raise ValueError
        except ValueError:
            raise InvalidArgument(
                f"Config.rdma_devices: {item!r} is not RAIL=DEVICE[:PORT[:GID_INDEX]], such as eth2=mlx5_1:1:3"
            ) from None
        found[rail] = (parts[0], port, gid_index)
    return found


def read_gids(port_folder: Path) -> list[GidEntry]:
    """The entries of a port's table that are in use."""
    found = []
    for path in sorted((port_folder / "gids").glob("*"), key=lambda p: int(p.name) if p.name.isdigit() else -1):
        text = _text(path)
        try:
            gid = ipaddress.IPv6Address(text or "::")
            index = int(path.name)
        except ValueError:
            continue
        if gid == _ZERO_GID:
            continue
        attributes = port_folder / "gid_attrs"
        kind = _text(attributes / "types" / path.name) or ""
        found.append(GidEntry(index, gid, kind, _text(attributes / "ndevs" / path.name) or ""))
    return found


def _best_gid(entries: Iterable[GidEntry], rail: RailInfo) -> GidEntry | None:
    """RoCE v2 (it can be routed) before v1, the rail's own address before others, IPv4 ones before the rest."""
    own = ipaddress.ip_address(rail.address.partition("%")[0])

    def rank(entry: GidEntry) -> tuple[bool, bool, bool, int]:
        mapped = entry.gid.ipv4_mapped
        return ("v2" not in entry.kind, (mapped or entry.gid) != own, mapped is None, entry.index)

    return min(entries, key=rank, default=None)


def _ports(root: Path) -> Iterator[tuple[str, int]]:
    for device in sorted((root / "class" / "infiniband").glob("*")):
        for port in sorted((device / "ports").glob("*")):
            if port.name.isdigit():
                yield device.name, int(port.name)


def _port_folder(root: Path, device: str, port: int) -> Path:
    return root / "class" / "infiniband" / device / "ports" / str(port)


def _device_of_interface(root: Path, name: str) -> tuple[str, int] | None:
    """The port below an IPoIB interface."""
    folder = root / "class" / "net" / name
    devices = sorted((folder / "device" / "infiniband").glob("*"))
    if not devices:
        return None
    number = _text(folder / "dev_port") or "0"
    return devices[0].name, (int(number) if number.isdigit() else 0) + 1


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:  # an empty entry of the table is refused, not empty
        return None
