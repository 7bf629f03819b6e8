"""Client of the daemon: HTTP and JSON over its unix socket or TCP, with typed errors.

http.client is not used: it imports ssl and email, a third of the run time of `metasched submit`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from metasched.errors import UserError
from metasched.paths import (
    API_PROTOCOL,
    MAX_REQUEST_BYTES,
    MAX_SOCKET_PATH_BYTES,
    NEXT_CURSOR_HEADER,
    PROTOCOL_HEADER,
    is_url,
)

TIMEOUT = 60.0  # seconds for a response
RETRY_TIME = 30.0  # seconds from the first try for which a submission is repeated
RETRY_INTERVAL = 0.5  # seconds between two tries
PAGE_SIZE = 5000  # rows of a listing that are requested at once
LONG_POLL = 30.0  # seconds after which the daemon answers `wait` though jobs are still open


class ClientError(UserError):
    """A call that failed; the message is "problem, place; remedy".

    ClientError (exit code 1)      refused for another reason, or a defect of the daemon
     +-- BadRequest (2)            the request is invalid
     +-- PermissionDenied (3)      refused by policy or permission
     +-- DaemonUnreachable (4)     no daemon answers; nothing was changed
     +-- NotFound (5)              no such job or cluster
     +-- ResponseLost (1)          no complete response: the request may have been carried out
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


class _Response(NamedTuple):
    answer: Any  # JSON
    fields: Mapping[str, str]  # of the header; names in lower case


class Client:
    """Calls of a daemon. Every call opens its own connection, so that none can go stale."""

    def __init__(
        self, path: Path | str, timeout: float = TIMEOUT, retry_time: float = RETRY_TIME
    ) -> None:
        """Connect to `path`, a socket or the URL of a daemon on another host, at each call.

        `timeout` and `retry_time` are in seconds, the latter for a submission whose response was
        lost. Raises DaemonUnreachable if the path is too long for a socket, or
        the URL has an invalid port.
        """
        self.path, self.timeout, self._retry_time = str(path), timeout, retry_time
        self._remote = is_url(path)
        if self._remote:
            try:
                url = urlsplit(self.path)
                port = url.port or (443 if url.scheme == "https" else 80)
            except ValueError as error:
                raise self._unreachable(str(error)) from None
            self._address, self._tls = (url.hostname or "", port), url.scheme == "https"
        elif len(self.path.encode(errors="surrogateescape")) > MAX_SOCKET_PATH_BYTES:
            raise DaemonUnreachable(
                f"more than {MAX_SOCKET_PATH_BYTES} bytes, socket {self.path}; name a shorter path"
            )

    def submit(
        self, submission: Mapping[str, object], key: str | None = None
    ) -> list[dict[str, Any]]:
        """Submit all jobs of a `SubmitRequest`, or none, if a job is invalid.

        Return `job`, `priority`, `cluster` and `warnings` of each. If the response is lost, the
        submission is repeated for `retry_time` seconds; the daemon recognises it by its key. `key`
        is 1 to 128 letters, digits and . _ : - (None: random). A repeated call with the same key
        and submission within a day submits nothing and returns the same rows.
        """
        key = os.urandom(16).hex() if key is None else key
        if not (key.isascii() and key.isprintable()):
            raise BadRequest(f"{key!r} is no idempotency key; give letters and digits")
        header = {"Idempotency-Key": key}
        deadline = time.monotonic() + self._retry_time
        try:
            answer = self._request("POST", "/jobs", body=submission, headers=header)
        except ResponseLost as lost:
            answer = self._submit_again(submission, header, deadline, lost)
        return self._parse_rows(answer, "jobs")

    def _submit_again(
        self,
        submission: Mapping[str, object],
        header: Mapping[str, str],
        deadline: float,
        lost: ResponseLost,
    ) -> Any:
        """Repeat a submission of which the response was lost, until `deadline` (monotonic).

        Raise `lost` if the daemon does not answer until then, or knows no keys.
        """
        while time.monotonic() < deadline:
            try:
                knows_keys = self.health().get("idempotency_keys")
            except (DaemonUnreachable, ResponseLost):
                time.sleep(RETRY_INTERVAL)
                continue
            except ClientError:
                raise lost from None
            if not knows_keys:
                raise lost
            try:
                return self._request("POST", "/jobs", body=submission, headers=header)
            except (DaemonUnreachable, ResponseLost):
                time.sleep(RETRY_INTERVAL)
        raise lost

    def jobs(self, jobs: Sequence[str] = (), **filters: str | float | None) -> list[dict[str, Any]]:
        """Return the rows of `status` for these jobs, or for all jobs that pass the filters."""
        return self._all_pages("/jobs", {"job": jobs, **filters})

    def change(
        self,
        action: str,
        jobs: Sequence[str],
        user: str | None = None,
        state: str | None = None,
        cluster: str | None = None,
        exit_code: int | None = None,
    ) -> list[dict[str, Any]]:
        """Cancel, hold, release or requeue jobs; `lost` and `ran` resolve unknown jobs.

        `exit_code` is that of jobs that `ran`. Return the state before and after, and a note, for
        each task.
        """
        body: dict[str, object] = {"jobs": list(jobs), "user": user, "state": state}
        later = {"cluster": cluster, "exit_code": exit_code}  # earlier daemons know neither
        body |= {name: value for name, value in later.items() if value is not None}
        return self._parse_rows(self._request("POST", f"/jobs/{action}", body=body), "jobs")

    def modify(
        self,
        changes: Mapping[str, object],
        jobs: Sequence[str],
        user: str | None = None,
        state: str | None = None,
    ) -> list[dict[str, Any]]:
        """Change job attributes (`JobChanges`); return the state before and after for each task."""
        body = {
            "choice": {"jobs": list(jobs), "user": user, "state": state},
            "changes": dict(changes),
        }
        return self._parse_rows(self._request("POST", "/jobs/modify", body=body), "jobs")

    def wait(self, jobs: Sequence[str], timeout: float = LONG_POLL) -> list[dict[str, Any]]:
        """Return the rows of the jobs when all have ended, or after `timeout` seconds."""
        return self._parse_rows(
            self._request("GET", "/jobs/wait", {"job": jobs, "timeout": timeout})
        )

    def story(self, job: str) -> list[dict[str, Any]]:
        """Return the events of a job, oldest first."""
        return self._parse_rows(
            self._request("GET", f"/jobs/{quote(job, safe='')}/story"), "events"
        )

    def explain(self, job: str) -> dict[str, Any]:
        """Return the state of a job with its reason, priority and eligible clusters."""
        return self._parse_object(self._request("GET", f"/jobs/{quote(job, safe='')}/explain"))

    def output(self, job: str) -> dict[str, Any]:
        """Return the paths of a job's `output` and `error` (None: the same file)."""
        return self._parse_object(self._request("GET", f"/jobs/{quote(job, safe='')}/output"))

    def clusters(self) -> list[dict[str, Any]]:
        return self._parse_rows(self._request("GET", "/clusters"))

    def licence_servers(self) -> list[dict[str, Any]]:
        return self._parse_rows(self._request("GET", "/licences/servers"))

    def drain(self, cluster: str, reason: str = "", keep_pending: bool = False) -> dict[str, Any]:
        """Stop dispatching to a cluster. Return its new row of `clusters`."""
        body = {"reason": reason, "keep_pending": keep_pending}
        path = f"/clusters/{quote(cluster, safe='')}/drain"
        return self._parse_object(self._request("POST", path, body=body))

    def resume(self, cluster: str) -> dict[str, Any]:
        """Dispatch to a cluster again. Return its new row of `clusters`."""
        return self._parse_object(
            self._request("POST", f"/clusters/{quote(cluster, safe='')}/resume")
        )

    def licences(self) -> list[dict[str, Any]]:
        return self._parse_rows(self._request("GET", "/licences"))

    def limits(self, user: str | None = None) -> list[dict[str, Any]]:
        """Return the limits of a user's tasks (None: all that the caller may see) and their use."""
        query = {} if user is None else {"user": user}
        return self._parse_rows(self._request("GET", "/limits", query))

    def set_licence(self, name: str, total: int | None) -> dict[str, Any]:
        """Set the total of a licence (None: as configured). Return its new row of `licences`."""
        path = f"/licences/{quote(name, safe='')}/total"
        return self._parse_object(self._request("POST", path, body={"total": total}))

    def release_licences(self, jobs: Sequence[str]) -> list[dict[str, Any]]:
        """Release the leases of unknown jobs. Return the tokens released by each task."""
        return self._parse_rows(
            self._request("POST", "/licences/release", body={"jobs": list(jobs)}), "jobs"
        )

    def reserve(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Make a reservation (`ReservationTerms`). Return its row; with `dry_run` the `offers`."""
        return self._parse_object(self._request("POST", "/reservations", body=dict(request)))

    def reservations(self, include_closed: bool = False) -> list[dict[str, Any]]:
        """Return the reservations that are open or closed in the last hour, or all."""
        return self._parse_rows(self._request("GET", "/reservations", {"all": include_closed}))

    def cancel_reservation(self, reservation_id: int) -> dict[str, Any]:
        return self._parse_object(self._request("POST", f"/reservations/{reservation_id}/cancel"))

    def create_token(self, lifetime: float) -> dict[str, Any]:
        """Create a token for the caller, valid for `lifetime` seconds: `id`, `token`, `expires`."""
        return self._parse_object(self._request("POST", "/tokens", body={"seconds": lifetime}))

    def tokens(self) -> list[dict[str, Any]]:
        return self._parse_rows(self._request("GET", "/tokens"))

    def revoke_token(self, token_id: int) -> None:
        self._request("POST", f"/tokens/{token_id}/revoke")

    def health(self) -> dict[str, Any]:
        return self._parse_object(self._request("GET", "/health"))

    def _all_pages(self, path: str, query: Mapping[str, object]) -> list[dict[str, Any]]:
        """Return the rows of all pages of a listing, in the order of the pages.

        A daemon of an earlier release sends all rows as one page.
        """
        rows: list[dict[str, Any]] = []
        page = {**query, "limit": PAGE_SIZE}
        while True:
            response = self._respond("GET", path, page)
            rows += self._parse_rows(response.answer)
            if (cursor := response.fields.get(NEXT_CURSOR_HEADER.lower())) is None:
                return rows
            page["cursor"] = cursor

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request; return the JSON of its response."""
        return self._respond(method, path, query, body, headers).answer

    def _respond(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> _Response:
        parameters = {key: value for key, value in (query or {}).items() if value is not None}
        encoded = urlencode(parameters, doseq=True)
        target = f"{path}?{encoded}" if encoded else path
        encoded_body = b"" if body is None else _encode_json(body)
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
        return _Response(answer, fields)

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
        if self._remote:
            from metasched.client.credentials import (
                authorization_header,
                daemon_name,
                is_loopback,
            )

            daemon = daemon_name(*self._address)
            private = self._tls or is_loopback(self._address[0])
            credential = authorization_header(daemon, method, target, body, private)
            head += f"Authorization: {credential}\r\n"
        answer = bytearray()
        with self._connect() as connection:
            try:
                # a refusal may come before the whole body was sent
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(f"{head}\r\n".encode("ascii") + body)
                with contextlib.suppress(ConnectionResetError):
                    while part := connection.recv(1 << 16):
                        answer += part
            except TimeoutError:
                raise self._response_lost(f"no answer in {self.timeout:g} s", method) from None
            except OSError as error:
                raise self._response_lost(
                    f"the response is incomplete ({error.strerror})", method
                ) from None
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

    def _connect(self) -> socket.socket:
        return self._connect_tcp() if self._remote else self._connect_unix()

    def _connect_tcp(self) -> socket.socket:
        try:
            connection = socket.create_connection(self._address, self.timeout)
            if self._tls:
                import ssl

                context = ssl.create_default_context()
                connection = context.wrap_socket(connection, server_hostname=self._address[0])
        except (OSError, ValueError) as error:
            raise self._unreachable(getattr(error, "strerror", None) or str(error)) from None
        return connection

    def _unreachable(self, reason: str) -> DaemonUnreachable:
        return DaemonUnreachable(
            f"no daemon answers ({reason}), {self.path}; check the URL, the daemon's [tcp] "
            "and, for https, SSL_CERT_FILE"
        )

    def _connect_unix(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        seconds, fraction = divmod(self.timeout, 1)
        limit = struct.pack("@ll", int(seconds), int(fraction * 1e6))
        # a socket with a timeout would not wait for a daemon that has many callers
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            connection.connect(self.path)
            connection.settimeout(self.timeout)
        except PermissionError:
            connection.close()
            raise PermissionDenied(
                f"not allowed, socket {self.path}; the daemon belongs to another user: "
                "start your own with `metasched serve`"
            ) from None
        except OSError:
            connection.close()
            raise DaemonUnreachable(
                f"no daemon answers, socket {self.path}; start it with `metasched serve`, "
                "or name its configuration with --config"
            ) from None
        return connection

    def _response_lost(self, problem: str, method: str) -> ResponseLost:
        remedy = "try again"
        if method != "GET":
            remedy = "check with `metasched status` or `metasched reservations` whether it was done"
        return ResponseLost(f"{problem}, socket {self.path}; {remedy}")

    def _parse_rows(self, answer: Any, key: str | None = None) -> list[dict[str, Any]]:
        rows = answer.get(key) if key is not None and isinstance(answer, dict) else answer
        if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
            raise ResponseLost(
                f"unexpected response, socket {self.path}; check that it is metasched's"
            )
        return rows

    def _parse_object(self, answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict):
            raise ResponseLost(
                f"unexpected response, socket {self.path}; check that it is metasched's"
            )
        return answer


def _encode_json(body: object) -> bytes:
    return json.dumps(body).encode()


def _may_be_unknown(status: int, message: str) -> bool:
    """Whether a daemon may have refused a route or a field because it does not know it."""
    return status in (405, 422) or (status == 404 and message.startswith("Not Found: "))
