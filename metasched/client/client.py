"""A client of the daemon: HTTP and JSON over its unix socket, typed errors, quick to import.

http.client is not used: it imports ssl and email, a third of what `metasched submit` takes.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from metasched.errors import UserError
from metasched.paths import LONGEST_BODY, LONGEST_SOCKET, is_url

if TYPE_CHECKING:
    from metasched.client.schemas import Submission

TIMEOUT = 60.0  # seconds for an answer
POLL = 30.0  # seconds that the daemon may keep one question about the end of jobs


class ClientError(UserError):
    """A call that did not do what was asked: what, where; what to do.

    ClientError (1)      the daemon refused it for another reason, or a defect
     +-- BadRequest (2)   what was asked makes no sense
     +-- Forbidden (3)    by policy or permission
     +-- Unreachable (4)  no daemon answers; nothing was changed
     +-- NotFound (5)     no such job or cluster
     +-- Broken (1)       the answer broke off: the daemon may have done it
    """

    exit_code = 1


class BadRequest(ClientError):
    exit_code = 2


class Forbidden(ClientError):
    exit_code = 3


class Unreachable(ClientError):
    exit_code = 4


class NotFound(ClientError):
    exit_code = 5


class Broken(ClientError):
    pass


_LENGTH = "content-length"
_BY_STATUS = {
    400: BadRequest,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    422: BadRequest,
    503: Unreachable,
    504: Broken,
}


class Client:
    """Calls of one daemon; every call is a connection of its own, so none can go stale."""

    def __init__(self, path: Path | str, timeout: float = TIMEOUT) -> None:
        """`path` is a socket, or the URL of a daemon on another host; `timeout` in seconds.

        Unreachable if the kernel takes no socket of that path, or the URL has no port.
        """
        self.path, self.timeout = str(path), timeout
        self._remote = is_url(path)
        if self._remote:
            try:
                url = urlsplit(self.path)
                port = url.port or (443 if url.scheme == "https" else 80)
            except ValueError as error:
                raise self._nobody(str(error)) from None
            self._address, self._tls = (url.hostname or "", port), url.scheme == "https"
        elif len(self.path.encode(errors="surrogateescape")) > LONGEST_SOCKET:
            raise Unreachable(
                f"more than {LONGEST_SOCKET} bytes, socket {self.path}; name a shorter path"
            )

    def submit(self, submission: Submission) -> list[dict[str, Any]]:
        """Hand in jobs, all or none; an answer each with `job`, `priority`, `cluster`."""
        # not `asdict`, which copies every text of every job
        body = {**vars(submission), "jobs": [vars(job) for job in submission.jobs]}
        answer = self._call("POST", "/jobs", body=body)
        return self._rows(answer, "jobs")

    def jobs(self, jobs: Sequence[str] = (), **filters: str | float | None) -> list[dict[str, Any]]:
        """The rows of `status`: of these jobs, or all open ones that pass the filters."""
        return self._rows(self._call("GET", "/jobs", {"job": jobs, **filters}))

    def change(
        self, wish: str, jobs: Sequence[str], user: str | None = None, state: str | None = None
    ) -> list[dict[str, Any]]:
        """Ask to `cancel`, `hold`, `release` or `requeue` jobs, or call unknown ones `lost`, `ran`.

        The answer tells for each task what was and is.
        """
        body = {"jobs": list(jobs), "user": user, "state": state}
        return self._rows(self._call("POST", f"/jobs/{wish}", body=body), "jobs")

    def modify(
        self,
        changes: Mapping[str, object],
        jobs: Sequence[str],
        user: str | None = None,
        state: str | None = None,
    ) -> list[dict[str, Any]]:
        """Change what jobs ask for (see `modify.Changes`); what each task was and is."""
        body = {
            "choice": {"jobs": list(jobs), "user": user, "state": state},
            "changes": dict(changes),
        }
        return self._rows(self._call("POST", "/jobs/modify", body=body), "jobs")

    def wait(self, jobs: Sequence[str], seconds: float = POLL) -> list[dict[str, Any]]:
        """The rows of the jobs as soon as all have ended, at the latest after so many seconds."""
        return self._rows(self._call("GET", "/jobs/wait", {"job": jobs, "timeout": seconds}))

    def story(self, job: str) -> list[dict[str, Any]]:
        """Every event of a job, oldest first."""
        return self._rows(self._call("GET", f"/jobs/{quote(job, safe='')}/story"), "events")

    def explain(self, job: str) -> dict[str, Any]:
        """Why a job is where it is."""
        return self._table(self._call("GET", f"/jobs/{quote(job, safe='')}/explain"))

    def output(self, job: str) -> dict[str, Any]:
        """The paths of a job's `output` and `error` (None: the same file)."""
        return self._table(self._call("GET", f"/jobs/{quote(job, safe='')}/output"))

    def clusters(self) -> list[dict[str, Any]]:
        return self._rows(self._call("GET", "/clusters"))

    def licence_servers(self) -> list[dict[str, Any]]:
        return self._rows(self._call("GET", "/licences/servers"))

    def drain(self, cluster: str, reason: str = "", keep_pending: bool = False) -> dict[str, Any]:
        """Keep new work from a cluster; the cluster as it is then."""
        body = {"reason": reason, "keep_pending": keep_pending}
        path = f"/clusters/{quote(cluster, safe='')}/drain"
        return self._table(self._call("POST", path, body=body))

    def resume(self, cluster: str) -> dict[str, Any]:
        """Let a cluster have work again; the cluster as it is then."""
        return self._table(self._call("POST", f"/clusters/{quote(cluster, safe='')}/resume"))

    def licences(self) -> list[dict[str, Any]]:
        return self._rows(self._call("GET", "/licences"))

    def set_licence(self, name: str, total: int | None) -> dict[str, Any]:
        """Say how many of a licence there are (None: as configured); how it stands with it then."""
        path = f"/licences/{quote(name, safe='')}/total"
        return self._table(self._call("POST", path, body={"total": total}))

    def release_licences(self, jobs: Sequence[str]) -> list[dict[str, Any]]:
        """Take back the licences of jobs that are unknown; what each task has given back."""
        return self._rows(
            self._call("POST", "/licences/release", body={"jobs": list(jobs)}), "jobs"
        )

    def reserve(self, wish: Mapping[str, object]) -> dict[str, Any]:
        """Make a reservation (see `reserve.Wish`); its row, or with `dry_run` the `offers`."""
        return self._table(self._call("POST", "/reservations", body=dict(wish)))

    def reservations(self, all: bool = False) -> list[dict[str, Any]]:
        """Those that are open or ended lately; `all`: every one."""
        return self._rows(self._call("GET", "/reservations", {"all": all}))

    def cancel_reservation(self, id: int) -> dict[str, Any]:
        return self._table(self._call("POST", f"/reservations/{id}/cancel"))

    def create_token(self, seconds: float) -> dict[str, Any]:
        """A new token for the caller: `id`, `token`, `expires`."""
        return self._table(self._call("POST", "/tokens", body={"seconds": seconds}))

    def tokens(self) -> list[dict[str, Any]]:
        return self._rows(self._call("GET", "/tokens"))

    def revoke_token(self, id: int) -> None:
        self._call("POST", f"/tokens/{id}/revoke")

    def health(self) -> dict[str, Any]:
        return self._table(self._call("GET", "/health"))

    def _call(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
    ) -> Any:
        given = {k: v for k, v in (query or {}).items() if v is not None}
        encoded = urlencode(given, doseq=True)
        where = f"{path}?{encoded}" if encoded else path
        status, content = self._exchange(method, where, b"" if body is None else _json(body))
        try:
            answer = json.loads(content)
        except ValueError:
            raise self._broken(f"an answer that is no JSON (status {status})", method) from None
        if status >= 300:
            told = answer.get("error") if isinstance(answer, dict) else None
            message = str(told or f"status {status}, socket {self.path}; see the daemon's log")
            raise _BY_STATUS.get(status, ClientError)(message)
        return answer

    def _exchange(self, method: str, where: str, body: bytes) -> tuple[int, bytes]:
        """One request in HTTP/1.0, so that the answer is one piece and ends the connection."""
        if len(body) > LONGEST_BODY:
            raise BadRequest(f"more than {LONGEST_BODY} bytes, the request; submit fewer at once")
        head = f"{method} {where} HTTP/1.0\r\nContent-Length: {len(body)}\r\n"
        if body:
            head += "Content-Type: application/json\r\n"
        if self._remote:
            from metasched.client.credentials import authorization, name_of_daemon

            daemon = name_of_daemon(*self._address)
            head += f"Authorization: {authorization(daemon, method, where, body)}\r\n"
        with self._connected() as connection:
            try:
                connection.sendall(f"{head}\r\n".encode("ascii") + body)
                answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            except TimeoutError:
                raise self._broken(f"no answer in {self.timeout:g} s", method) from None
            except OSError as error:
                raise self._broken(f"the answer broke off ({error.strerror})", method) from None
        headers, _, content = answer.partition(b"\r\n\r\n")
        first, *fields = headers.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        lengths = [v for k, _, v in (f.partition(":") for f in fields) if k.lower() == _LENGTH]
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise self._broken("the answer broke off" if answer else "no answer", method)
        if not lengths or lengths[0].strip() != str(len(content)):
            raise self._broken("the answer broke off", method)
        return int(rest[:3]), content

    def _connected(self) -> socket.socket:
        return self._connected_far() if self._remote else self._connected_here()

    def _connected_far(self) -> socket.socket:
        try:
            connection = socket.create_connection(self._address, self.timeout)
            if self._tls:
                import ssl

                context = ssl.create_default_context()
                connection = context.wrap_socket(connection, server_hostname=self._address[0])
        except (OSError, ValueError) as error:
            raise self._nobody(getattr(error, "strerror", None) or str(error)) from None
        return connection

    def _nobody(self, told: str) -> Unreachable:
        return Unreachable(
            f"no daemon answers ({told}), {self.path}; look at the URL, the daemon's [tcp] "
            "and, for https, at SSL_CERT_FILE"
        )

    def _connected_here(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self.timeout)
        try:
            connection.connect(self.path)
        except PermissionError:
            connection.close()
            raise Forbidden(
                f"not allowed, socket {self.path}; the daemon belongs to somebody else: "
                "start your own with `metasched serve`"
            ) from None
        except OSError:
            connection.close()
            raise Unreachable(
                f"no daemon answers, socket {self.path}; start it with `metasched serve`, "
                "or name its configuration with --config"
            ) from None
        return connection

    def _broken(self, what: str, method: str) -> Broken:
        look = "look with `metasched status` or `metasched reservations` whether it is done"
        mend = "try again" if method == "GET" else look
        return Broken(f"{what}, socket {self.path}; {mend}")

    def _rows(self, answer: Any, key: str | None = None) -> list[dict[str, Any]]:
        rows = answer.get(key) if key is not None and isinstance(answer, dict) else answer
        if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
            raise Broken(f"not a daemon's answer, socket {self.path}; is it a metasched's?")
        return rows

    def _table(self, answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict):
            raise Broken(f"not a daemon's answer, socket {self.path}; is it a metasched's?")
        return answer


def _json(body: object) -> bytes:
    return json.dumps(body).encode()
