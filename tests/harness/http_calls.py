"""HTTP calls over a unix socket, made without metasched's client."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


def call(
    path: Path,
    method: str,
    target: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30,
) -> Response:
    """Send a request with a JSON body to the daemon at the socket `path`."""
    connection = UnixConnection(path, timeout)
    try:
        content = None if body is None else json.dumps(body)
        fields = {"Content-Type": "application/json"} | dict(headers or {})
        connection.request(method, target, content, fields)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Response(response.status, names, response.read())
    finally:
        connection.close()
