"""Finds the daemon: a socket, or the URL of a daemon on another host.

The order is: an option, METASCHED_CONFIG, METASCHED_SOCKET, the personal daemon if its socket
exists, the site's daemon. METASCHED_SOCKET is the quickest, since no configuration is read.
"""

from __future__ import annotations

import os
import stat

from metasched.client.sudo import check_config, is_under_sudo, may_be_changed
from metasched.errors import UserError
from metasched.paths import SITE_CONFIG, SITE_SOCKET, is_url, personal_config, personal_socket


class DaemonAddressError(UserError):
    """The configuration gives no daemon address."""


def find_daemon(config: str | None = None) -> str:
    """Return the address of the daemon. DaemonAddressError if a configuration cannot be read.

    `config` is the path of a configuration, an option of the command. UserError under sudo if
    others may change a configuration that the environment names.
    """
    if config:
        return configured_address(config) or personal_socket()
    if named := os.environ.get("METASCHED_CONFIG"):
        check_config(named)
        return configured_address(named) or personal_socket()
    if address := os.environ.get("METASCHED_SOCKET"):
        return address
    if os.path.lexists(personal_config()):
        check_config(personal_config())
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


def check_daemon(address: str) -> None:
    """Raise UserError if the account that called sudo may have named this daemon, or runs it.

    Of a socket that does not exist, its folder is checked.
    """
    if not is_under_sudo():
        return
    if is_url(address):
        is_safe = address == site_address()
        problem = f"daemon {address} is not that of {SITE_CONFIG}"
    else:
        path, type = address, stat.S_IFSOCK
        while not os.path.lexists(path):
            path, type = os.path.dirname(path.rstrip("/")) or ".", stat.S_IFDIR
        is_safe = not may_be_changed(path, type) or (
            _is_of_site(address) and not may_be_changed(path, type, of_site=True)
        )
        problem = f"socket {address} is in a place that others may change"
    if not is_safe:
        raise UserError(f"{problem}; use sudo without -E")


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
    """Return the address in a configuration, if the file exists and names an address.

    A site hides a file that has a password of its database: then users find the usual socket.
    """
    return (configured_address(config) if os.access(config, os.R_OK) else None) or socket


def _is_of_site(socket: str) -> bool:
    path = os.path.realpath(socket)
    # the usual place needs no configuration, which older Pythons cannot read
    return path == os.path.realpath(SITE_SOCKET) or path == os.path.realpath(site_address())
