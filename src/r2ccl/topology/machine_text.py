"""A machine in words: tables of its GPUs, RDMA ports and distances, for ``r2ccl-topo``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .machine import Machine, port_rates, ways_from, weights
from .place import Place, path_class
from .port_choice import PortChoice

Rows = list[tuple[str, ...]]


def machine_values(machine: Machine, choices: Sequence[PortChoice] | None) -> dict[str, Any]:
    """Everything that is printed, as plain values. ``choices``: None where nothing was chosen (NCCL's files)."""
    rates = port_rates(machine.devices)
    judged = {(choice.device, choice.port): choice for choice in choices or ()}
    ports = []
    for device in machine.devices:
        for port in device.ports:
            key = (device.name, port.number)
            choice = judged.get(key)
            gid = choice.gid if choice else None
            ports.append(
                {
                    "device": device.name,
                    "port": port.number,
                    "link_layer": port.link_layer,
                    "state": port.state,
                    "mbps": port.mbps,
                    "usable_mbps": rates[key],
                    "lid": port.lid,
                    "netdev": choice.netdev if choice else "",
                    "gid_index": gid.index if gid else None,
                    "gid": (gid.ipv4 or gid.value) if gid else "",
                    "gid_type": gid.type if gid else "",
                    "left_out": choice.reason if choice else "",
                    **_place(device.place),
                }
            )
    without = {key for key, choice in judged.items() if choice.reason}
    gpus = []
    for gpu in machine.gpus:
        ways = ways_from(gpu, machine.devices, without)
        shares = weights(ways)
        gpus.append(
            {
                "index": gpu.index,
                "model": gpu.model,
                **_place(gpu.place),
                "distances": {d.name: path_class(gpu.place, d.place).label for d in machine.devices},
                "order": [
                    {"device": way.device, "port": way.port, "path": way.path.label, "weight": round(share, 4)}
                    for way, share in zip(ways, shares, strict=True)
                ],
            }
        )
    return {"gpus": gpus, "rdma": ports}


def machine_lines(values: dict[str, Any]) -> list[str]:
    """``machine_values`` as tables. Nothing where there is neither GPU nor RDMA device."""
    gpus, ports = values["gpus"], values["rdma"]
    lines: list[str] = []
    if ports:
        rows: Rows = [("device", "port", "link", "state", "Gb/s", "numa", "pci", "interface", "gid")]
        rows += [_port_row(port) for port in ports]
        lines += ["", "rdma ports", *table(rows)]
        left = [(f"{port['device']}/{port['port']}", port["left_out"]) for port in ports if port["left_out"]]
        lines += ["", "rdma ports left out", *(table(left) if left else ["  none"])]
    if gpus:
        rows = [("gpu", "model", "numa", "pci")]
        rows += [(str(gpu["index"]), gpu["model"], _known(gpu["numa"]), gpu["pci"]) for gpu in gpus]
        lines += ["", "gpus", *table(rows)]
    if gpus and ports:
        names = list(dict.fromkeys(port["device"] for port in ports))
        rows = [("gpu", *names)]
        rows += [(str(gpu["index"]), *(gpu["distances"][name] for name in names)) for gpu in gpus]
        lines += ["", "distances", *table(rows)]
        lines += ["", "order of use (share of the traffic)"]
        lines += table([(str(gpu["index"]), _order(gpu["order"])) for gpu in gpus])
    return lines


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, two spaces in front and between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _place(place: Place) -> dict[str, Any]:
    return {"pci": place.bus_id, "root": place.root, "bridges": list(place.bridges), "numa": place.numa}


def _port_row(port: dict[str, Any]) -> tuple[str, ...]:
    speed = _gigabits(port["mbps"])
    if port["usable_mbps"] is not None and port["usable_mbps"] < port["mbps"]:
        speed += f" ({_gigabits(port['usable_mbps'])} by its slot)"
    gid = f"{port['gid']} [{port['gid_index']}] {port['gid_type']}" if port["gid"] else ""
    if port["lid"]:
        gid = f"lid {port['lid']}"
    return (
        port["device"],
        str(port["port"]),
        port["link_layer"] or "?",
        port["state"].lower() or "?",
        speed,
        _known(port["numa"]),
        port["pci"] or "-",
        port["netdev"] or "-",
        gid or "-",
    )


def _order(ways: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{way['device']}/{way['port']} {way['path']} {way['weight']:.1%}" for way in ways) or "no port"


def _gigabits(mbps: float | None) -> str:
    return "?" if mbps is None else f"{mbps / 1000:g}" if mbps == int(mbps) else f"{mbps / 1000:.1f}"


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)
