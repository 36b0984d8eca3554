"""Which RDMA port belongs to a rail: from sysfs, or as ``Config.rdma_devices`` says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..config import Config
from ..errors import InvalidArgument
from .interface import SYSFS
from .model import ETHERNET, INFINIBAND, MAX_LEFT_OUT, MAX_TEXT, LeftOut, RailInfo, RankInfo
from .pci import read_number
from .port_choice import best_gid, is_of, may_be_of
from .ports import RdmaDevice
from .ports_sysfs import read_devices, read_devices_of

log = logging.getLogger("r2ccl.topology")


@dataclass(frozen=True)
class RdmaRail:
    """The port of a rail. ``gid_index`` -1: peers are named by local identifiers (InfiniBand)."""

    device: str
    port: int
    gid_index: int
    layer: str


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


def with_port(rail: RailInfo, port: RdmaRail) -> RailInfo:
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
            rails.append(with_port(rail, RdmaRail("", 0, -1, "")))
    numbered = tuple(replace(rail, index=i) for i, rail in enumerate(rails))
    return replace(info, rails=numbered, left_out=tuple(left[-MAX_LEFT_OUT:]))


def speak_verbs(a: RailInfo, b: RailInfo) -> bool:
    """Whether two rails are joined by queue pairs: both have a port, of the same kind. Equal at both ends."""
    return bool(a.rdma_device and b.rdma_device) and a.rdma_layer == b.rdma_layer


def port_of(rail: RailInfo, config: Config, root: Path = SYSFS) -> RdmaRail | None:
    """The RDMA port of a rail as it is now; None: there is none."""
    given = chosen_ports(config.rdma_devices).get(rail.name)
    if given is None and rail.is_loopback:
        return None
    if given is not None:
        return _given_port(rail, given, read_devices(root))
    addresses = [rail.address.partition("%")[0], *(text.rpartition("/")[0] for text in rail.others)]
    for device in read_devices_of(root, rail.name):
        for port in device.ports:
            if port.link_layer == INFINIBAND:
                if (device.name, port.number) == _port_of_ipoib(root, rail.name):
                    return RdmaRail(device.name, port.number, -1, INFINIBAND)
            elif may_be_of(device, rail.pci_path):
                gid = best_gid(port, rail.name, addresses, own_card=is_of(device, rail.pci_path))
                if gid is not None:
                    return RdmaRail(device.name, port.number, gid.index, ETHERNET)
    return None


def _given_port(rail: RailInfo, given: tuple[str, int, int | None], devices: Sequence[RdmaDevice]) -> RdmaRail:
    """What ``Config.rdma_devices`` says, whatever sysfs knows of it."""
    name, number, gid_index = given
    ports = [port for device in devices if device.name == name for port in device.ports if port.number == number]
    layer = ports[0].link_layer if ports else ETHERNET
    if gid_index is None and ports:
        best = best_gid(ports[0], "", [rail.address.partition("%")[0]], own_card=True)
        gid_index = best.index if best is not None else None
    if gid_index is None:
        gid_index = -1 if layer == INFINIBAND else 0
    return RdmaRail(name, number, gid_index, layer or ETHERNET)


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


def _port_of_ipoib(root: Path, name: str) -> tuple[str, int] | None:
    """The port below an IPoIB interface."""
    folder = root / "class" / "net" / name
    devices = sorted((folder / "device" / "infiniband").glob("*"))
    return (devices[0].name, (read_number(folder / "dev_port") or 0) + 1) if devices else None
