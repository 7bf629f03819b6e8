"""Webhooks: signatures, secrets, addresses, and receivers that misbehave."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from metasched.config.settings import WebhookSettings
from metasched.daemon import webhook
from metasched.daemon.notification_texts import webhook_body
from metasched.daemon.webhook import (
    DeliveryFailed,
    DeliveryThread,
    SecretUnusable,
    deliver,
    is_public,
    read_secret,
    signature,
)
from metasched.model.notice import ALERTS, JOB_ENDED, Notice, expand_kinds

KEY = bytes(range(32))


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """An example of the libraries of Standard Webhooks."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_body_has_times_as_the_api_has_them() -> None:
    notice = Notice(kind=JOB_ENDED, time=0.0, user="ada", job=3, started=1.5, counts={"failed": 2})
    assert json.loads(webhook_body("cafe-7", 2.0, [notice])) == {
        "type": "metasched.events",
        "id": "cafe-7",
        "timestamp": "1970-01-01T00:00:02.000+00:00",
        "data": [
            {
                "kind": "job_ended",
                "time": "1970-01-01T00:00:00.000+00:00",
                "user": "ada",
                "job": 3,
                "started": "1970-01-01T00:00:01.500+00:00",
                "counts": {"failed": 2},
            }
        ],
    }


def test_alerts_are_warnings_and_errors_of_the_site() -> None:
    kinds = expand_kinds([JOB_ENDED, ALERTS])
    assert {"job_ended", "cluster_unreachable", "defect", "credential_refused"} <= kinds
    assert kinds.isdisjoint({"cluster_drained", "notification_failed", "notification_uncertain"})
    # one user can make many of these
    assert kinds.isdisjoint({"reservation_broken", "reservation_skipped", "job_unknown"})


# Secrets


def secret_file(folder: Path, text: str = "", mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(text or f"whsec_{base64.b64encode(KEY).decode()}\n")
    path.chmod(mode)
    return path


def test_a_secret_is_read(tmp_path: Path) -> None:
    assert read_secret(secret_file(tmp_path)) == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SecretUnusable, match="is not the daemon's alone"):
        read_secret(secret_file(tmp_path, mode=mode))


@pytest.mark.parametrize("text", ["whsec_", "x" * 44, "whsec_AAAA", "whsec_%", "whsec_" + "A" * 99])
def test_texts_that_are_no_secrets(tmp_path: Path, text: str) -> None:
    with pytest.raises(SecretUnusable, match="holds no secret of 24 to 64 bytes"):
        read_secret(secret_file(tmp_path, text))


def test_a_secret_is_a_regular_file(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match="No such file"):
        read_secret(tmp_path / "none")
    with pytest.raises(SecretUnusable, match="is no regular file"):
        read_secret(tmp_path)


# Addresses


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("0.0.0.0", "100.64.0.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "fec0::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
        *("2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "::127.0.0.1"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("host", ["hooks..example.com", "h" * 64 + ".example.com"])
def test_a_host_that_is_no_name_fails(tmp_path: Path, host: str) -> None:
    hook = WebhookSettings(
        "ops", f"https://{host}/", secret_file(tmp_path), frozenset({JOB_ENDED}), False
    )
    with pytest.raises(DeliveryFailed, match="its host is no name"):
        asyncio.run(deliver(hook, "cafe-1", 1, b"{}"))


# Receivers

Behaviour = Callable[[socket.socket], None]


@contextmanager
def receiver(behaviour: Behaviour) -> Iterator[int]:
    """Listen; each connection gets `behaviour` in a thread. Yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def handle(connection: socket.socket) -> None:
            with connection, suppress(OSError):  # the client has left
                behaviour(connection)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def answering(head: bytes) -> Behaviour:
    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(head)

    return behave


def read_request(connection: socket.socket) -> tuple[dict[str, str], bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return headers | {"request": lines[0]}, body


def hook(folder: Path, port: int, **values: object) -> WebhookSettings:
    fields: dict[str, Any] = {
        "name": "ops",
        "url": f"http://127.0.0.1:{port}/in?x=1",
        "secret_file": secret_file(folder),
        "kinds": frozenset(),
        "allow_private": True,
    }
    return WebhookSettings(**{**fields, **values})


def send(target: WebhookSettings, body: bytes = b"{}") -> None:
    asyncio.run(deliver(target, "cafe-7", 1_700_000_000, body))


def failure(target: WebhookSettings, body: bytes = b"{}") -> str:
    with pytest.raises(DeliveryFailed) as error:
        send(target, body)
    return str(error.value)


def test_a_receiver_can_verify_the_request(tmp_path: Path) -> None:
    requests = []

    def behave(connection: socket.socket) -> None:
        requests.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    body = b'{"data": []}' * 10_000
    with receiver(behave) as port:
        send(hook(tmp_path, port), body)
    [(headers, received)] = requests
    assert received == body
    assert headers["request"] == "POST /in?x=1 HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{port}"
    signed = b"cafe-7.1700000000." + body
    mac = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    assert headers["webhook-id"] == "cafe-7"
    assert headers["webhook-timestamp"] == "1700000000"
    assert headers["webhook-signature"] == f"v1,{mac}".lower()  # the test lowers all headers


def test_an_interim_answer_is_not_the_answer(tmp_path: Path) -> None:
    both = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
    with receiver(answering(both)) as port:
        send(hook(tmp_path, port))


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 500 No\r\n\r\n", "it answered 500"),
        (b"HTTP/1.1 404 No\r\n\r\n", "it answered 404"),
        (b"HTTP/1.1 413 No\r\n\r\n", "it answered 413: 2 bytes are too many for it"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n",
            "it answered 302: redirects are not followed",
        ),
        (b"", "it closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "its answer is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10**6, "its answer is no HTTP"),
    ],
)
def test_other_answers_are_failures(tmp_path: Path, answer: bytes, error: str) -> None:
    with receiver(answering(answer)) as port:
        assert failure(hook(tmp_path, port)).startswith(error)


def test_a_huge_answer_is_not_read(tmp_path: Path) -> None:
    sent = []

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(10_000):
            connection.sendall(b"x" * 65536)
            sent.append(1)

    with receiver(behave) as port:
        send(hook(tmp_path, port))
    assert len(sent) < 1000


@pytest.mark.parametrize("steps", [b"", b"HTTP/1.1 "], ids=["silent", "dripping"])
def test_a_receiver_that_hangs_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: bytes
) -> None:
    monkeypatch.setattr(webhook, "DELIVERY_TIMEOUT", 1.0)

    def behave(connection: socket.socket) -> None:
        for byte in steps:
            connection.sendall(bytes([byte]))
            threading.Event().wait(0.1)
        threading.Event().wait(60)

    with receiver(behave) as port:
        assert failure(hook(tmp_path, port)) == "no answer in 1 s"
        assert failure(hook(tmp_path, port), b"x" * 10**8) == "no answer in 1 s"  # not read


def test_no_receiver(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "onnect" in failure(hook(tmp_path, port))


def test_a_receiver_without_tls(tmp_path: Path) -> None:
    plain = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with receiver(lambda connection: connection.sendall(plain)) as port:
        assert "SSL" in failure(hook(tmp_path, port, url=f"https://127.0.0.1:{port}/"))


def test_private_addresses_need_permission(tmp_path: Path) -> None:
    connections: list[socket.socket] = []
    with receiver(connections.append) as port:
        text = failure(hook(tmp_path, port, allow_private=False))
    assert text == "127.0.0.1 is at 127.0.0.1: private addresses need allow_private = true"
    assert connections == []


def test_the_address_that_was_checked_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that changes between check and connection (DNS rebinding) reaches nothing private."""
    look_ups: list[str] = []
    connections: list[socket.socket] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "hook.example.org":
            return real(host, port, *args, **options)
        look_ups.append(host)
        address = "127.0.0.1" if len(look_ups) > 1 else "192.0.2.1"  # TEST-NET: nothing answers
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(webhook, "is_public", lambda address: address == "192.0.2.1")
    monkeypatch.setattr(webhook, "CONNECT_TIMEOUT", 0.5)
    with receiver(connections.append) as port:
        url = f"http://hook.example.org:{port}/"
        failure(hook(tmp_path, port, url=url, allow_private=False))
        assert look_ups == ["hook.example.org"]
        text = failure(hook(tmp_path, port, url=url, allow_private=False))
    assert "hook.example.org is at 127.0.0.1" in text
    assert connections == []


def test_a_delivery_in_its_thread_can_be_cancelled(tmp_path: Path) -> None:
    arrived, left = threading.Event(), threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        arrived.set()
        try:
            connection.recv(1)
        finally:
            left.set()

    async def scenario(port: int) -> None:
        thread = DeliveryThread("ops")
        work = thread.run(deliver(hook(tmp_path, port), "cafe-7", 1, b"{}"))
        running = asyncio.create_task(work)
        await asyncio.to_thread(arrived.wait, 30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        thread.stop()

    with receiver(behave) as port:
        asyncio.run(scenario(port))
        assert left.wait(30)
