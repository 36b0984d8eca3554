"""The runner of the guest machine, with a script in qemu's place: exit statuses, output, ends in time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
if str(PROJECT) not in sys.path:
    sys.path.insert(0, str(PROJECT))

from tools.rdma_guest import __main__ as command  # noqa: E402
from tools.rdma_guest import kernel as kernels  # noqa: E402
from tools.rdma_guest.kernel import GuestError, Kernel, default_cache, get_kernel  # noqa: E402
from tools.rdma_guest.machine import DIED, TIMED_OUT, run_in_guest  # noqa: E402

pytestmark = pytest.mark.timeout(60)

# Finds what a guest would find: the folder of the job, the descriptor of the output, the console's file.
QEMU = """#!/bin/bash
for a; do
  case $a in
    local,id=job,path=*) job=${a#*path=}; job=${job%%,*} ;;
    set=*) [ -n "$out" ] || { out=${a#set=}; out=${out%%,*}; } ;;
    file,id=console,path=*) console=${a#*path=} ;;
  esac
done
echo $$ >"$PIDS"
"""


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script; a test appends what its guest does."""
    script = tmp_path / "bin" / "qemu-system-x86_64"
    script.parent.mkdir()
    script.write_text(QEMU)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PIDS", str(tmp_path / "pid"))
    return script


def run(qemu: Path, does: str, timeout_s: float = 20.0) -> int:
    with open(qemu, "a") as file:
        file.write(does + "\n")
    return run_in_guest(Kernel(Path("/nowhere"), "1.0"), ["echo", "it's"], timeout_s=timeout_s)


def test_output_and_exit_status_come_out(qemu: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    does = 'eval "cat $job/command.sh >&$out"; echo 7 >"$job/status"'
    assert run(qemu, does) == 7
    text = capfdbinary.readouterr().out.decode()
    assert "exec echo 'it'\"'\"'s'" in text
    assert f"cd {os.getcwd()}" in text
    assert "export RDMA_GUEST=1.0" in text


def test_a_guest_that_dies_says_its_last_words(qemu: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(qemu, 'echo "Kernel panic - not syncing" >"$console"') == DIED
    assert "Kernel panic" in capfd.readouterr().err


def test_no_guest_outlives_its_time(qemu: Path, tmp_path: Path) -> None:
    begin = time.monotonic()
    assert run(qemu, "exec sleep 600", timeout_s=1.0) == TIMED_OUT
    assert time.monotonic() - begin < 20
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GuestError, match=r"qemu-system-x86_64 is missing; .*packages.sh"):
        run_in_guest(Kernel(Path("/nowhere"), "1.0"), ["true"], timeout_s=1.0)
    assert command.main(["--cache", str(tmp_path / "cache"), "--", "true"]) == command.NO_GUEST
    assert "apt-get is missing" in capsys.readouterr().err


def test_the_newest_kernel_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def unpack(packages: list[str], _environment: dict[str, str], kernel: Kernel) -> None:
        asked.append(packages)
        kernel.folder.mkdir()

    answers = {"linux-image-amd64": "  Depends: linux-image-6.1.0-9-amd64\n  Depends: kmod\n"}
    monkeypatch.setattr(kernels, "_unpack", unpack)
    monkeypatch.setattr(kernels, "_run", lambda command, *_: answers.get(command[-1], ""))
    for _ in range(2):
        kernel = get_kernel(tmp_path)
        assert kernel.version == "6.1.0-9-amd64"
        assert kernel.folder.is_dir()
    assert asked == [["linux-image-6.1.0-9-amd64"]]
    monkeypatch.setattr(kernels, "_run", lambda *_: "")
    with pytest.raises(GuestError, match="apt knows no linux-image-amd64"):
        get_kernel(tmp_path)
    monkeypatch.setenv("RDMA_GUEST_CACHE", "/somewhere")
    assert default_cache() == Path("/somewhere")
