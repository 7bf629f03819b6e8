"""Which of several daemons a command takes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metasched.client.client import Client
from metasched.client.connection import DaemonUnreachable
from metasched.client.remote import RemoteDaemon, active_daemon
from tests.harness.ports import free_port


@contextmanager
def answering(status: bytes | None) -> Iterator[int]:
    """Yield the port of a listener that answers /ready, or accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        ended = threading.Event()
        accepted: list[socket.socket] = []

        def serve() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                accepted.append(connection)  # stays open
                if status is not None:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 %s x\r\n\r\n" % status)
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            thread.join()


def daemons(*ports: int) -> list[RemoteDaemon]:
    return [RemoteDaemon(f"http://127.0.0.1:{port}", None) for port in ports]


@pytest.mark.parametrize("other", [b"503", None, b"401", b"not HTTP"])
def test_the_daemon_that_is_ready_is_taken(other: bytes | None) -> None:
    with answering(other) as waiting, answering(b"200") as ready:
        choice = daemons(free_port(), waiting, ready)
        assert active_daemon(choice, timeout=0.3, patience=20) is choice[2]
        assert active_daemon(choice[::-1], timeout=0.3, patience=20) is choice[2]


def test_a_single_daemon_is_not_asked() -> None:
    [only] = daemons(free_port())
    assert active_daemon([only], timeout=0.3, patience=20) is only


def test_the_standby_has_some_time_to_take_over() -> None:
    with answering(b"503") as first:
        port = free_port()
        choice = daemons(first, port)
        assert active_daemon(choice, timeout=0.3, patience=0) is choice[0]
        begun = threading.Event()

        def take_over() -> None:
            begun.wait()
            with socket.create_server(("127.0.0.1", port)) as listener:
                connection, _ = listener.accept()
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                connection.close()

        thread = threading.Thread(target=take_over)
        thread.start()
        begun.set()
        assert active_daemon(choice, timeout=0.3, patience=60) is choice[1]
        thread.join()


def test_if_none_answers_the_message_names_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metasched.client.connection.FAILOVER_TIME", 0.0)
    monkeypatch.setattr("metasched.client.credentials.personal_token", lambda: "/dev/null")
    monkeypatch.setattr("metasched.client.credentials._read_token", lambda _: "token")
    address = f"http://127.0.0.1:{free_port()},http://127.0.0.1:{free_port()}"
    with pytest.raises(DaemonUnreachable) as error:
        Client(address).health()
    assert address in str(error.value)
