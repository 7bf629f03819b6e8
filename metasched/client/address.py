"""Finds the daemon: a socket, or the URL of a daemon on another host.

The order is: an option, METASCHED_CONFIG, METASCHED_SOCKET, the personal daemon if its socket
exists, the site's daemon. METASCHED_SOCKET is the quickest, since no configuration is read.
"""

from __future__ import annotations

import os

from metasched.errors import UserError
from metasched.paths import SITE_CONFIG, SITE_SOCKET, is_url, personal_config, personal_socket


class DaemonAddressError(UserError):
    """The configuration gives no daemon address."""


def find_daemon(config: str | None = None) -> str:
    """Return the address of the daemon. DaemonAddressError if a configuration cannot be read.

    `config` is the path of a configuration, an option of the command.
    """
    if config_path := config or os.environ.get("METASCHED_CONFIG"):
        return configured_address(config_path) or personal_socket()
    if address := os.environ.get("METASCHED_SOCKET"):
        return address
    personal = _default_address(personal_config(), _present_personal_socket())
    if _is_present(personal):
        return personal
    site = site_address()
    return site if _is_present(site) else personal


def site_address() -> str:
    """Return the address of the site's daemon. DaemonAddressError as `configured_address`."""
    return _default_address(SITE_CONFIG, SITE_SOCKET)


def configured_address(config: str) -> str | None:
    """Return the address in a configuration, without checking the rest of the file.

    A relative path starts at the folder of the file; a URL is returned unchanged. None: the file
    names none. DaemonAddressError if it cannot be read.
    """
    try:
        with open(config, "rb") as file:
            content = file.read()
    except OSError as error:
        reason = error.strerror or str(error)
        raise DaemonAddressError(f"{reason}, {config}; name another file with --config") from None
    try:
        import tomllib  # a third of the time of a short command

        address = tomllib.loads(content.decode()).get("daemon", {}).get("socket")
    except ImportError:  # a drop-in command under an older Python
        problem = f"Python 3.11 is needed to read {config}"
        raise DaemonAddressError(f"{problem}; set METASCHED_SOCKET to the socket") from None
    except (ValueError, AttributeError) as error:
        problem = f"no configuration ({error}), {config}"
        raise DaemonAddressError(f"{problem}; write it as TOML") from None
    if address is None:
        return None
    if not isinstance(address, str) or not address:
        raise DaemonAddressError(
            f"socket is {address!r}, {config}, [daemon]; write a path in quotes"
        )
    return address if is_url(address) else os.path.join(os.path.dirname(config), address)


def _present_personal_socket() -> str:
    """Return the personal socket, also if a tool has removed XDG_RUNTIME_DIR."""
    socket = personal_socket()
    if "XDG_RUNTIME_DIR" not in os.environ and not os.path.exists(socket):
        usual = f"/run/user/{os.getuid()}/metasched/metasched.sock"  # of systemd
        return usual if os.path.exists(usual) else socket
    return socket


def _is_present(address: str) -> bool:
    return is_url(address) or os.path.exists(address)


def _default_address(config: str, socket: str) -> str:
    """Return the address in a configuration if there is that file and it names one.

    A site hides a file that has a password of its database: then users find the usual socket.
    """
    return (configured_address(config) if os.access(config, os.R_OK) else None) or socket
