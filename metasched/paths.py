"""Default paths of configuration, socket and database, personal and of the site, as text.

Every command imports this module: no slow import (pathlib, typing) at the top.
"""

from __future__ import annotations

import os

MAX_SOCKET_PATH_BYTES = 107  # kernel limit for the path of a unix socket
MAX_REQUEST_BYTES = 8 << 20
# Version exchange of the HTTP API: each request and each response names the newest version that its
# sender knows. A daemon serves older clients, and those that send no version.
PROTOCOL_HEADER = "Metasched-Protocol"
API_PROTOCOL = 2
NEXT_CURSOR_HEADER = "Metasched-Next-Cursor"  # of a page: `cursor` of the request for the next page
FOLD = {"fold": "true"}  # query: a single row for equal tasks of a job

JOB_TOKEN_VARIABLE = "METASCHED_JOB_TOKEN_FILE"  # names the file with the token of a job
# Variable of a request: the names that `--export` has named, separated by commas. A cluster with
# login environments keeps these. Scripts do not see it.
NAMED_VARIABLES = "METASCHED_EXPORTED"

SITE_CONFIG = "/etc/metasched/metasched.toml"
SITE_SOCKET = "/run/metasched/metasched.sock"


def _xdg_folder(variable: str, default: str) -> str:
    """Return a folder of the XDG Base Directory Specification, which ignores relative values."""
    value = os.environ.get(variable, "")
    return os.path.join(
        value if value.startswith("/") else os.path.expanduser(default), "metasched"
    )


def personal_config() -> str:
    return os.path.join(_xdg_folder("XDG_CONFIG_HOME", "~/.config"), "metasched.toml")


def personal_data() -> str:
    """Return the folder of the database, `metasched.db`, and of all other persistent state."""
    return _xdg_folder("XDG_DATA_HOME", "~/.local/share")


def personal_socket() -> str:
    return os.path.join(_xdg_folder("XDG_RUNTIME_DIR", "~/.local/state"), "metasched.sock")


def personal_token() -> str:
    """Return the file with the user's token for daemons on other hosts."""
    return os.environ.get("METASCHED_TOKEN_FILE") or os.path.join(
        _xdg_folder("XDG_CONFIG_HOME", "~/.config"), "token"
    )


def drop_in_folder() -> str:
    """Return the folder of the commands with the names of Slurm's."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "drop_in", "slurm")


def is_url(address: str) -> bool:
    """Return whether a daemon is reached over the network, by `https://host:port` or `http://`."""
    return address.startswith(("http://", "https://"))
