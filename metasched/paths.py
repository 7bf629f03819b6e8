"""Where things are by default: configuration, socket and database of a person and of a site."""

import os
from pathlib import Path

from metasched.errors import UserError

LONGEST_SOCKET = 107  # bytes that the kernel takes for the path of a unix socket
LONGEST_BODY = 64 << 20  # bytes of a request


class BadPlace(UserError):
    """A configuration that does not say where the daemon is: what, where; what to do."""


def _folder(variable: str, otherwise: str) -> Path:
    """A folder of the XDG Base Directory Specification, which ignores relative values."""
    given = os.environ.get(variable, "")
    return Path(given if given.startswith("/") else os.path.expanduser(otherwise)) / "metasched"


def personal_config() -> Path:
    return _folder("XDG_CONFIG_HOME", "~/.config") / "metasched.toml"


def personal_data() -> Path:
    """The folder of the database, `metasched.db`, and of all that must outlive a restart."""
    return _folder("XDG_DATA_HOME", "~/.local/share")


def personal_socket() -> Path:
    return _folder("XDG_RUNTIME_DIR", "~/.local/state") / "metasched.sock"


def personal_token() -> Path:
    """The file of the token by which daemons on other hosts know the user."""
    given = os.environ.get("METASCHED_TOKEN_FILE")
    return Path(given) if given else _folder("XDG_CONFIG_HOME", "~/.config") / "token"


def site_config() -> Path:
    return Path("/etc/metasched/metasched.toml")


def site_socket() -> Path:
    return Path("/run/metasched/metasched.sock")


def is_url(place: str | Path) -> bool:
    """Whether a daemon is reached over the network, at `https://host:port` or `http://...`."""
    return isinstance(place, str) and place.startswith(("http://", "https://"))


def socket_of(config: Path, otherwise: Path | None = None) -> Path | str:
    """The socket that a configuration names, read without checking the rest of the file.

    A relative one is taken from the file's folder, a URL is kept as it is. If the file names
    none it is `otherwise`, by default the personal one. BadPlace if the file cannot be read.
    """
    import tomllib

    try:
        with config.open("rb") as file:
            socket = tomllib.load(file).get("daemon", {}).get("socket")
    except OSError as error:
        told = error.strerror or str(error)
        raise BadPlace(f"{told}, {config}; name another file with --config") from None
    except (ValueError, AttributeError) as error:
        raise BadPlace(f"no configuration ({error}), {config}; write it as TOML") from None
    if socket is None:
        return otherwise or personal_socket()
    if not isinstance(socket, str) or not socket:
        raise BadPlace(f"socket is {socket!r}, {config}, [daemon]; write a path in quotes")
    return socket if is_url(socket) else config.parent / socket


def daemon_socket(config: str | None = None) -> Path | str:
    """The socket of the daemon to talk to, or the URL of one on another host.

    The configuration given, else METASCHED_CONFIG, else METASCHED_SOCKET, else the personal
    place if something is there, else the site's; with neither, the personal one. BadPlace if a
    configuration cannot be read.
    """
    if named := config or os.environ.get("METASCHED_CONFIG"):
        return socket_of(Path(named))
    if given := os.environ.get("METASCHED_SOCKET"):
        return given if is_url(given) else Path(given)
    personal = _default(personal_config(), personal_socket())
    if _is_there(personal):
        return personal
    site = _default(site_config(), site_socket())
    return site if _is_there(site) else personal


def _is_there(place: Path | str) -> bool:
    return isinstance(place, str) or place.exists()


def _default(config: Path, socket: Path) -> Path | str:
    return socket_of(config, socket) if config.exists() else socket
