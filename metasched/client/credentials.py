"""Authentication of a client on another host: a token of the user, else a MUNGE credential.

In a job MUNGE comes first, then the token of the job: that of the user may be for another daemon.

Both are sent in the header `Authorization`. A MUNGE credential carries the digest of a request to a
daemon, and munged accepts it only once. An intercepted credential is therefore useless, both for
that daemon and for another that shares the key.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess

from metasched.client.sudo import may_be_changed, munge_socket, programs
from metasched.errors import UserError
from metasched.paths import JOB_TOKEN_VARIABLE, personal_token

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from collections.abc import Iterator

MUNGE_TIMEOUT = 10.0  # seconds, for the command munge


class NoCredential(UserError):
    """Neither a token nor a MUNGE credential is available."""

    exit_code = 3


def daemon_name(host: str, port: int) -> str:
    """Return the name that clients use for a daemon: `host:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host.lower()}:{port}"


def request_digest(daemon: str, method: str, target: str, body: bytes) -> str:
    """Return the digest of daemon, method, path with query and body, for a MUNGE credential."""
    return hashlib.sha256(f"{daemon}\n{method} {target}\n".encode() + body).hexdigest()


def is_loopback(host: str) -> bool:
    """Return whether a name or address, as written in a URL, is this host's own."""
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def credentials(
    daemon: str, method: str, target: str, body: bytes, private: bool, in_job: bool
) -> Iterator[str]:
    """Yield values of the header for a request, the best first. Raise NoCredential if none.

    `private`: no other account can read the connection, so that a token may be sent. `in_job`:
    the daemon has dispatched the job of this process.
    """
    path = personal_token()
    if not in_job and (bearer := _bearer(path, daemon, private)):
        yield bearer
        return
    missing: NoCredential | None = None
    try:
        yield f"MUNGE {_munge_credential(request_digest(daemon, method, target, body), path)}"
    except NoCredential as error:
        missing = error
    files = (os.environ.get(JOB_TOKEN_VARIABLE, ""), path) if in_job else ()
    for file in files:
        if file and (bearer := _bearer(file, daemon, private)):
            yield bearer
            missing = None
    if missing is not None:
        raise missing


def _bearer(path: str, daemon: str, private: bool) -> str:
    """Return the value of the header with the token of a file; "" if there is no such file."""
    try:
        token = _read_token(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise NoCredential(f"{error.strerror}, token file {path}; make it readable") from None
    if not private:
        raise NoCredential(
            f"a token would be readable on the network, daemon {daemon}; "
            f"use an https URL, or move {path} away to use MUNGE"
        )
    return f"Bearer {token}"


def _read_token(path: str) -> str:
    # another account may have made a FIFO where the token of an ended job was
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, encoding="ascii", errors="replace") as file:
        file_status = os.fstat(descriptor)
        if not stat.S_ISREG(file_status.st_mode):
            raise NoCredential(f"no regular file, token file {path}; create a new token")
        if file_status.st_uid != os.geteuid() or stat.S_IMODE(file_status.st_mode) & 0o077:
            raise NoCredential(f"other users can read or write it, token file {path}; chmod 600 it")
        if may_be_changed(path):
            problem = f"others may change its place, token file {path}"
            raise NoCredential(f"{problem}; use sudo without -E")
        token = file.read(1000).strip()
    if not re.fullmatch(r"[\w.~+/=-]+", token, re.ASCII):
        raise NoCredential(f"no valid token in it, token file {path}; create a new token")
    return token


def _munge_credential(payload: str, token_path: str) -> str:
    remedy = f"start munged, or write a token of `metasched token create` to {token_path}"
    missing = NoCredential(f"no token and no munge on this host; {remedy}")
    socket_path = munge_socket()
    program = next(programs("munge", os.get_exec_path()), None)
    if program is None:
        raise missing
    try:
        process = subprocess.run(
            [program, *([f"--socket={socket_path}"] if socket_path else []), "-s", payload],
            capture_output=True,
            text=True,
            timeout=MUNGE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise missing from None
    if process.returncode != 0:
        raise NoCredential(f"{process.stderr.strip()}; {remedy}")
    return process.stdout.strip()
