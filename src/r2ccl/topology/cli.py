"""``r2ccl-topo``: what was found on this machine: rails, RDMA ports, GPUs, their distances; and why the rest is left out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import R2cclError
from .discover import choose_rails
from .identity import Identity, read_identity
from .interface import SYSFS, find_interfaces
from .machine import read_machine
from .machine_text import machine_lines, machine_values, table
from .model import RailInfo
from .nccl_xml import read_nccl_xml
from .port_choice import judge_ports
from .sysfs import numa_nodes
from .sysfs_links import links_of_tree


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 when the selection leaves no rail; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(prog="r2ccl-topo", description=__doc__)
    parser.add_argument("--rails", metavar="LIST", help="names, globs or addresses, comma-separated (R2CCL_RAILS)")
    parser.add_argument("--exclude-rails", metavar="LIST", help="the same form, never to be used (R2CCL_EXCLUDE_RAILS)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--sysfs", type=Path, metavar="DIR", default=SYSFS, help="a recorded tree in place of /sys")
    parser.add_argument(
        "--nccl-xml", type=Path, metavar="FILE", help="the machine of an NCCL topology file in place of this one"
    )
    options = parser.parse_args(argv)
    given = {"rails": options.rails, "exclude_rails": options.exclude_rails}
    try:
        if options.nccl_xml:
            values = machine_values(read_nccl_xml(options.nccl_xml), None)
            print(json.dumps(values, indent=2) if options.json else "\n".join(machine_lines(values)).lstrip())
            return 0 if values["rdma"] else 1
        config = Config.from_env(**{name: value for name, value in given.items() if value is not None})
        report = collect(config, options.sysfs)
    except R2cclError as error:
        print(f"r2ccl-topo: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2) if options.json else as_text(report))
    return 0 if report["rails"] or any(not port["left_out"] for port in report["rdma"]) else 1


def collect(config: Config, sysfs: Path = SYSFS) -> dict[str, Any]:
    """Everything that is printed, as plain values."""
    machine = read_machine(sysfs)
    links = None if sysfs == SYSFS else links_of_tree(sysfs, machine.devices)
    interfaces = find_interfaces(sysfs, links)
    choice = choose_rails(interfaces, config)
    identity = read_identity(config)
    here = {"host": {"host_id": identity.host_id, **asdict(identity)}} if links is None else {}
    return {
        **here,
        "numa": {str(node): cpus for node, cpus in numa_nodes(sysfs).items()},
        "rails": [asdict(rail) for rail in choice.rails],
        "left_out": [asdict(entry) for entry in choice.left_out],
        **machine_values(machine, judge_ports(machine.devices, interfaces)),
    }


def as_text(report: dict[str, Any]) -> str:
    """The report as a table."""
    lines = _host_lines(report["host"]) if "host" in report else []
    lines += [f"numa   node {node}: CPUs {cpus}" for node, cpus in report["numa"].items()]
    lines += ["", "rails"]
    rows: list[tuple[str, ...]] = [("#", "name", "address", "network", "Mb/s", "numa", "pci", "state")]
    rows += [_row(RailInfo(**{**rail, "others": tuple(rail["others"])})) for rail in report["rails"]]
    lines += table(rows) if report["rails"] else ["  none"]
    lines += ["", "left out"]
    left = [(entry["name"], entry["reason"]) for entry in report["left_out"]]
    lines += table(left) if left else ["  none"]
    return "\n".join(lines + machine_lines(report))


def _host_lines(host: dict[str, Any]) -> list[str]:
    identity = Identity(host["boot_id"], host["netns"], host["shm_device"], host["override"])
    return [
        f"host   {identity.host_id}" + (" (host_id)" if identity.override else ""),
        f"       boot {identity.boot_id}, network namespace {identity.netns}, /dev/shm {identity.shm_device}",
    ]


def _row(rail: RailInfo) -> tuple[str, ...]:
    known = (rail.speed_mbps, rail.numa, rail.pci_path)
    speed, numa, pci = ("?" if value is None else str(value) for value in known)
    return str(rail.index), rail.name, f"{rail.address}/{rail.prefix_len}", rail.fabric, speed, numa, pci, rail.state


if __name__ == "__main__":
    sys.exit(main())
