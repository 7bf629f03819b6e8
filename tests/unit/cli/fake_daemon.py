"""A fake daemon with prepared responses, and the rows that it answers."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from metasched.paths import API_PROTOCOL, PROTOCOL_HEADER


@dataclass
class FakeDaemon:
    """A daemon with prepared responses by path; the last response of a list is repeated."""

    path: Path
    protocol: str = str(API_PROTOCOL)
    answers: dict[str, list[Any]] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, list[str]], Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # Idempotency-Key of each request in `requests`

    def answer(self, path: str, *answers: Any) -> None:
        """Set responses: JSON values, raw bytes, None for silence, (status, JSON value) pairs.

        Such a pair may have a third part, header fields.
        """
        self.answers[path] = list(answers)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeDaemonServer

    def log_message(self, format: str, *args: object) -> None: ...

    def _serve(self) -> None:
        fake, url = self.server.fake, urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        query = parse_qs(url.query)
        fake.requests.append((self.command, url.path, query, json.loads(body) if body else None))
        fake.keys.append(self.headers.get("Idempotency-Key", ""))
        answers = fake.answers.get(url.path, [(404, {"error": "no such path"})])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            self.server.released.wait(30)
        elif isinstance(answer, bytes):
            self.wfile.write(answer)
        else:
            status, value, *more = answer if isinstance(answer, tuple) else (200, answer)
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header(PROTOCOL_HEADER, fake.protocol)
            for name, text in more[0].items() if more else ():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(content)
        self.close_connection = True

    do_GET = do_POST = _serve


class FakeDaemonServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    def __init__(self, fake: FakeDaemon) -> None:
        self.fake, self.released = fake, threading.Event()
        super().__init__(str(fake.path), _Handler)

    def get_request(self) -> tuple[Any, Any]:
        # the handler logs the address of the peer
        return super().get_request()[0], ("client", 0)


@dataclass
class Completed:
    code: int
    out: str
    err: str


Run = Callable[..., Completed]


def started(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `metasched` as a subprocess."""
    source = "import sys; from metasched.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", source, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def row(job: int = 17, state: str = "running", **fields: object) -> dict[str, object]:
    return {
        "job": job,
        "array": None,
        "task": None,
        "name": "sim",
        "user": "ada",
        "state": state,
        "reason": None,
        "priority": 7,
        "cluster": "left",
        "native_id": "5",
        "submitted": "2026-01-31T10:00:00.000+00:00",
        "expected_start": None,
        "expected_early": None,
        "expected_late": None,
        "started": None,
        "ended": None,
        "exit_code": None,
        **fields,
    }


def accepted(**fields: object) -> dict[str, object]:
    expected = dict.fromkeys(("expected_start", "expected_early", "expected_late"))
    job = {"job": 17, "priority": 7, "cluster": "left", "tasks": None, "warnings": []}
    return {"jobs": [{**job, **expected, **fields}]}


def answer_paths(daemon: FakeDaemon, output: Path, error: Path | None = None) -> None:
    answer = {"output": str(output), "error": None if error is None else str(error)}
    daemon.answer("/jobs/17/output", answer)


def verdict(cluster: str, **fields: object) -> dict[str, object]:
    answer = {"eligible": True, "reason": None, "text": "", "load": 120.0, "count": 2}
    return {"cluster": cluster, **answer, "chosen": False, **fields}
