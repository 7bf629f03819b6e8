"""Default paths of configuration, socket and database, personal and of the site."""

import os
from pathlib import Path

from metasched.errors import UserError

MAX_SOCKET_PATH_BYTES = 107  # kernel limit for the path of a unix socket
MAX_REQUEST_BYTES = 64 << 20
# Version exchange of the HTTP API: each request and each response names the newest version that its
# sender knows. A daemon serves older clients; 1: releases that send no version.
PROTOCOL_HEADER = "Metasched-Protocol"
API_PROTOCOL = 2
NEXT_CURSOR_HEADER = "Metasched-Next-Cursor"  # of a page: `cursor` of the request for the next page


class DaemonAddressError(UserError):
    """The configuration gives no daemon address."""


def _xdg_folder(variable: str, default: str) -> Path:
    """Return a folder of the XDG Base Directory Specification, which ignores relative values."""
    value = os.environ.get(variable, "")
    return Path(value if value.startswith("/") else os.path.expanduser(default)) / "metasched"


def personal_config() -> Path:
    return _xdg_folder("XDG_CONFIG_HOME", "~/.config") / "metasched.toml"


def personal_data() -> Path:
    """Return the folder of the database, `metasched.db`, and of all other persistent state."""
    return _xdg_folder("XDG_DATA_HOME", "~/.local/share")


def personal_socket() -> Path:
    return _xdg_folder("XDG_RUNTIME_DIR", "~/.local/state") / "metasched.sock"


def personal_token() -> Path:
    """Return the file with the user's token for daemons on other hosts."""
    path = os.environ.get("METASCHED_TOKEN_FILE")
    return Path(path) if path else _xdg_folder("XDG_CONFIG_HOME", "~/.config") / "token"


def site_config() -> Path:
    return Path("/etc/metasched/metasched.toml")


def site_socket() -> Path:
    return Path("/run/metasched/metasched.sock")


def is_url(address: str | Path) -> bool:
    """Return whether a daemon is reached over the network, by `https://host:port` or `http://`."""
    return isinstance(address, str) and address.startswith(("http://", "https://"))


def configured_socket(config: Path, default: Path | None = None) -> Path | str:
    """Return the socket of a configuration without checking the rest of the file.

    A relative path starts at the folder of the file; a URL is returned unchanged. Without a socket
    in the file return `default`, else the personal socket. DaemonAddressError if the file cannot be
    read.
    """
    import tomllib

    try:
        with config.open("rb") as file:
            socket = tomllib.load(file).get("daemon", {}).get("socket")
    except OSError as error:
        reason = error.strerror or str(error)
        raise DaemonAddressError(f"{reason}, {config}; name another file with --config") from None
    except (ValueError, AttributeError) as error:
        problem = f"no configuration ({error}), {config}"
        raise DaemonAddressError(f"{problem}; write it as TOML") from None
    if socket is None:
        return default or personal_socket()
    if not isinstance(socket, str) or not socket:
        raise DaemonAddressError(
            f"socket is {socket!r}, {config}, [daemon]; write a path in quotes"
        )
    return socket if is_url(socket) else config.parent / socket


def daemon_socket(config: str | None = None) -> Path | str:
    """Return the socket of the daemon, or its URL on another host.

    The order is: `config`, METASCHED_CONFIG, METASCHED_SOCKET, the personal socket if it exists,
    the site's socket if it exists, the personal socket. DaemonAddressError if a configuration
    cannot be read.
    """
    if config_path := config or os.environ.get("METASCHED_CONFIG"):
        return configured_socket(Path(config_path))
    if address := os.environ.get("METASCHED_SOCKET"):
        return address if is_url(address) else Path(address)
    personal = _default_socket(personal_config(), personal_socket())
    if _is_present(personal):
        return personal
    site = _default_socket(site_config(), site_socket())
    return site if _is_present(site) else personal


def _is_present(address: Path | str) -> bool:
    return isinstance(address, str) or address.exists()


def _default_socket(config: Path, socket: Path) -> Path | str:
    return configured_socket(config, socket) if config.exists() else socket
