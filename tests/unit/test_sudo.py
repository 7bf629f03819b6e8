"""What counts as changeable by others under sudo, and which munge a client runs."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from metasched.cli.connect import daemon_address
from metasched.client import sudo
from metasched.client.address import check_daemon
from metasched.client.credentials import NoCredential, credentials
from metasched.errors import UserError


@pytest.fixture(autouse=True)
def caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another account has called sudo."""
    monkeypatch.setenv("SUDO_UID", str(os.geteuid() + 12345))
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.delenv("METASCHED_MUNGE_SOCKET", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of this account in folders of this account and root."""
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    path = folder / "file"
    path.touch()
    path.chmod(0o644)
    assert not sudo.may_be_changed(str(path))
    return path


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert sudo.may_be_changed(str(file))


@pytest.mark.parametrize(("mode", "counts"), [(0o775, 0), (0o757, 0), (0o1777, 1), (0o1775, 1)])
def test_a_folder_that_others_may_write(file: Path, mode: int, counts: int) -> None:
    file.parent.chmod(mode)
    assert sudo.may_be_changed(str(file)) is not bool(counts)
    # what is looked up in it later may be of anybody
    assert sudo.may_be_changed(str(file.parent), stat.S_IFDIR)
    file.parent.chmod(0o755)
    assert not sudo.may_be_changed(str(file.parent), stat.S_IFDIR)


def test_a_relative_path_begins_in_the_current_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(file.parent)
    assert not sudo.may_be_changed("../folder/./file")
    monkeypatch.chdir(removed)
    removed.rmdir()
    assert sudo.may_be_changed("../folder/file")
    assert not sudo.may_be_changed(str(file))
    monkeypatch.chdir(tmp_path)


def test_what_is_missing_may_be_made(file: Path) -> None:
    for path in ("/tmp/metasched-missing/x.conf", "/dev/shm/metasched-missing", f"{file}/x", "\0"):
        assert sudo.may_be_changed(path), path
    file.unlink()
    assert sudo.may_be_changed(str(file))


def test_a_stream_is_what_the_caller_makes_of_it(file: Path) -> None:
    reader, writer = os.pipe()
    descriptor = os.open(file, os.O_RDONLY)
    try:
        for path in ("/dev/stdin", f"/proc/self/fd/{reader}", f"/dev/fd/{descriptor}"):
            assert sudo.may_be_changed(path), path
    finally:
        for number in (reader, writer, descriptor):
            os.close(number)
    file.unlink()
    os.mkfifo(file, 0o644)
    assert sudo.may_be_changed(str(file))
    assert sudo.may_be_changed("/dev/null")


def test_each_link_of_a_path_is_judged(file: Path, tmp_path: Path) -> None:
    common = tmp_path / "common"
    common.mkdir()
    link, middle = tmp_path / "link", common / "middle"
    middle.symlink_to("../folder")
    link.symlink_to(middle)
    path = str(link / "file")
    assert not sudo.may_be_changed(path)
    assert not sudo.may_be_changed(f"{link}/../folder/file")
    common.chmod(0o777)  # neither in the path nor in what it resolves to
    assert sudo.may_be_changed(path)
    assert sudo.may_be_changed(f"{link}/../folder/file")
    middle.unlink()
    middle.symlink_to("middle")
    common.chmod(0o755)
    assert sudo.may_be_changed(path)


def test_any_sudo_or_doas_counts(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller may himself have been called by sudo, with the variables of another."""
    file.chmod(0o666)
    for uid in ("", "x"):
        monkeypatch.setenv("SUDO_UID", uid)
        assert not sudo.may_be_changed(str(file)), uid
    for uid in (str(os.geteuid()), "0"):
        monkeypatch.setenv("SUDO_UID", uid)
        assert sudo.may_be_changed(str(file)), uid
    monkeypatch.delenv("SUDO_UID")
    for name in ("root", "no-such-account"):
        monkeypatch.setenv("DOAS_USER", name)
        assert sudo.may_be_changed(str(file)), name
    assert sudo.calling_uid() == -1


@pytest.fixture
def munge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of this name that prints its arguments, alone on PATH."""
    path = tmp_path / "bin" / "munge"
    path.parent.mkdir(mode=0o755)
    path.write_text(f'#!/bin/sh\necho "$@"\necho > {tmp_path}/ran\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"bin:{path.parent}")
    monkeypatch.setenv("METASCHED_TOKEN_FILE", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    return path


def credential() -> str:
    return next(credentials("daemon:7410", "GET", "/", b"", private=True, in_job=False))


def test_no_munge_of_others_runs(
    munge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert credential().startswith("MUNGE -s ")
    (tmp_path / "ran").unlink()
    munge.parent.chmod(0o777)
    with pytest.raises(NoCredential, match="no munge on this host"):
        credential()
    other = tmp_path / "other" / "munge"
    other.parent.mkdir(mode=0o755)
    other.write_text("#!/bin/sh\necho other\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{munge.parent}:{other.parent}")
    assert credential() == "MUNGE other"
    assert not (tmp_path / "ran").exists()


def test_no_socket_of_munged_in_a_place_of_others_counts(
    munge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "munged"
    monkeypatch.setenv("METASCHED_MUNGE_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX) as munged:
        munged.bind("munged")
    path.chmod(0o777)  # all may connect
    assert credential().startswith(f"MUNGE --socket={path} -s ")
    (tmp_path / "ran").unlink()
    tmp_path.chmod(0o777)
    munge.parent.chmod(0o755)
    for check in (credential, sudo.check_environment):
        with pytest.raises(UserError, match=r"^METASCHED_MUNGE_SOCKET is .*; unset it under sudo$"):
            check()
    assert not (tmp_path / "ran").exists()


def test_the_sites_daemon_is_one_whose_place_root_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as daemon:
        monkeypatch.chdir(tmp_path)
        daemon.bind("ms.sock")
    address = str(tmp_path / "ms.sock")
    monkeypatch.setattr("metasched.client.address.site_address", lambda: "http://daemon:7410")
    check_daemon(address)
    check_daemon("http://daemon:7410")
    with pytest.raises(UserError, match="is not that of /etc/metasched"):
        check_daemon("http://daemon:7411")
    tmp_path.chmod(0o777)
    with pytest.raises(UserError, match="use sudo without -E"):
        check_daemon(address)


def test_no_command_asks_a_daemon_that_the_environment_of_another_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "metasched"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(folder / "metasched.sock"))
    config, silent = folder / "metasched.toml", folder / "silent.toml"
    config.write_text('[daemon]\nsocket = "metasched.sock"\n')
    silent.touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("METASCHED_CONFIG", "METASCHED_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "HOME"):
        monkeypatch.setenv(name, str(empty))
    for name, value in {
        "METASCHED_CONFIG": str(config),
        "METASCHED_SOCKET": str(folder / "metasched.sock"),
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }.items():
        with monkeypatch.context() as way:
            way.setenv(name, value)
            folder.chmod(0o755)
            assert daemon_address() == str(folder / "metasched.sock"), name
            folder.chmod(0o777)
            with pytest.raises(UserError, match="use sudo without -E"):
                daemon_address()
            way.delenv("SUDO_UID")
            assert daemon_address() == str(folder / "metasched.sock"), name
    assert daemon_address(str(config)) == str(folder / "metasched.sock")  # sudo permitted it
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(UserError, match="use sudo without -E"):
        daemon_address(str(silent))  # so the environment names the daemon


def test_of_a_missing_socket_the_folder_counts(tmp_path: Path) -> None:
    """A daemon that starts is waited for, if nobody else may take its place."""
    for address in (tmp_path / "ms.sock", tmp_path / "missing/folder/ms.sock"):
        check_daemon(str(address))
    tmp_path.chmod(0o1777)
    for address in (tmp_path / "ms.sock", tmp_path / "missing/folder/ms.sock"):
        with pytest.raises(UserError, match="use sudo without -E"):
            check_daemon(str(address))
