"""How a client on another host says who it is: a token of the user's, else MUNGE.

Both travel in the header `Authorization`. A MUNGE credential carries the digest of one request,
and munged takes each only once, so that who overhears one can do nothing with it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from pathlib import Path

from metasched.errors import UserError
from metasched.places import personal_token

SECONDS = 10.0  # for the command munge


class NoCredential(UserError):
    """Nothing says to another host who is calling."""

    exit_code = 3


def request_digest(method: str, where: str, body: bytes) -> str:
    """What a MUNGE credential is good for: this method, path with query, and body."""
    return hashlib.sha256(f"{method} {where}\n".encode() + body).hexdigest()


def authorization(method: str, where: str, body: bytes) -> str:
    """The header's value for one request. NoCredential says what can be done."""
    path = personal_token()
    try:
        return f"Bearer {_token(path)}"
    except FileNotFoundError:
        return f"MUNGE {_munge(request_digest(method, where, body), path)}"
    except OSError as error:
        raise NoCredential(f"{error.strerror}, token file {path}; make it readable") from None


def _token(path: Path) -> str:
    with path.open(encoding="ascii", errors="replace") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise NoCredential(f"others may read or write it, token file {path}; chmod 600 it")
        token = file.read(1000).strip()
    if not re.fullmatch(r"[\w.~+/=-]+", token, re.ASCII):
        raise NoCredential(f"there is no token in it, token file {path}; make a new one")
    return token


def _munge(text: str, path: Path) -> str:
    mend = f"start munged, or put a token of `metasched token create` into {path}"
    try:
        done = subprocess.run(
            ["munge", *_socket(), "-s", text],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise NoCredential(f"no token and no munge on this host; {mend}") from None
    if done.returncode != 0:
        raise NoCredential(f"{done.stderr.strip()}; {mend}")
    return done.stdout.strip()


def _socket() -> list[str]:
    given = os.environ.get("METASCHED_MUNGE_SOCKET")
    return [f"--socket={given}"] if given else []
