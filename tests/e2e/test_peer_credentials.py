"""Callers are identified by the kernel: two real accounts, and forged headers."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys

import pytest

from tests.e2e.conftest import Site
from tests.harness.http_calls import call

ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
    peer.sendall(b"GET /health HTTP/1.1\\r\\nHost: x\\r\\nX-Forwarded-For: 127.0.0.1\\r\\n"
                 b"X-Remote-User: root\\r\\nConnection: close\\r\\n\\r\\n")
    while part := peer.recv(65536):
        sys.stdout.buffer.write(part)
"""


def ask(site: Site, method: str, path: str, body: object = None) -> tuple[int, object]:
    response = call(site.folder / "ms.sock", method, path, body)
    return response.status, response.json


def one(**fields: object) -> dict[str, object]:
    job = {"script": "a", "environment": "b", "directory": "/", **fields}
    return {"jobs": [job], "scripts": {"a": "#!/bin/sh"}, "environments": {"b": {}}}


def test_the_socket_is_for_its_owner_alone(running: Site) -> None:
    socket_path = running.folder / "ms.sock"
    assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600
    status, health = ask(running, "GET", "/health")
    assert status == 200
    assert isinstance(health, dict)
    assert health["user"] == pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.root
def test_another_account_is_refused_even_if_it_can_connect(running: Site) -> None:
    socket_path = running.folder / "ms.sock"
    socket_path.chmod(0o666)
    for folder in (running.folder, *running.folder.parents):
        folder.chmod(folder.stat().st_mode | 0o011)
    other = pwd.getpwnam("nobody").pw_uid
    done = subprocess.run(
        ["/usr/bin/python3", "-c", ASK, str(socket_path)],
        user=other,
        group=other,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout.startswith("HTTP/1.1 403"), done.stdout
    assert f"user id {other} may not use" in done.stdout
    own = subprocess.run(
        [sys.executable, "-c", ASK, str(socket_path)], capture_output=True, text=True, check=True
    )
    assert own.stdout.startswith("HTTP/1.1 200")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/nothing", None, 404, "Not Found"),
        ("PUT", "/jobs", None, 405, "Method Not Allowed"),
        ("POST", "/jobs", {"jobs": []}, 422, "scripts"),
        ("POST", "/jobs", {"jobs": [], "scripts": {}, "environments": {}}, 422, "no job"),
        (
            "POST",
            "/jobs",
            {"jobs": [{"scrpt": 1}], "scripts": {}, "environments": {}},
            422,
            "jobs.0",
        ),
        (
            "POST",
            "/jobs",
            {
                "jobs": [{"script": "a", "environment": "b", "directory": "/"}],
                "scripts": {},
                "environments": {},
            },
            422,
            "script a is not in the request",
        ),
        ("POST", "/jobs", one(name="\ud800"), 422, "half a character"),
        ("POST", "/jobs", one(script="\ud800"), 422, "half a character"),
        ("POST", "/jobs", {**one(), "scripts": {"a": "#!\ud800"}}, 422, "half a character"),
        ("POST", "/jobs", {**one(), "environments": {"b": {"A": "\ud800"}}}, 422, "half a"),
        ("POST", "/jobs/cancel", {"user": "\ud800"}, 422, "half a character"),
        ("POST", "/jobs", one(name="x" * 10**6), 422, "name"),
        ("POST", "/jobs", one(constraint="x" * 10**5), 422, "more than 32768 characters"),
        ("POST", "/jobs", one(slurm_options=["'" * 10**5]), 422, "more than 32768 characters"),
        ("POST", "/jobs", one(arguments=["a\0b"]), 422, "arguments"),
        ("POST", "/jobs", one(deadline=-1e300), 422, "deadline"),
        ("POST", "/jobs", one(memory=10**30), 422, "memory"),
        ("POST", "/jobs", one(time_limit=1e308), 422, "time_limit"),
        ("POST", "/jobs", one(bogus=1), 422, "bogus"),
        ("POST", "/jobs/cancel", {}, 422, "nothing to cancel"),
        ("POST", "/jobs/cancel", {"jobs": ["1"], "force": True}, 422, "force"),
        ("POST", "/jobs/burn", {"jobs": ["1"]}, 422, "action"),
        ("GET", "/jobs?state=lost", None, 422, "unknown state"),
        ("GET", "/jobs/details?licence=%00", None, 422, "NUL"),  # PostgreSQL refuses its query
        ("GET", "/jobs/wait?job=4", None, 404, "no job 4"),
    ],
)
def test_wrong_requests_are_one_line(
    shared: Site, method: str, path: str, body: object, status: int, message: str
) -> None:
    answer_status, answer = ask(shared, method, path, body)
    assert answer_status == status, answer
    assert isinstance(answer, dict)
    assert message in answer["error"]
    assert "\n" not in answer["error"]
    assert shared.json("status", "--all") == []
