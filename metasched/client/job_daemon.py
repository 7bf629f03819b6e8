"""The daemon that dispatched the job of this process.

If [tcp] of the daemon has `url`, it gives two variables to its jobs. METASCHED_SOCKET is the URL.
METASCHED_DAEMON has the other data for a client: the URL again, the certificate, the daemon's user
id and its socket. None of these is secret. On the daemon's own host its socket is used, if the
listener there has this user id. Under sudo these variables may be those of the calling account,
and name its own socket or certificate: they do not count.
"""

from __future__ import annotations

import os

from metasched.client.sudo import is_under_sudo
from metasched.client.unix_socket import connect_unix, peer_uid
from metasched.paths import JOB_TOKEN_VARIABLE, MAX_SOCKET_PATH_BYTES

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    import socket

_VARIABLE = "METASCHED_DAEMON"
_ANY_CERTIFICATE = "-"


def job_variables(url: str, fingerprint: str, uid: int, socket_path: str) -> dict[str, str]:
    """Return the environment variables that lead jobs to a daemon."""
    return {
        "METASCHED_SOCKET": url,
        _VARIABLE: f"{url} {fingerprint or _ANY_CERTIFICATE} {uid} {socket_path}",
        "METASCHED_CONFIG": "",  # that of the submission would come first
        JOB_TOKEN_VARIABLE: "",  # a job that makes no token has not that of the job that submits it
    }


class JobDaemon:
    """The daemon of this job, as its variables describe it."""

    def __init__(self, fingerprint: str, uid: int, socket_path: str) -> None:
        # SHA-256 of its certificate in hexadecimal digits; "": this host trusts the certificate
        self.fingerprint = "" if fingerprint == _ANY_CERTIFICATE else fingerprint
        self._uid, self._socket_path = uid, socket_path

    def connect(self, timeout: float) -> socket.socket | None:
        """Connect to the daemon's socket; None if it does not listen on this host."""
        if len(self._socket_path.encode(errors="surrogateescape")) > MAX_SOCKET_PATH_BYTES:
            return None
        try:
            # another account's listener could keep this process waiting
            if os.stat(self._socket_path).st_uid != self._uid:
                return None
            connection = connect_unix(self._socket_path, timeout)
        except OSError:
            return None
        if peer_uid(connection) == self._uid:
            return connection
        connection.close()  # of another account on a host where the daemon does not run
        return None


def find_job_daemon(url: str) -> JobDaemon | None:
    """Return the daemon of this job if that is its URL; None elsewhere, and under sudo."""
    if is_under_sudo():
        return None
    fields = os.environ.get(_VARIABLE, "").split(" ", 3)
    if len(fields) != 4 or fields[0] != url or not fields[2].isdecimal():
        return None
    return JobDaemon(fields[1], int(fields[2]), fields[3])
