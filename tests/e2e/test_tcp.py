"""Callers on other hosts: tokens and MUNGE credentials over TCP, valid and invalid."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import pwd
import shutil
import socket
import sqlite3
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metasched.client.credentials import request_digest
from metasched.client.job_daemon import job_variables
from metasched.paths import MAX_REQUEST_BYTES, NEXT_CURSOR_HEADER
from tests.conftest import require
from tests.e2e.conftest import COMMAND, TWO_LOCAL, Site
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite
from tests.harness import accounts
from tests.harness.accounts import A, B
from tests.harness.http_calls import Response, call
from tests.harness.reaper import dying_with

LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
ALIAS = "metasched.example.org:443"


class Far:
    """A port for a daemon, and a munged shared by its hosts."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("munged") is None and shutil.which("/usr/sbin/munged") is None:
            require("munge", "munged not found; apt-get install munge")
        self._holder = socket.socket()  # reserves the port; the daemon may share it
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.port = self._holder.getsockname()[1]
        munge = folder / "munge"
        munge.mkdir()
        key = munge / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        self.socket = munge / "socket"
        with (munge / "out").open("wb") as out:
            self._munged = subprocess.Popen(
                [
                    *("/usr/sbin/munged", "--foreground", "--force", f"--socket={self.socket}"),
                    *(f"--key-file={key}", f"--pid-file={munge}/pid"),
                    *(f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
                ],
                stdout=out,
                stderr=out,
                preexec_fn=dying_with(os.getpid()),
            )
        end = time.monotonic() + 30
        while not self.socket.exists():
            assert time.monotonic() < end, (munge / "out").read_text()
            time.sleep(0.02)

    @property
    def table(self) -> str:
        return (
            f'[tcp]\nlisten = "127.0.0.1:{self.port}"\nmunge = true\n'
            f'munge_socket = "{self.socket}"\nnames = ["{ALIAS}"]\n'
        )

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a client on another host, without a token."""
        return {
            "METASCHED_CONFIG": "",
            "METASCHED_SOCKET": f"http://127.0.0.1:{self.port}",
            "METASCHED_MUNGE_SOCKET": str(self.socket),
            "METASCHED_TOKEN_FILE": "/nonexistent/token",
        }

    def credential(self, payload: str | bytes, **options: Any) -> str:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            ["munge", f"--socket={self.socket}"],
            input=payload if isinstance(payload, bytes) else payload.encode(),
            capture_output=True,
            check=True,
            **options,
        )
        return done.stdout.decode().strip()

    def ask(self, headers: dict[str, str], method: str = "GET", path: str = "/health") -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        self._munged.terminate()
        self._munged.wait()
        self._holder.close()


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Far]]:
    folder = tmp_path_factory.mktemp("far")
    site, there = Site(folder), Far(folder)
    site.configure(TWO_LOCAL, there.table)
    try:
        site.start()
        yield site, there
    finally:
        site.close()
        there.close()


def me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def test_a_token_is_valid_until_it_is_revoked(far: tuple[Site, Far], tmp_path: Path) -> None:
    site, there = far
    file = tmp_path / "token"
    token = json.loads(site.run("token", "create", "--file", file, "--json").stdout)
    secret = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "token" not in token
    stored = sqlite3.connect(site.database).execute("SELECT * FROM token").fetchall()
    assert not any(secret in str(row) for row in stored)
    remote = there.environment | {"METASCHED_TOKEN_FILE": str(file)}
    job = site.run("submit", "--parsable", "-o", "/dev/null", "--wrap", "true", env=remote).stdout
    assert json.loads(site.run("status", job.strip(), "--json", env=remote).stdout)
    message = site.run("token", "create", code=3, env=remote).stderr
    assert "a token cannot create tokens" in message
    site.run("token", "revoke", str(token["id"]))
    message = site.run("status", code=3, env=remote).stderr
    assert "unknown, expired or revoked" in message
    rows = {row["id"]: row for row in site.json("token", "list")}
    assert rows[token["id"]]["revoked"]
    assert "digest" not in rows[token["id"]]
    site.run("token", "create")
    whole = call(site.folder / "ms.sock", "GET", "/tokens")
    assert whole.json == list(rows.values()) + whole.json[len(rows) :]
    pages = list[Response]()
    cursor: str | None = ""
    while cursor is not None:
        pages.append(call(site.folder / "ms.sock", "GET", f"/tokens?limit=1{cursor}"))
        following = pages[-1].headers.get(NEXT_CURSOR_HEADER.lower())
        cursor = following and f"&cursor={following}"
    assert [page.json for page in pages] == [[row] for row in whole.json]
    assert "no token 999" in site.error("token", "revoke", "999", code=5)
    assert "File exists" in site.error("token", "create", "--file", file, code=1)


def test_a_token_expires(far: tuple[Site, Far]) -> None:
    site, there = far
    secret = site.run("token", "create", "--expires", "1").stdout.strip()
    headers = {"Authorization": f"Bearer {secret}"}
    site.until(lambda: there.ask(headers)[0] == 401)


def test_a_token_that_others_may_read_is_not_sent(far: tuple[Site, Far], tmp_path: Path) -> None:
    site, there = far
    file = tmp_path / "token"
    site.run("token", "create", "--file", file)
    remote = there.environment | {"METASCHED_TOKEN_FILE": str(file)}
    file.chmod(0o644)
    assert "chmod 600" in site.run("status", code=3, env=remote).stderr
    file.chmod(0o600)
    for nonsense in ("", "one\r\nTwo: three", "\N{BLACK STAR}"):
        file.write_text(nonsense)
        assert "no valid token in it" in site.run("status", code=3, env=remote).stderr
    file.unlink()
    file.mkdir()
    assert "Is a directory" in site.run("status", code=3, env=remote).stderr


def test_no_caller_can_fill_the_memory_of_the_daemon(far: tuple[Site, Far]) -> None:
    site, there = far
    token = site.run("token", "create").stdout.strip()
    head = "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    length = f"Content-Length: {MAX_REQUEST_BYTES + 1}\r\n"
    credential = f"Authorization: Bearer {token}\r\n"
    for fields, status in ((length, b"401"), (credential + length, b"413")):
        with socket.create_connection(("127.0.0.1", there.port), timeout=30) as sender:
            sender.sendall(f"{head}{fields}\r\n".encode())  # without the body
            assert sender.recv(100).startswith(b"HTTP/1.1 " + status)
    with socket.create_connection(("127.0.0.1", there.port), timeout=30) as sender:
        sender.sendall(f"{head}{credential}Transfer-Encoding: chunked\r\n\r\n".encode())
        sender.sendall(b"%x\r\n%s\r\n" % (MAX_REQUEST_BYTES + 1, bytes(MAX_REQUEST_BYTES + 1)))
        assert sender.recv(100).startswith(b"HTTP/1.1 413")


def test_a_munge_credential_is_valid_once_and_for_one_request(far: tuple[Site, Far]) -> None:
    site, there = far
    site.run("status", env=there.environment)
    digest = request_digest(there.name, "GET", "/health", b"")
    headers = {"Authorization": f"MUNGE {there.credential(digest)}"}
    status, answer = there.ask(headers)
    assert (status, answer["user"]) == (200, me())
    status, answer = there.ask(headers)
    assert status == 401
    assert "replayed" in answer["error"]

    def replays() -> list[dict[str, Any]]:
        # other tests of this module have left refusals of their own
        refused = site.json("events", "--kind", "credential_refused")
        return [event for event in refused if "replayed" in event["cause"].lower()]

    [replay] = site.until(replays)
    assert replay["details"] == {"peer": "127.0.0.1"}
    other = {"Authorization": f"MUNGE {there.credential(digest)}"}
    status, answer = there.ask(other, path="/jobs")
    assert (status, "another request" in answer["error"]) == (401, True)


@pytest.mark.parametrize("payload", [b"\xff\xfe", b"\xc3", b"\0", b"UID: 0 x\n", b""])
def test_any_payload_of_a_credential_is_judged(far: tuple[Site, Far], payload: bytes) -> None:
    _, there = far
    status, answer = there.ask({"Authorization": f"MUNGE {there.credential(payload)}"})
    assert (status, "another request" in answer["error"]) == (401, True)


def test_a_munge_credential_is_valid_for_one_daemon(
    far: tuple[Site, Far],
) -> None:
    """Otherwise the called daemon could use it for any daemon whose host has the same key."""
    site, there = far
    elsewhere = f"http://localhost:{there.port}"  # a name that is valid on this host only
    assert site.run("status", env=there.environment | {"METASCHED_SOCKET": elsewhere})
    for name, status in (
        (f"{socket.gethostname()}:{there.port}", 200),
        (ALIAS, 200),
        ("other.example.org:7410", 401),
        (f"127.0.0.1:{there.port - 1}", 401),
    ):
        shown = there.credential(request_digest(name, "GET", "/health", b""))
        answer = there.ask({"Authorization": f"MUNGE {shown}"})
        assert answer[0] == status, (name, answer)
        assert status == 200 or f"this one is {ALIAS}" in answer[1]["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Forwarded-For": "127.0.0.1", "X-Remote-User": "root", "Uid": "0", "Forwarded": "for=_"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer ' OR 1=1 --"},
        {"Authorization": "Basic cm9vdDo="},
        {"Authorization": "MUNGE "},
        {"Authorization": "MUNGE MUNGE:AwQFAAA=:"},
        {"Authorization": "MUNGE --socket=/tmp/mine"},
        {"Cookie": "user=root"},
    ],
)
def test_invalid_credentials_are_refused(far: tuple[Site, Far], headers: dict[str, str]) -> None:
    _, there = far
    for method, path in (
        *(("GET", "/health"), ("GET", "/jobs"), ("POST", "/jobs/cancel")),
        *(("GET", "/openapi.json"), ("GET", "/docs")),
    ):
        status, answer = there.ask(headers, method, path)
        assert status == 401, answer
        assert answer["error"].count("\n") == 0


def test_a_missing_certificate_is_an_error_in_one_line(site: Site) -> None:
    table = '[tcp]\nlisten = "127.0.0.1:0"\ncertificate = "c.pem"\nkey = "k.pem"\n'
    site.configure(TWO_LOCAL, table)
    assert "certificate" in site.error("serve", code=2)


@dataclass(frozen=True)
class TlsSite:
    """A running site with a certificate of its own, `c`, and a token of the caller."""

    site: Site
    port: int
    token: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def environment(self, **variables: str) -> dict[str, str]:
        """Environment of a client on another host."""
        return {
            "METASCHED_CONFIG": "",
            "METASCHED_SOCKET": self.url,
            "METASCHED_TOKEN_FILE": str(self.token),
            **variables,
        }

    def in_job(self, fingerprint: str, uid: int = 0, socket: str = "/none") -> dict[str, str]:
        """Environment of a client in a job on another host, by default."""
        return self.environment(**job_variables(self.url, fingerprint, uid, socket))


def make_certificate(folder: Path, name: str) -> str:
    """Write a certificate and its key, `name` and `name`.key; return its fingerprint."""
    if shutil.which("openssl") is None:
        require("openssl", "it makes the certificate")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost", "-keyout", f"{name}.key", "-out", name)
    subprocess.run([*command.split(), *names], cwd=folder, capture_output=True, check=True)
    content = ssl.PEM_cert_to_DER_cert((folder / name).read_text())
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def tls(site: Site) -> Iterator[TlsSite]:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        make_certificate(site.folder, "c")
        running = TlsSite(site, port, site.folder / "token")
        site.configure(
            TWO_LOCAL,
            f'[tcp]\nlisten = "localhost:{port}"\ncertificate = "c"\nkey = "c.key"\n'
            f'url = "{running.url}"\n',
        )
        site.start()
        site.run("token", "create", "--file", running.token)
        yield running


def test_tls_with_a_certificate_of_the_site(tls: TlsSite) -> None:
    remote = tls.environment()
    message = tls.site.run("status", code=4, env=remote).stderr
    assert "certificate" in message.lower()
    tls.site.run("status", env=remote | {"SSL_CERT_FILE": str(tls.site.folder / "c")})


def test_a_job_knows_the_certificate_of_its_daemon(tls: TlsSite) -> None:
    site = tls.site
    content = ssl.PEM_cert_to_DER_cert((site.folder / "c").read_text())
    site.run("status", env=tls.in_job(hashlib.sha256(content).hexdigest()))
    other = make_certificate(site.folder, "other")
    assert "certificate" in site.run("status", code=4, env=tls.in_job(other)).stderr
    renewed = tls.in_job(other) | {"SSL_CERT_FILE": str(site.folder / "c")}
    site.run("status", env=renewed)  # the host trusts it besides


def test_nothing_is_sent_to_a_daemon_with_another_certificate(tls: TlsSite) -> None:
    """As a man in the middle sees it: the connection ends after the handshake."""
    site = tls.site
    make_certificate(site.folder, "other")
    content = ssl.PEM_cert_to_DER_cert((site.folder / "c").read_text())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.folder / "other", site.folder / "other.key")
    received: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError), connection:
                    received.append(context.wrap_socket(connection, server_side=True).recv(100))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        variables = job_variables(url, hashlib.sha256(content).hexdigest(), 0, "/none")
        message = site.run("status", code=4, env=tls.environment(**variables)).stderr
        assert "certificate" in message
        listener.shutdown(socket.SHUT_RDWR)
    server.join()
    assert received
    assert set(received) == {b""}


def test_on_its_own_host_a_daemon_is_called_by_its_socket(tls: TlsSite) -> None:
    """The caller has no credential for TCP."""
    site = tls.site
    path = str(site.folder / "ms.sock")
    tls.token.unlink()
    site.run("status", env=tls.in_job("0" * 64, os.geteuid(), path))
    # the socket of another account, where the daemon is not
    site.run("status", env=tls.in_job("0" * 64, os.geteuid() + 1, path), code=3)
    script = site.folder / "job"
    script.write_text(
        f"#!/bin/sh\necho $METASCHED_SOCKET $METASCHED_CONFIG\n{COMMAND} status --json\n"
    )
    job = site.submit("-o", "out", "--cluster", "left", script)
    site.until_ended(job)
    address, *listing = (site.folder / "out").read_text().splitlines()
    assert address == tls.url
    assert [row["job"] for row in json.loads("".join(listing))] == [job]


@pytest.mark.root
def test_users_of_other_hosts_keep_their_identity(common_folder: Path) -> None:
    site = MultiUserSite(common_folder / "tcp")
    there = Far(site.folder)
    try:
        site.set_up(
            LOCAL, f"[cluster.left]\n{SUPERVISE}", extra=f'others_jobs = "listed"\n{there.table}'
        )
        site.start()
        a, b = site.by(A), site.by(B)
        job = a.run(
            *("submit", "--parsable", "-o", "out", "--wrap", "id -un; sleep 600"),
            env=there.environment,
        ).stdout.strip()
        a.until(lambda: a.row(int(job))["state"] == "running")
        assert b.row(int(job))["user"] == A  # listed only
        for command in ("cancel", "story"):
            message = b.run(command, job, code=3, env=there.environment).stderr
            assert f"a job of {A}, and you are {B}" in message
        own = {"Authorization": f"MUNGE {there.credential('x', **accounts.as_(B))}"}
        assert there.ask(own)[0] == 401
        site.run("cancel", job, env=there.environment)  # root is an operator by MUNGE,
        secret = site.run("token", "create").stdout.strip()  # but not by a token
        status, answer = there.ask({"Authorization": f"Bearer {secret}"})
        assert (status, answer["user"], answer["operator"]) == (200, "root", False)
        a.until_ended(int(job))
        assert (site.folder / A / "out").read_text() == f"{A}\n"
    finally:
        site.close()
        there.close()
