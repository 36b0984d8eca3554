"""GPUs, RDMA ports and distances of recorded machines; the order of failover and the shares that follow from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from topology_trees import FIXTURES, listings, tree

from r2ccl.config import Config
from r2ccl.errors import InvalidArgument
from r2ccl.topology import cli, ports_sysfs
from r2ccl.topology.discover import choose_rails
from r2ccl.topology.interface import find_interfaces
from r2ccl.topology.machine import Machine, Way, goes_direct, port_rates, read_machine, seen_from, ways_from, weights
from r2ccl.topology.model import RailInfo, RankInfo
from r2ccl.topology.nccl_xml import MAX_DEPTH, parse_nccl_xml, read_nccl_xml
from r2ccl.topology.pci import Gpu, slot_mbps
from r2ccl.topology.place import PathClass, Place, path_class
from r2ccl.topology.port_choice import PortChoice, judge_ports
from r2ccl.topology.ports import ACTIVE, RdmaDevice, RdmaPort
from r2ccl.topology.rdma import RdmaRail, add_rdma, port_of
from r2ccl.topology.sysfs_links import links_of_tree

pytestmark = pytest.mark.timeout(30)


def machine(name: str, root: Path) -> Machine:
    return read_machine(tree(name, root))


def judged(name: str, root: Path) -> dict[str, PortChoice]:
    devices = ports_sysfs.read_devices(tree(name, root))
    interfaces = find_interfaces(root, links_of_tree(root, devices))
    return {choice.device: choice for choice in judge_ports(devices, interfaces)}


def distances(found: Machine) -> list[str]:
    """One letter a device, one row a GPU."""
    return ["".join(path_class(gpu.place, d.place).label[0] for d in found.devices) for gpu in found.gpus]


def order(found: Machine, gpu: int) -> list[str]:
    return [way.device for way in ways_from(found.gpus[gpu], found.devices)]


def test_eight_gpus_with_eight_nics_below_four_switches(tmp_path: Path) -> None:
    found = machine("eight-gpus-eight-nics", tmp_path)
    assert [gpu.place.bus_id for gpu in found.gpus[:3]] == ["0000:19:00.0", "0000:1b:00.0", "0000:3a:00.0"]
    assert [gpu.place.numa for gpu in found.gpus] == [0] * 4 + [1] * 4
    assert distances(found) == [
        "ssnnaaaan",
        "ssnnaaaan",
        "nnssaaaan",
        "nnssaaaan",
        "aaaassnna",
        "aaaassnna",
        "aaaannssa",
        "aaaannssa",
    ]
    assert order(found, 0) == [f"mlx5_{i}" for i in (0, 1, 2, 3, 8, 4, 5, 6, 7)]
    assert order(found, 1)[:5] == ["mlx5_1", "mlx5_0", "mlx5_3", "mlx5_2", "mlx5_8"], (
        "neighbours begin with different NICs"
    )
    assert order(found, 7)[:2] == ["mlx5_7", "mlx5_6"]


def test_unequal_paths_never_get_equal_shares(tmp_path: Path) -> None:
    found = machine("eight-gpus-eight-nics", tmp_path)
    ways = ways_from(found.gpus[0], found.devices)
    share = dict(zip((way.device for way in ways), weights(ways), strict=True))
    assert sum(share.values()) == pytest.approx(1)
    assert share["mlx5_0"] == share["mlx5_1"]
    assert share["mlx5_2"] == pytest.approx(share["mlx5_0"] / 2)
    assert share["mlx5_4"] == pytest.approx(share["mlx5_0"] * 0.175)
    assert share["mlx5_8"] == pytest.approx(share["mlx5_2"] / 4), "a quarter of the speed at the same distance"


def test_rails_count_for_what_the_own_gpu_gets_through_them(tmp_path: Path) -> None:
    root = tree("eight-gpus-eight-nics", tmp_path)
    plain = RailInfo("", 0, "10.0.0.1", 24, 4, "10.0.0.0/24", speed_mbps=400_000)
    rails = [replace(plain, name=f"ib{i}", index=i, rdma_device=f"mlx5_{i}", rdma_port=1) for i in range(8)]
    rails.append(replace(plain, name="storage0", index=8))  # without an RDMA port: by its interface
    info = RankInfo(0, "host", "ns", 1, "label", tuple(rails))
    near = seen_from(info, "0000:19:00.0", root)
    far = seen_from(info, "0000:BC:00.0", root)  # as the driver writes it
    assert [rail.reach for rail in near.rails] == [1.0, 1.0, 0.5, 0.5, 0.175, 0.175, 0.175, 0.175, 0.5]
    assert [rail.reach for rail in far.rails][-3:] == [1.0, 1.0, 0.175]
    assert [goes_direct(rail, "auto") for rail in near.rails] == [True, True, *[False] * 7]
    assert {goes_direct(rail, "on") for rail in near.rails} == {True}
    assert {goes_direct(rail, "off") for rail in near.rails} == {False}
    assert near.rails[4].mbps == pytest.approx(70_000)
    assert RankInfo.from_bytes(near.to_bytes(), 0) == near
    assert {rail.reach for rail in seen_from(info, "", root).rails} == {0.5}, "a GPU that tells no place: all alike"


def test_two_ports_share_a_slot_and_a_fate(tmp_path: Path) -> None:
    found = machine("two-ports-a-nic", tmp_path)
    assert [d.slot_mbps for d in found.devices] == [252061] * 4
    near, far = ways_from(found.gpus[0], found.devices)[:2], ways_from(found.gpus[0], found.devices)[2:]
    assert [way.path for way in near] == [PathClass.ROOT, PathClass.ROOT]
    assert [way.mbps for way in near] == pytest.approx([126030.5] * 2), "both ports through one slot of 252 Gb/s"
    assert [(way.device, way.mbps) for way in far] == [("mlx5_2", 200_000)], "the port without a cable is no way"
    choice = judged("two-ports-a-nic", tmp_path)
    assert choice["mlx5_0"].gid is not None
    assert (choice["mlx5_0"].gid.index, choice["mlx5_0"].gid.ipv4, choice["mlx5_0"].netdev) == (
        3,
        "10.0.0.4",
        "ens0f0np0",
    )
    assert choice["mlx5_3"].reason == "the port is DOWN"


def test_failover_prefers_the_other_card_within_a_class() -> None:
    ports = (RdmaPort(1, "InfiniBand", ACTIVE, 1, 100), RdmaPort(2, "InfiniBand", ACTIVE, 2, 100))
    cards = [RdmaDevice(f"m{i}", Place(f"0000:0{i}:00.0", "pci0000:00", (), 0), ports) for i in range(2)]
    gpu = Gpu(0, Place("0000:09:00.0", "pci0000:00", (), 0))
    assert [way.key for way in ways_from(gpu, cards)] == [("m0", 1), ("m1", 1), ("m0", 2), ("m1", 2)]
    assert [way.key for way in ways_from(gpu, cards, {("m0", 1)})] == [("m1", 1), ("m0", 2), ("m1", 2)]


def test_case_12_a_container_sees_ports_whose_interfaces_are_elsewhere(tmp_path: Path) -> None:
    choice = judged("virtual-functions", tmp_path)
    assert choice["mlx5_2"].gid is not None
    assert (choice["mlx5_2"].netdev, choice["mlx5_2"].gid.ipv4) == ("net1", "10.9.0.17")
    assert choice["mlx5_0"].reason == "no GID for an address of eth0", "the container's eth0 is another one"
    assert choice["mlx5_1"].reason == "its interface eth1 is not in this network namespace"
    assert choice["mlx5_3"].reason == "its interface net1 is not in this network namespace", "another function's net1"
    found = read_machine(tmp_path)
    assert set(port_rates(found.devices).values()) == {100_000}, "a slot of 252 Gb/s is enough for both ports"


def test_rails_find_their_rdma_ports(tmp_path: Path) -> None:
    root = tree("virtual-functions", tmp_path)
    devices = ports_sysfs.read_devices(root)
    rails = choose_rails(find_interfaces(root, links_of_tree(root, devices)), Config()).rails
    kept, left = add_rdma(rails, Config(transport="verbs"), root)
    assert [(r.name, r.rdma_device, r.rdma_port, r.rdma_gid, r.rdma_layer) for r in kept] == [
        ("net1", "mlx5_2", 1, 3, "Ethernet")
    ]
    assert left == []
    named = Config(transport="verbs", rdma_devices="net1=mlx5_3:1:5")
    assert port_of(rails[0], named, root) == RdmaRail("mlx5_3", 1, 5, "Ethernet")
    other = replace(rails[0], name="eth0", pci_path=None, address="10.0.7.7")
    assert port_of(other, Config(), root) is None, "a name that shows through from another namespace is no proof"
    assert add_rdma((other,), Config(transport="verbs"), root)[0] == ()
    assert add_rdma((other,), Config(), root)[0] == (other,)


def test_a_machine_that_tells_no_numa_node(tmp_path: Path) -> None:
    found = machine("no-numa", tmp_path)
    assert distances(found) == ["????"] * 4
    assert [gpu.place.root for gpu in found.gpus] == ["pci0000:00"] * 4
    ways = ways_from(found.gpus[2], found.devices)
    assert [way.device for way in ways] == ["mlx5_ib2", "mlx5_ib3", "mlx5_ib0", "mlx5_ib1"]
    assert weights(ways) == pytest.approx([0.25] * 4), "nothing is known, so nothing is preferred"


def test_arm64_with_a_pci_domain_for_every_device(tmp_path: Path) -> None:
    found = machine("arm64", tmp_path)
    assert [gpu.place.bus_id for gpu in found.gpus] == [f"{d}:01:00.0" for d in ("0008", "0009", "0018", "0019")]
    assert distances(found) == ["nnaa", "nnaa", "aann", "aann"]
    assert judged("arm64", tmp_path)["mlx5_3"].reason == "the port is INIT"
    assert order(found, 2) == ["mlx5_2", "mlx5_0", "mlx5_1"]


@pytest.mark.parametrize("name", listings())
def test_the_command_prints_every_recorded_machine(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("R2CCL_RAILS", raising=False)
    root = tree(name, tmp_path)
    found = read_machine(root)
    assert cli.main(["--sysfs", str(root)]) == 0
    text = capsys.readouterr().out
    assert "boot" not in text, "nothing of the machine that prints"
    for device in found.devices:
        assert device.name in text
    for gpu in found.gpus:
        assert gpu.place.bus_id in text
    assert "order of use" in text
    assert cli.main(["--json", "--sysfs", str(root)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [gpu["pci"] for gpu in report["gpus"]] == [gpu.place.bus_id for gpu in found.gpus]
    for gpu in report["gpus"]:
        used = {(way["device"], way["port"]) for way in gpu["order"]}
        assert used == {(p["device"], p["port"]) for p in report["rdma"] if not p["left_out"]}
        assert sum(way["weight"] for way in gpu["order"]) == pytest.approx(1, abs=1e-3)


def test_nccl_topology_file(capsys: pytest.CaptureFixture[str]) -> None:
    path = FIXTURES / "virtual-machine.xml"
    found = read_nccl_xml(path)
    assert [(gpu.index, gpu.place.bus_id, gpu.model) for gpu in found.gpus] == [
        (0, "0001:00:00.0", "0x20b0"),
        (1, "0002:00:00.0", "0x20b0"),
        (2, "000b:00:00.0", "0x20b0"),
    ]
    assert [(d.name, [(p.number, p.mbps) for p in d.ports]) for d in found.devices] == [
        ("mlx5_ib0", [(1, 200_000)]),
        ("mlx5_ib1", [(1, 200_000), (2, 100_000)]),
    ]
    assert distances(found) == ["sn", "ns", "aa"]
    assert cli.main(["--nccl-xml", str(path)]) == 0
    text = capsys.readouterr().out
    assert "mlx5_ib1/1 switch" in text
    assert "eth0" not in text
    assert cli.main(["--nccl-xml", "/nowhere.xml"]) == 1
    assert "/nowhere.xml: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not XML"),
        ("<system><cpu>", "not XML"),
        ("<graphs/>", "its element is <graphs>, not <system>"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system>&b;</system>', "a document type or entities"),
        ('<!DOCTYPE system SYSTEM "file:///etc/passwd"><system/>', "a document type or entities"),
        ("<system>" + "<pci busid='1'>" * MAX_DEPTH + "</pci>" * MAX_DEPTH + "</system>", "within one another"),
        ("<system>" + "<a/>" * 20_001 + "</system>", "more than 20000 elements"),
        ('<system><cpu numaid="east"/></system>', "<cpu> with numaid='east': not a whole number"),
        ('<system><cpu numaid="0"><pci/></cpu></system>', "<pci> with busid=''"),
        (" " * (4 << 20) + "<system/>", "more than 4194304 bytes"),
    ],
)
def test_a_file_that_is_no_topology_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_nccl_xml(text.encode())


def test_classes_of_paths() -> None:
    gpu = Place("0000:19:00.0", "pci0000:16", ("0000:16:01.0", "0000:17:00.0"), 0)
    assert path_class(gpu, Place("0000:1a:00.0", "pci0000:16", ("0000:16:01.0", "0000:17:00.0"), 0)) == PathClass.SWITCH
    assert path_class(gpu, Place("0000:30:00.0", "pci0000:16", ("0000:16:03.0",), 0)) == PathClass.ROOT
    assert path_class(gpu, Place("0000:40:00.0", "pci0000:3e", ("0000:3e:01.0",), 0)) == PathClass.NUMA
    assert path_class(gpu, Place("0000:c0:00.0", "pci0000:be", ("0000:be:01.0",), 1)) == PathClass.ACROSS
    assert path_class(gpu, Place()) == PathClass.UNKNOWN
    assert weights([]) == ()
    assert weights([Way("a", 1, PathClass.SWITCH), Way("b", 1, PathClass.ACROSS, 10.0)]) == pytest.approx(
        [1 / 1.175, 0.175 / 1.175]
    )


def test_speed_of_a_slot(tmp_path: Path) -> None:
    for speed, width, mbps in (
        ("32.0 GT/s PCIe", "16", 504123),
        ("5.0 GT/s PCIe", "8", 32000),
        ("Unknown", "0", None),
        ("8.0 GT/s PCIe", "0", None),
    ):
        (tmp_path / "current_link_speed").write_text(speed + "\n")
        (tmp_path / "current_link_width").write_text(width + "\n")
        assert slot_mbps(tmp_path) == mbps
    assert slot_mbps(tmp_path / "nowhere") is None
