"""A request to the daemon and its response: HTTP and JSON over its unix socket or TCP.

Tools run these commands in loops, so this module loads in a few milliseconds. It imports neither
http.client, which needs ssl and email, nor typing, urllib, pathlib and contextlib. It keeps to
Python 3.9, since the drop-in commands run by a host's own interpreter.
"""

from __future__ import annotations

import json
import time

from metasched.client.unix_socket import connect_unix
from metasched.errors import UserError
from metasched.paths import API_PROTOCOL, MAX_REQUEST_BYTES, MAX_SOCKET_PATH_BYTES, PROTOCOL_HEADER
from metasched.paths import is_url as is_url

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from metasched.client.remote import RemoteDaemon

TIMEOUT = 60.0  # seconds for a response
FAILOVER_TIME = 20.0  # seconds for a standby daemon to take over from the active daemon
READY_TIMEOUT = 3.0  # seconds for each of several daemons to answer whether it serves
SAME_DAEMON_TIMEOUT = 1.0  # the same for a daemon that seems to be replaced
TAKEOVER_CHECK_INTERVAL = 2.0  # seconds without an answer between looks for another active daemon
_TAKEOVER_LOOK = 0.25  # seconds between looks whether such a look has ended


class ClientError(UserError):
    """A call that failed; the message is "problem, place; remedy".

    ClientError (exit code 1)      refused for another reason, or a defect of the daemon
     +-- BadRequest (2)            the request is invalid
     +-- PermissionDenied (3)      refused by policy or permission
     +-- DaemonUnreachable (4)     no daemon answers; nothing was changed
     +-- NotFound (5)              no such job or cluster
     +-- ResponseLost (1)          no complete response: the request may have been carried out
          +-- DaemonReplaced (1)   another daemon became active before the response
    """

    exit_code = 1


class BadRequest(ClientError):
    exit_code = 2


class PermissionDenied(ClientError):
    exit_code = 3


class DaemonUnreachable(ClientError):
    exit_code = 4


class NotFound(ClientError):
    exit_code = 5


class ResponseLost(ClientError):
    pass


class DaemonReplaced(ResponseLost):
    pass


_CONTENT_LENGTH = "content-length"
_BY_STATUS = {
    400: BadRequest,
    401: PermissionDenied,
    403: PermissionDenied,
    404: NotFound,
    422: BadRequest,
    503: DaemonUnreachable,
    504: ResponseLost,
}
_UNESCAPED = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
)  # RFC 3986, section 2.3


def _encode(body: object) -> bytes:
    """Return a body as JSON, which is short for scripts that are not English."""
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a character, which the daemon refuses by name
        return json.dumps(body).encode()


def percent_encode(text: str) -> str:
    """Encode a word for the path or the query of a URL."""
    octets = text.encode(errors="surrogateescape")
    return "".join(chr(octet) if octet in _UNESCAPED else f"%{octet:02X}" for octet in octets)


def encode_query(parameters: Iterable[tuple[str, object]]) -> str:
    """Encode the query of a URL; a list is repeated, None is left out."""
    pairs = []
    for name, value in parameters:
        for element in value if isinstance(value, (list, tuple)) else (value,):
            if element is not None:
                pairs.append(f"{name}={percent_encode(str(element))}")
    return "&".join(pairs)


class Connection:
    """Requests to a daemon. Each opens its own connection, so that none can go stale."""

    def __init__(self, path: object, timeout: float = TIMEOUT) -> None:
        """Connect to `path`, a socket or the URL of a daemon on another host, at each request.

        Of several URLs, separated by commas, that of the active daemon is taken; the others are
        standbys. `timeout` is in seconds.

        Raises DaemonUnreachable if the path is too long for a socket.
        """
        self.path, self.timeout = str(path), timeout
        self._is_remote = is_url(self.path)
        self._active_url = ""  # of several daemons: that which served last
        if (
            not self._is_remote
            and len(self.path.encode(errors="surrogateescape")) > MAX_SOCKET_PATH_BYTES
        ):
            raise DaemonUnreachable(
                f"more than {MAX_SOCKET_PATH_BYTES} bytes, socket {self.path}; name a shorter path"
            )

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, dict[str, str]]:
        """Send a request; return the JSON of its response, and its header fields in lower case.

        A GET is sent again, once, if another daemon takes over before the response. Raises the
        ClientError of its status.
        """
        encoded = encode_query((query or {}).items())
        target = f"{path}?{encoded}" if encoded else path
        encoded_body = b"" if body is None else _encode(body)
        try:
            status, content, fields = self._exchange(method, target, encoded_body, headers or {})
        except DaemonReplaced:
            if method != "GET":
                raise
            status, content, fields = self._exchange(method, target, encoded_body, headers or {})
        try:
            answer = json.loads(content)
        except ValueError:
            raise self._response_lost(
                f"the response is not JSON (status {status})", method
            ) from None
        if status >= 300:
            error = answer.get("error") if isinstance(answer, dict) else None
            message = str(error or f"status {status}, socket {self.path}; see the daemon's log")
            protocol = fields.get(PROTOCOL_HEADER.lower(), "")
            is_earlier = (int(protocol) if protocol.isdecimal() else 1) < API_PROTOCOL
            if is_earlier and _may_be_unknown(status, message):
                message = (
                    f"{message.rpartition(';')[0] or message}, by a daemon of an earlier release; "
                    "use the commands of its release"
                )
            raise _BY_STATUS.get(status, ClientError)(message)
        return answer, fields

    def _exchange(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, dict[str, str]]:
        """Send an HTTP/1.0 request: the response is unchunked and ends with the connection.

        Return its status, content and header fields; their names are in lower case.
        """
        if len(body) > MAX_REQUEST_BYTES:
            raise BadRequest(
                f"more than {MAX_REQUEST_BYTES} bytes, the request; submit fewer jobs at once"
            )
        head = f"{method} {target} HTTP/1.0\r\nContent-Length: {len(body)}\r\n"
        head += f"{PROTOCOL_HEADER}: {API_PROTOCOL}\r\n"
        if body:
            head += "Content-Type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        for connection, credential, daemons in self._connections(method, target, body):
            message = f"{head}{credential}\r\n".encode("ascii") + body
            status, content, fields = self._converse(connection, message, method, daemons)
            if status != 401:
                break
        return status, content, fields

    def _converse(
        self,
        connection: socket.socket,
        message: bytes,
        method: str,
        daemons: tuple[RemoteDaemon, ...],
    ) -> tuple[int, bytes, dict[str, str]]:
        """Send a whole request and read the response; close the connection.

        `daemons`: the daemon at the other end, then its standbys.
        """
        answer = bytearray()
        with connection:
            try:
                try:  # noqa: SIM105  # contextlib would take a millisecond
                    connection.sendall(message)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # a refusal may come before the whole body was sent
                while part := self._receive(connection, method, daemons):
                    answer += part
            except ConnectionResetError:
                pass
            except OSError as error:
                problem = f"the response is incomplete ({error.strerror})"
                if _is_timeout(error):
                    problem = f"no answer in {self.timeout:g} s"
                raise self._response_lost(problem, method) from None
        response_head, _, content = answer.partition(b"\r\n\r\n")
        status_line, *fields = response_head.decode("latin-1").split("\r\n")
        version, _, status = status_line.partition(" ")
        values = {
            name.lower(): value.strip()
            for name, _, value in (field.partition(":") for field in fields)
        }
        if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            problem = "the response is incomplete" if answer else "no answer"
            raise self._response_lost(problem, method)
        if values.get(_CONTENT_LENGTH) != str(len(content)):
            raise self._response_lost("the response is incomplete", method)
        return int(status[:3]), bytes(content), values

    def _receive(
        self, connection: socket.socket, method: str, daemons: tuple[RemoteDaemon, ...]
    ) -> bytes:
        """Return the next part of a response. TimeoutError after `timeout` seconds without any.

        DaemonReplaced if a standby has become active meanwhile: no answer will come any more.
        """
        now = time.monotonic()
        deadline, next_look, answer = now + self.timeout, now + TAKEOVER_CHECK_INTERVAL, None
        while len(daemons) > 1 and (now := time.monotonic()) < deadline - _TAKEOVER_LOOK:
            connection.settimeout(_TAKEOVER_LOOK)
            try:
                return connection.recv(1 << 16)
            except OSError as error:
                if not _is_timeout(error):
                    raise
            if answer is not None and not answer.empty():
                if answer.get():
                    problem = "another daemon took over before the answer"
                    raise self._response_lost(problem, method, DaemonReplaced)
                answer, next_look = None, now + TAKEOVER_CHECK_INTERVAL
            elif answer is None and now >= next_look:
                from metasched.client.remote import look_for_takeover

                asked, *standbys = daemons
                answer = look_for_takeover(asked, standbys, READY_TIMEOUT, SAME_DAEMON_TIMEOUT)
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        return connection.recv(1 << 16)

    def _connections(
        self, method: str, target: str, body: bytes
    ) -> Iterator[tuple[socket.socket, str, tuple[RemoteDaemon, ...]]]:
        """Yield connections with header fields that authenticate the request, until it is served.

        Each comes with its daemon and the standbys of that.
        """
        if not self._is_remote:
            yield self._connect_unix(), "", ()
            return
        from metasched.client.job_daemon import find_job_daemon
        from metasched.client.sudo import check_tls

        check_tls()
        job_daemon = find_job_daemon(self.path)
        if job_daemon is not None and (local := job_daemon.connect(self.timeout)) is not None:
            yield local, "", ()
            return
        from metasched.client.remote import RemoteDaemon, active_daemon

        try:
            daemons = [RemoteDaemon(url, job_daemon) for url in self.path.split(",")]
            active = next((d for d in daemons if d.url == self._active_url), None)
            remote = active_daemon(daemons, READY_TIMEOUT, FAILOVER_TIME, active)
            standbys = (daemon for daemon in daemons if daemon is not remote)
            choice = (remote, *standbys)
            for connection, header in remote.connections(method, target, body, self.timeout):
                self._active_url = remote.url
                yield connection, header, choice
        except (OSError, ValueError) as error:
            raise self._unreachable(getattr(error, "strerror", None) or str(error)) from None

    def _unreachable(self, reason: str) -> DaemonUnreachable:
        return DaemonUnreachable(
            f"no daemon answers ({reason}), {self.path}; check the URL, the daemon's [tcp] "
            "and, for https, SSL_CERT_FILE"
        )

    def _connect_unix(self) -> socket.socket:
        try:
            return connect_unix(self.path, self.timeout)
        except PermissionError:
            raise PermissionDenied(
                f"not allowed, socket {self.path}; the daemon belongs to another user: "
                "start your own with `metasched serve`"
            ) from None
        except OSError:
            raise DaemonUnreachable(
                f"no daemon answers, socket {self.path}; start it with `metasched serve`, "
                "or name its configuration with --config"
            ) from None

    def _response_lost(
        self, problem: str, method: str, kind: type[ResponseLost] = ResponseLost
    ) -> ResponseLost:
        remedy = "try again"
        if method != "GET":
            remedy = "check with `metasched status` or `metasched reservations` whether it was done"
        return kind(f"{problem}, socket {self.path}; {remedy}")


def _is_timeout(error: OSError) -> bool:
    """Return whether a socket gave up; before Python 3.10 its error is no TimeoutError."""
    return type(error).__name__ in ("TimeoutError", "timeout")


def _may_be_unknown(status: int, message: str) -> bool:
    """Return whether a daemon may have refused a route or a field because it does not know it."""
    return status in (405, 422) or (status == 404 and message.startswith("Not Found: "))
