"""The directory and the sockets of r2ccl-top: this user's alone, and none left of processes that are gone."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from r2ccl.observe import place


def test_the_directory_is_the_user_s_run_time_directory_or_one_below_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="r2") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        assert place.directory() == Path(short) / "r2ccl"
    (tmp_path / ("x" * 100)).mkdir()
    theirs = "/" if os.geteuid() else "/nonexistent"
    for nowhere in ("", "relative", str(tmp_path / "absent"), str(tmp_path / ("x" * 100)), theirs):
        monkeypatch.setenv("XDG_RUNTIME_DIR", nowhere)
        assert place.directory() == Path(f"/tmp/r2ccl-{os.geteuid()}")


def test_made_with_mode_0700(tmp_path: Path) -> None:
    place.make(tmp_path / "d")
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    place.make(tmp_path / "d")  # and again


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="has mode 0755, not 0700"):
        place.make(tmp_path / "open")


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match="is not a directory"):
        place.make(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_somebody_else_s_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        place.make(tmp_path / "theirs")


def test_a_socket_is_0600_and_answers_at_once(tmp_path: Path) -> None:
    path = tmp_path / f"{os.getpid()}-a.sock"
    with place.listen(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        client = place.connect(path, 1.0)
        assert client is not None
        assert place.may_talk(client)
        client.close()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_sockets_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    number = int(dead.stdout)
    for name in (f"{number}-a.sock", f"{number}-b.new", "nonsense.sock"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(tmp_path / name))
        os.utime(tmp_path / name, (0, 0))
    mine = tmp_path / f"{os.getpid()}-a.sock"
    elsewhere = tmp_path / f"{number}-c.sock"  # the number means another process there, which lives
    beginning = tmp_path / f"{number}-d.new"  # there, too, and it does not listen yet
    with place.listen(mine), place.listen(elsewhere), socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(beginning))
        place.remove_stale(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([mine, elsewhere, beginning])


def test_connecting_removes_what_nobody_listens_at(tmp_path: Path) -> None:
    path = tmp_path / f"{os.getpid()}-a.sock"
    place.listen(path).close()
    assert path.exists()
    assert place.connect(path, 0.2) is None
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_s_process_may_not_talk() -> None:
    """The kernel says who is at the other end, whatever the file's mode."""
    ours, theirs = socket.socketpair()
    program = "import os, socket, sys; os.setuid(12345); a = socket.socket(socket.AF_UNIX); a.connect(sys.argv[1])"
    program += "; a.recv(1)"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0r2ccl-test-" + str(os.getpid()))
    listener.listen()
    name = "\0r2ccl-test-" + str(os.getpid())
    code = program.replace("sys.argv[1]", repr(name))
    process = subprocess.Popen([sys.executable, "-c", code])
    client, _ = listener.accept()
    assert not place.may_talk(client)
    assert place.may_talk(ours)
    for sock in (client, listener, ours, theirs):
        sock.close()
    process.wait(10)
