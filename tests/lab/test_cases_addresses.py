"""Field reports about addresses and names, from the start to a repaired collective: odd networks of two hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fault_lab import Outcome, check, run

from r2ccl.lab import MGMT, Fabric, available, run_ranks_on

WHY_NOT = available()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"lab: {WHY_NOT}"),
    pytest.mark.timeout(90),
]
RAILS = 3
INIT = {"R2CCL_INIT_TIMEOUT_S": "15"}


@contextmanager
def two_hosts(rails: int = RAILS) -> Iterator[Fabric]:
    """A cluster of its own, since its addresses are changed."""
    with Fabric(hosts=2, rails=rails, rate="100mbit") as fabric:
        yield fabric


def ip(fabric: Fabric, host: int, *lines: str) -> None:
    """Runs lines of ``ip`` on a host."""
    for line in lines:
        done = fabric.run(host, ["ip", *line.split()])
        assert done.returncode == 0, f"ip {line}: {done.stderr}"


def devices(fabric: Fabric) -> list[tuple[str, int]]:
    """Interfaces of a host and their rail numbers."""
    return [("mgmt", MGMT), *((f"rail{r}", r) for r in range(fabric.rails))]


def only_ipv6(fabric: Fabric, address: str) -> None:
    """Every interface has just this address; in the text {n} is a number of its network, {h} one of the host."""
    for host in range(fabric.hosts):
        for device, rail in devices(fabric):
            settings = Path(f"/proc/sys/net/ipv6/conf/{device}")
            fabric.call(host, lambda path=settings: (path / "addr_gen_mode").write_text("1"))
            fabric.call(host, lambda path=settings: (path / "disable_ipv6").write_text("0"))
            new = address.format(n=rail + 2, h=host + 1)
            ip(fabric, host, f"-4 addr flush dev {device}", f"-6 addr add {new}/64 dev {device} nodad")


def write_hosts_file(fabric: Fabric, host: int, text: str) -> None:
    """Replaces /etc/hosts of one host."""
    done = fabric.run(host, ["sh", "-c", 'printf "%s" "$1" > /etc/hosts', "sh", text])
    assert done.returncode == 0, done.stderr


def peers_and_rails(outcome: Outcome, rank: int) -> list[tuple[int, str]]:
    return sorted((peer, rail) for peer, rail, *_ in outcome.reports[rank]["links"])


# -- families ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "master"), [("fd00:{n}::{h}", "fd00:1::1"), ("fe80::{n}:{h}", "fe80::1:1%mgmt")], ids=["fd00", "fe80"]
)
def test_case_18_hosts_without_ipv4(address: str, master: str) -> None:
    """Everything over IPv6, or over link-local addresses with their scopes alone; and a rail is lost."""
    with two_hosts() as fabric:
        only_ipv6(fabric, address)
        outcome = run(fabric, ["on='inside 3' host=1 rail=1 blackhole"], env={**INIT, "MASTER_ADDR": master})
        check(fabric, outcome, [(1, 1)])
        for rank in range(2):
            assert peers_and_rails(outcome, rank) == [(1 - rank, f"rail{r}") for r in range(RAILS)], outcome.text


def test_case_18_one_rail_of_each_family() -> None:
    """Rail 0 speaks IPv4, rail 1 IPv6 only, rail 2 IPv4 at one end and IPv6 at the other: that one is left out."""
    with two_hosts() as fabric:
        for host, rails in ((0, [1]), (1, [1, 2])):
            for rail in rails:
                settings = Path(f"/proc/sys/net/ipv6/conf/rail{rail}/disable_ipv6")
                fabric.call(host, lambda path=settings: path.write_text("0"))
                ip(
                    fabric,
                    host,
                    f"-4 addr flush dev rail{rail}",
                    f"-6 addr add fd00:{rail}::{host + 1}/64 dev rail{rail} nodad",
                )
        outcome = run(fabric, ["on='inside 3' host=0 rail=0 port-down"], env=INIT)
        check(fabric, outcome, [(0, 0)])
        assert peers_and_rails(outcome, 0) == [(1, "rail0"), (1, "rail1")], outcome.text


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", ["127.0.1.1", "127.0.0.1"])
def test_case_17_a_host_that_takes_its_own_name_for_a_loopback_address(own: str) -> None:
    """As Debian's installer and container runtimes write /etc/hosts. The other host resolves the name rightly."""
    with two_hosts() as fabric:
        names = {host: fabric.address(host) for host in range(2)}
        for me in range(2):
            lines = [f"{own if host == me else names[host]} host{host}\n" for host in range(2)]
            write_hosts_file(fabric, me, "127.0.0.1 localhost\n" + "".join(lines))
        seen = fabric.run(0, ["getent", "ahostsv4", "host0"]).stdout
        assert seen.startswith(own), seen
        outcome = run(fabric, ["on='inside 3' host=0 rail=2 down"], env={**INIT, "MASTER_ADDR": "host0"})
        check(fabric, outcome, [(0, 2)])


# -- traps of discovery ------------------------------------------------------------------------------------------------


def test_case_12_bridges_of_containers_and_networks_that_lead_nowhere() -> None:
    """Without a choice of rails: docker0 with the same address on both hosts, lo and a dead veth carry nothing."""
    with two_hosts() as fabric:
        for host in range(2):
            ip(
                fabric,
                host,
                "link add docker0 type bridge",
                "addr add 172.17.0.1/16 dev docker0",
                "link set docker0 up",
                "link add veth1a2b type veth peer name veth3c4d",
                "link set veth3c4d master docker0 up",
                "link set veth1a2b up",
                "link add dead0 type veth peer name deadend",
                f"addr add 10.9.0.{host + 1}/24 dev dead0",
                "link set dead0 up",
                "link set deadend up",
            )
        env = {"R2CCL_RAILS": "", "R2CCL_EXCLUDE_RAILS": "mgmt", "R2CCL_INIT_TIMEOUT_S": "6"}
        outcome = run(fabric, ["on='inside 3' host=1 rail=0 tx-drop"], env=env)
        assert outcome.result.exit_code == 0, outcome.text
        assert any("dead0" in r.stderr and "degraded start" in r.stderr for r in outcome.result.ranks), outcome.text
        for report in outcome.reports:
            assert report["wrong"] == 0, outcome.text
            assert report["compared"] >= 4, outcome.text
            used = {rail for _, rail, _, tx, rx in report["links"] if tx + rx > 1 << 20}
            assert used == {"rail0", "rail1", "rail2"}, outcome.text
            assert not {"docker0", "lo", "veth1a2b"} & {rail for _, rail, *_ in report["links"]}
            assert {rail for _, rail, state, *_ in report["links"] if state == "up"} == {"rail1", "rail2"}


def test_case_15_other_names_and_another_number_of_rails() -> None:
    """Host 0 has three rails under other names, host 1 two of them: those are used, and they back each other up."""
    with two_hosts() as fabric:
        for rail, name in ((0, "enp5"), (1, "ib9")):
            ip(fabric, 0, f"link set rail{rail} down", f"link set rail{rail} name {name}", f"link set {name} up")
        ip(fabric, 1, "link del rail2")
        env = {**INIT, "R2CCL_RAILS": "", "R2CCL_EXCLUDE_RAILS": "mgmt"}
        outcome = run(fabric, ["on='inside 3' host=1 rail=1 blackhole"], env=env)
        assert outcome.result.exit_code == 0, outcome.text
        assert peers_and_rails(outcome, 0) == [(1, "enp5"), (1, "ib9")], outcome.text
        assert peers_and_rails(outcome, 1) == [(0, "rail0"), (0, "rail1")], outcome.text
        states = {rail: state for report in outcome.reports for _, rail, state, *_ in report["links"]}
        assert states == {"enp5": "up", "rail0": "up", "ib9": "down", "rail1": "down"}, outcome.text
        for report in outcome.reports:
            assert report["wrong"] == 0, outcome.text
            assert report["compared"] >= 4, outcome.text


def test_case_15_no_rail_in_common() -> None:
    """An error on both hosts, soon, that lists what each has; no hang."""
    with two_hosts(rails=2) as fabric:
        ip(fabric, 0, "link del rail1")
        ip(fabric, 1, "link del rail0")
        program = (
            "import sys, r2ccl\ntry: r2ccl.init()\nexcept r2ccl.R2cclError as e: sys.exit(f'{type(e).__name__}: {e}')"
        )
        result = run_ranks_on(fabric, [sys.executable, "-c", program], env=INIT, timeout_s=40)
        assert not result.timed_out
        for rank in result.ranks:
            assert rank.returncode == 1
            for word in ("NoRails", "10.100.0.1", "10.101.0.2", "R2CCL_RAILS"):
                assert word in rank.stderr, rank.stderr


def test_case_36_rails_that_are_networks_apart() -> None:
    """Rails are joined to their own kind only, though no route would stop a wrong pair from being tried at first."""
    with two_hosts() as fabric:
        for host in range(2):
            ip(fabric, host, "route add default dev rail0")  # everything seems to be reachable over rail 0
        before = fabric.counters()
        outcome = run(fabric, ["on='inside 3' host=0 rail=0 blackhole"], env=INIT)
        check(fabric, outcome, [(0, 0)])
        for rank in range(2):
            assert peers_and_rails(outcome, rank) == [(1 - rank, f"rail{r}") for r in range(RAILS)], outcome.text
        after = fabric.counters()
        for place in ((0, 1), (0, 2), (1, 1), (1, 2)):
            assert after[place].nic.total_bytes - before[place].nic.total_bytes > 1 << 20, place
