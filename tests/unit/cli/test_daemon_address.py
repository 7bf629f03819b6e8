"""The address of the daemon: environment, configuration files, defaults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metasched.client.address import DaemonAddressError, configured_address, find_daemon
from metasched.paths import personal_data, personal_socket


def test_paths_follow_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "relative/paths/are/ignored")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert personal_data() == str(home / ".local/share/metasched")
    assert personal_socket() == str(home / ".local/state/metasched/metasched.sock")


def test_precedence_of_daemon_addresses(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--config`, METASCHED_CONFIG, METASCHED_SOCKET, the personal configuration and path."""

    def config(name: str) -> str:
        path = home / f"{name}.toml"
        path.write_text(f'[daemon]\nsocket = "/{name}"\n')
        return str(path)

    assert find_daemon() == personal_socket()
    own = home / "XDG_CONFIG_HOME/metasched"
    own.mkdir(parents=True)
    (own / "metasched.toml").write_text('[daemon]\nsocket = "own.sock"\n')
    assert find_daemon() == str(own / "own.sock")
    monkeypatch.setenv("METASCHED_SOCKET", "/by-socket")
    assert find_daemon() == "/by-socket"
    monkeypatch.setenv("METASCHED_CONFIG", config("by-config"))
    assert find_daemon() == "/by-config"
    assert find_daemon(config("by-option")) == "/by-option"


def test_the_site_daemon_is_the_fallback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = home / "site.sock"
    monkeypatch.setattr("metasched.client.address.SITE_SOCKET", str(site))
    assert find_daemon() == personal_socket()
    site.touch()
    assert find_daemon() == str(site)
    Path(personal_socket()).parent.mkdir(parents=True)
    Path(personal_socket()).touch()
    assert find_daemon() == personal_socket()


def test_a_site_may_hide_its_configuration(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the password of a database; users find the daemon at its usual socket."""
    (home / "site.toml").write_text('[daemon]\nsocket = "/elsewhere"\n')
    (home / "site.sock").touch()
    monkeypatch.setattr("metasched.client.address.SITE_CONFIG", str(home / "site.toml"))
    monkeypatch.setattr("metasched.client.address.SITE_SOCKET", str(home / "site.sock"))
    assert find_daemon() == personal_socket()  # there is no socket of that name
    (home / "site.toml").chmod(0)
    if os.geteuid() == 0:  # may read it
        monkeypatch.setattr("os.access", lambda path, mode: False)
    assert find_daemon() == str(home / "site.sock")


@pytest.mark.parametrize(
    "text", ["[daemon", "daemon = 3", "[daemon]\nsocket = 3", '[daemon]\nsocket = ""', "x = '\xff'"]
)
def test_configurations_that_name_no_socket(home: Path, text: str) -> None:
    (home / "bad.toml").write_text(text, encoding="latin-1")
    with pytest.raises(DaemonAddressError, match=r"bad\.toml.*; "):
        configured_address(str(home / "bad.toml"))


def test_a_configuration_without_a_socket_means_the_default_socket(home: Path) -> None:
    (home / "a.toml").write_text("[policy]\nfile = 'p.toml'\n")
    assert configured_address(str(home / "a.toml")) is None
    assert find_daemon(str(home / "a.toml")) == personal_socket()
