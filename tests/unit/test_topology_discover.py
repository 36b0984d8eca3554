"""Discovery on recorded trees: what becomes a rail, and the reason for everything else."""

from __future__ import annotations

import json
import logging
import socket
import struct
from pathlib import Path

import pytest

from r2ccl.config import Config
from r2ccl.errors import InvalidArgument, NoRails
from r2ccl.topology import cli
from r2ccl.topology.discover import Choice, choose_rails, describe_self
from r2ccl.topology.interface import Interface, find_interfaces
from r2ccl.topology.model import RankInfo
from r2ccl.topology.netlink import Address, Link, parse_address, parse_gateway_links, parse_link, read_links
from r2ccl.topology.oob import oob_addresses
from r2ccl.topology.sysfs import numa_nodes, read_device

pytestmark = pytest.mark.timeout(20)


def link(name: str, ifindex: int, addresses: str = "", **rest: object) -> Link:
    parsed = [Address(text.rpartition("/")[0], int(text.rpartition("/")[2])) for text in addresses.split()]
    values = {"up": True, "carrier": True, "loopback": False, **rest}
    return Link(name=name, ifindex=ifindex, addresses=parsed, **values)  # type: ignore[arg-type]


def server() -> list[Link]:
    """A GPU server: four NICs (one without a cable, one switched off), a management port, containers, a bond."""
    return [
        link("lo", 1, "127.0.0.1/8 ::1/128", loopback=True),
        link("eno1", 2, "192.168.0.7/24 fe80::7/64", routed=True),
        link("ens1", 3, "10.1.0.7/24 fd01::7/64"),
        link("ens2", 4, "10.2.0.7/24"),
        link("ens10", 5, "10.10.0.7/24", carrier=False),
        link("ens11", 6, "10.11.0.7/24", up=False),
        link("ens12", 7),
        link("ens13", 8, "fe80::13/64"),
        link("docker0", 9, "172.17.0.1/16", kind="bridge"),
        link("br-1f2e3d", 10, "172.18.0.1/16", kind="bridge"),
        link("veth12ab", 11, "fe80::99/64", kind="veth", master=9),
        link("lab", 12, "10.77.0.1/24", kind="bridge"),
        link("ens20", 13, "10.20.0.7/24", master=14),
        link("bond0", 14, "10.14.0.7/24", kind="bond"),
        link("tun0", 15, "10.15.0.7/24", kind="tun"),
        link("wg0", 16, "10.16.0.7/24", kind="wireguard"),
        link("ifb0", 17, up=False, kind="ifb"),
        Link("ens30", 18, True, True, False, addresses=[Address("fd30::1", 64, usable=False)]),
    ]


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """The part of /sys that belongs to ``server()``."""
    net = tmp_path / "class" / "net"

    def device(name: str, ifindex: int, pci: str, speed: str | None, numa: str, driver: str = "mlx5_core") -> None:
        folder = net / name
        folder.mkdir(parents=True)
        (folder / "ifindex").write_text(f"{ifindex}\n")
        if speed is not None:
            (folder / "speed").write_text(speed)
        target = tmp_path / "devices" / "pci0000:16" / "0000:16:01.0" / pci
        target.mkdir(parents=True)
        (target / "numa_node").write_text(numa)
        (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (target / "driver").symlink_to(tmp_path / "drivers" / driver)
        (folder / "device").symlink_to(target)

    device("ens1", 3, "0000:3b:00.0", "400000\n", "0\n")
    device("ens2", 4, "0000:5e:00.1", "-1\n", "1\n")
    device("eno1", 2, "0000:01:00.0", "10000\n", "-1\n", "virtio_net")
    device("bond0", 99, "0000:99:00.0", "1\n", "9\n")  # the tree of another network namespace: another interface
    node = tmp_path / "devices" / "system" / "node"
    for number, cpus in ((0, "0-3,8-11"), (1, "4-7,12-15")):
        (node / f"node{number}").mkdir(parents=True)
        (node / f"node{number}" / "cpulist").write_text(cpus + "\n")
    return tmp_path


def choose(config: Config, links: list[Link] | None = None, sysfs: Path = Path("/nowhere")) -> Choice:
    return choose_rails(find_interfaces(sysfs, server() if links is None else links), config)


def test_case_12_suitable_interfaces_are_taken_and_every_other_one_has_a_reason(sysfs: Path) -> None:
    choice = choose(Config(), sysfs=sysfs)
    assert [(rail.index, rail.name, rail.address) for rail in choice.rails] == [
        (0, "bond0", "10.14.0.7"),
        (1, "eno1", "192.168.0.7"),
        (2, "ens1", "10.1.0.7"),
        (3, "ens2", "10.2.0.7"),
    ]
    reasons = {entry.name: entry.reason for entry in choice.left_out}
    assert reasons == {
        "lo": "loopback",
        "ens10": "no carrier",
        "ens11": "down",
        "ens12": "no address",
        "ens13": "link-local addresses only",
        "docker0": "its name is one of containers or virtual machines",
        "br-1f2e3d": "its name is one of containers or virtual machines",
        "veth12ab": "its name is one of containers or virtual machines",
        "lab": "a bridge",
        "ens20": "part of bond0",
        "tun0": "a tunnel",
        "wg0": "a tunnel",
        "ifb0": "a pseudo-device",
        "ens30": "no usable address (tentative, deprecated or duplicate)",
    }


def test_devices_are_described_as_far_as_they_are_known(sysfs: Path) -> None:
    rails = {rail.name: rail for rail in choose(Config(), sysfs=sysfs).rails}
    known = {name: (rail.speed_mbps, rail.numa, rail.pci_path) for name, rail in rails.items()}
    assert known == {
        "ens1": (400_000, 0, "0000:3b:00.0"),
        "ens2": (None, 1, "0000:5e:00.1"),
        "eno1": (None, None, "0000:01:00.0"),  # virtio's speed is a constant of its driver
        "bond0": (None, None, None),  # sysfs shows another interface of that name
    }
    assert rails["ens1"].others == ("fd01::7/64",)
    assert rails["eno1"].routed
    assert not rails["ens1"].routed
    assert numa_nodes(sysfs) == {0: "0-3,8-11", 1: "4-7,12-15"}
    assert read_device(sysfs, "ens1", 3, kind="veth").speed_mbps is None


def test_a_veth_with_a_name_of_its_own_is_a_rail_since_containers_have_nothing_else() -> None:
    links = [link("rail0", 2, "10.100.0.1/24", kind="veth"), link("eth0", 3, "10.0.0.1/24", kind="veth")]
    assert [rail.name for rail in choose(Config(), links).rails] == ["eth0", "rail0"]


def test_natural_order_and_exclusion() -> None:
    links = [link(f"eth{n}", n + 2, f"10.{n}.0.1/24") for n in (10, 9, 2, 1)]
    choice = choose(Config(exclude_rails="eth9, 10.1.0.1"), links)
    assert [rail.name for rail in choice.rails] == ["eth2", "eth10"]
    assert {e.name: e.reason for e in choice.left_out} == {
        "eth1": "excluded by exclude_rails=10.1.0.1",
        "eth9": "excluded by exclude_rails=eth9",
    }
    with pytest.raises(NoRails, match="eth9: excluded by"):
        choose(Config(rails="eth9", exclude_rails="eth9"), links)


def test_rails_are_chosen_by_name_glob_and_address_in_the_order_given() -> None:
    choice = choose(Config(rails="ens2, ens1*, fd01::7,10.77.0.1"))
    assert [(rail.name, rail.address, rail.state) for rail in choice.rails] == [
        ("ens2", "10.2.0.7", "up"),
        ("ens1", "10.1.0.7", "up"),
        ("ens10", "10.10.0.7", "down"),
        ("ens11", "10.11.0.7", "down"),
        ("ens13", "fe80::13%ens13", "up"),
        ("ens1", "fd01::7", "up"),
        ("lab", "10.77.0.1", "up"),
    ]
    reasons = {entry.name: entry.reason for entry in choice.left_out}
    assert reasons["ens12"] == "no address"
    assert reasons["eno1"] == "not chosen by rails"
    assert [rail.index for rail in choice.rails] == list(range(7))


def test_case_16_a_chosen_rail_that_is_down_is_kept_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "r2ccl"):
        choice = choose(Config(rails="ens1,ens10,nosuch*"))
    assert [(rail.name, rail.state) for rail in choice.rails] == [("ens1", "up"), ("ens10", "down")]
    assert "ens10 is chosen by ens10, but it is down: no carrier" in caplog.text
    assert "nosuch* matches no interface" in caplog.text


def test_case_12_a_choice_that_matches_nothing_lists_all_candidates() -> None:
    with pytest.raises(NoRails) as caught:
        choose(Config(rails="mlx*"))
    text = str(caught.value)
    assert text.startswith("rails='mlx*' selects no usable interface (R2CCL_RAILS)")
    for name in ("mlx*: no interface has this name", "ens1: not chosen", "docker0: not chosen"):
        assert name in text


def test_emulated_rails_on_loopback() -> None:
    choice = choose(Config(rails="127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.2"))
    assert [(rail.address, rail.fabric) for rail in choice.rails] == [
        ("127.0.0.1", "loopback/0"),
        ("127.0.0.2", "loopback/1"),
        ("127.0.0.3", "loopback/2"),
    ]
    assert [rail.fabric for rail in choose(Config(rails="lo")).rails] == ["loopback/0"]
    assert [rail.family for rail in choose(Config(rails="::1")).rails] == [6]


def test_a_machine_without_any_interface() -> None:
    lone = [link("lo", 1, "127.0.0.1/8", loopback=True)]
    assert choose(Config(), lone).rails == ()
    assert [rail.address for rail in choose(Config(shm=False), lone).rails] == ["127.0.0.1"]


def test_rails_beyond_the_limit_are_left_out() -> None:
    many = [link(f"e{n}", n + 2, f"10.{n}.0.1/24") for n in range(70)]
    choice = choose(Config(), many)
    assert len(choice.rails) == 64
    assert {e.reason for e in choice.left_out} == {"more than 64 rails"}


def test_this_machine_is_described_and_the_description_travels() -> None:
    assert any(entry.loopback for entry in read_links())
    info = describe_self(Config(), 5)
    assert RankInfo.from_bytes(info.to_bytes(), 5) == info


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def test_netlink_messages_are_parsed() -> None:
    head = struct.pack("=BxHiII", 0, 1, 7, 0x1 | 0x8, 0)
    info = attribute(18, attribute(1, b"veth\0"))
    parsed = parse_link(
        head + attribute(3, b"rail0\0") + info + attribute(33, b"\0") + attribute(10, struct.pack("=I", 4))
    )
    assert parsed == Link("rail0", 7, True, False, True, "veth", 4)
    own, other = socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2")
    body = struct.pack("=BBBBI", socket.AF_INET, 31, 0, 0, 7) + attribute(1, other) + attribute(2, own)
    assert parse_address(body) == (7, Address("10.0.0.1", 31))
    tentative = struct.pack("=BBBBI", socket.AF_INET6, 64, 0x40, 0, 7) + attribute(1, b"\xfd" + bytes(15))
    assert parse_address(tentative) == (7, Address("fd00::", 64, usable=False))
    route = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0)
    assert parse_gateway_links(route + attribute(4, struct.pack("=I", 7))) == []
    assert parse_gateway_links(route + attribute(4, struct.pack("=I", 7)) + attribute(5, own)) == [7]
    hops = b"".join(
        struct.pack("=HBBi", 8 + len(gateway), 0, 0, index) + gateway
        for index, gateway in ((3, attribute(5, own)), (4, b""))
    )
    assert parse_gateway_links(route + attribute(9, hops)) == [3]
    assert parse_address(body[:8]) == (7, None)  # cut short


def test_control_addresses_prefer_the_way_to_rank_0() -> None:
    info = describe_self(Config(rails="127.0.0.1"), 0)
    assert oob_addresses(Config(), info, "10.0.0.1") == ["10.0.0.1"]
    assert oob_addresses(Config(), info, "127.0.0.1") == []
    assert oob_addresses(Config(oob_interface="10.9.9.9"), info, "10.0.0.1") == ["10.9.9.9"]
    assert oob_addresses(Config(oob_interface="lo"), info, None)[0] == "127.0.0.1"
    with pytest.raises(InvalidArgument, match=r"oob_interface='nosuch'.*no such interface; there are .*lo"):
        oob_addresses(Config(oob_interface="nosuch"), info, None)


def test_the_command_prints_tables_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("R2CCL_RAILS", raising=False)
    assert cli.main(["--rails", "127.0.0.1,127.0.0.2"]) == 0
    text = capsys.readouterr().out
    assert "127.0.0.2/32" in text
    assert "not chosen by rails" in text
    assert cli.main(["--json", "--rails", "127.0.0.1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rails"][0]["fabric"] == "loopback/0"
    assert report["host"]["host_id"]
    assert cli.main(["--rails", "nosuch"]) == 1
    assert "selects no usable interface" in capsys.readouterr().err


def test_interface_states() -> None:
    assert Interface("a", 1, True, False, False).is_down
    assert Interface("a", 1, False, True, False).is_down
    assert not Interface("a", 1, True, True, False).is_down
