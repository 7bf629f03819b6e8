"""Connections to a daemon on another host: TLS, its certificate, a credential."""

from __future__ import annotations

import hashlib
import hmac
import queue
import socket
import threading
import time
from urllib.parse import urlsplit

from metasched.client.credentials import credentials, daemon_name, is_loopback

_INTERVAL = 0.5  # seconds between two looks for the active daemon

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

    from metasched.client.job_daemon import JobDaemon


class RemoteDaemon:
    """A daemon that is called by its URL."""

    def __init__(self, url: str, job_daemon: JobDaemon | None) -> None:
        """`job_daemon`: it has dispatched the job of this process.

        ValueError if the URL has an invalid port.
        """
        self.url = url
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._address = (parts.hostname or "", parts.port or (443 if self._tls else 80))
        self._job_daemon = job_daemon

    def connections(
        self, method: str, target: str, body: bytes, timeout: float
    ) -> Iterator[tuple[socket.socket, str]]:
        """Yield connections, with the header field that authenticates a request on each.

        If the daemon refuses a credential, nothing has changed and the next may be tried. Raises
        NoCredential if there is none, OSError or ValueError if the daemon cannot be reached.
        """
        private = self._tls or is_loopback(self._address[0])
        daemon, in_job = daemon_name(*self._address), self._job_daemon is not None
        for credential in credentials(daemon, method, target, body, private, in_job):
            yield self._connect(timeout), f"Authorization: {credential}\r\n"

    def is_ready(self, timeout: float) -> bool:
        """Return whether it reports within `timeout` seconds that it serves; no standby listens."""
        try:
            with self._connect(timeout) as connection:
                connection.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
                _, _, status = connection.recv(16).partition(b" ")
        except (OSError, ValueError):  # ValueError: no name of a host
            return False
        return status.startswith(b"200")

    def _connect(self, timeout: float) -> socket.socket:
        if not self._tls:
            return socket.create_connection(self._address, timeout)
        import ssl

        fingerprint = "" if self._job_daemon is None else self._job_daemon.fingerprint
        if fingerprint:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = self._handshake(context, timeout)
            certificate = connection.getpeercert(binary_form=True) or b""
            if hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), fingerprint):
                return connection
            connection.close()  # perhaps it is renewed since the job began
        return self._handshake(ssl.create_default_context(), timeout)

    def _handshake(self, context: ssl.SSLContext, timeout: float) -> ssl.SSLSocket:
        connection = socket.create_connection(self._address, timeout)
        try:
            return context.wrap_socket(connection, server_hostname=self._address[0])
        except BaseException:
            connection.close()
            raise


def active_daemon(
    daemons: Sequence[RemoteDaemon],
    timeout: float,
    patience: float,
    last_active: RemoteDaemon | None = None,
) -> RemoteDaemon:
    """Return the daemon that serves, among an active daemon and its standbys.

    A single daemon is not asked. `last_active` served before, and is asked first. Waits up to
    `patience` seconds for a standby to take over, then returns the first daemon. Each daemon has
    `timeout` seconds for its answer.
    """
    if len(daemons) == 1:
        return daemons[0]
    if last_active is not None and last_active.is_ready(timeout):
        return last_active
    deadline = time.monotonic() + patience
    while (ready := _first_ready(daemons, timeout)) is None:
        if time.monotonic() > deadline:
            return daemons[0]
        time.sleep(_INTERVAL)
    return ready


def look_for_takeover(
    asked: RemoteDaemon, standbys: Sequence[RemoteDaemon], timeout: float, own_timeout: float
) -> queue.SimpleQueue[bool]:
    """Ask in a thread whether a standby has become active and `asked` has not; return its answer.

    `asked` has `own_timeout` seconds: it is asked, too, since two URLs may lead to one daemon.
    """
    answer: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def look() -> None:
        is_replaced = False
        try:
            if _first_ready(standbys, timeout) is not None:
                is_replaced = not asked.is_ready(own_timeout)
        finally:
            answer.put(is_replaced)

    try:
        threading.Thread(target=look, daemon=True).start()
    except RuntimeError:  # at a limit of processes
        look()
    return answer


def _first_ready(daemons: Sequence[RemoteDaemon], timeout: float) -> RemoteDaemon | None:
    """Ask all daemons at a time, so that none waits for a host that is gone."""
    answers: queue.SimpleQueue[tuple[RemoteDaemon, bool]] = queue.SimpleQueue()

    def ask(daemon: RemoteDaemon) -> None:
        is_ready = False
        try:
            is_ready = daemon.is_ready(timeout)
        finally:
            answers.put((daemon, is_ready))

    for daemon in daemons:
        try:
            threading.Thread(target=ask, args=(daemon,), daemon=True).start()
        except RuntimeError:  # at a limit of processes
            ask(daemon)
    for _ in daemons:
        daemon, is_ready = answers.get()
        if is_ready:
            return daemon
    return None
