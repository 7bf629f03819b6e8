"""Which of several daemons a command takes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, cast

import pytest

from metasched.client.client import Client
from metasched.client.connection import (
    Connection,
    DaemonReplaced,
    DaemonUnreachable,
    ResponseLost,
)
from metasched.client.remote import RemoteDaemon, active_daemon
from tests.harness.looks import looks
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


class Asked:
    """A daemon whose answer is a function of the test."""

    def __init__(self, answer: Callable[[], bool]) -> None:
        self.answer, self.times = answer, 0

    def is_ready(self, timeout: float) -> bool:
        self.times += 1
        return self.answer()


def take(*choice: Asked, known: Asked | None = None) -> Asked:
    taken = active_daemon(cast(Any, choice), 0.3, 20, cast(Any, known))
    return cast(Asked, taken)


def test_a_host_that_is_gone_delays_nothing() -> None:
    """It says nothing until the other one has been asked, which no order of questions allows."""
    asked = threading.Event()

    def wait() -> bool:
        assert asked.wait(30)
        return False

    def answer() -> bool:
        asked.set()
        return True

    gone, ready = Asked(wait), Asked(answer)
    assert take(gone, ready) is ready
    asked.clear()
    assert take(ready, gone) is ready


def test_the_daemon_that_was_ready_before_is_asked_first() -> None:
    ready, other = Asked(lambda: True), Asked(lambda: False)
    assert take(other, ready, known=ready) is ready
    assert (ready.times, other.times) == (1, 0)
    assert take(other, ready, known=other) is ready


def test_without_threads_the_daemons_are_asked_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")  # as at a limit of processes

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ready, other = Asked(lambda: True), Asked(lambda: False)
    assert take(other, ready) is ready


def test_a_connection_remembers_which_daemon_was_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def is_ready(daemon: RemoteDaemon, timeout: float) -> bool:
        asked.append(daemon._address[1])
        return daemon._address[1] == port

    monkeypatch.setattr(RemoteDaemon, "is_ready", is_ready)
    monkeypatch.setattr("metasched.client.credentials.personal_token", lambda: "/dev/null")
    monkeypatch.setattr("metasched.client.credentials._read_token", lambda _: "token")
    with answering(b"200") as port:
        connection = Connection(f"http://127.0.0.1:{free_port()},http://127.0.0.1:{port}")
        for _ in range(3):
            with pytest.raises(ResponseLost):  # the listener is no daemon
                connection.request("GET", "/health")
    assert asked[-2:] == [port, port]
    assert asked.count(port) == 3


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


class Listener:
    """A daemon of which a test says whether it is ready, and whether it answers requests."""

    def __init__(self) -> None:
        self.ready, self.answers = False, threading.Event()
        self.asked: list[str] = []  # request lines, but for /ready
        self.ready_checks = 0  # since the first other request
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the test ended, which closes the connection
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        line = connection.recv(1 << 16).partition(b"\r\n")[0].decode()
        if "/ready" in line:
            self.ready_checks += bool(self.asked)
            answers, content = self.ready, b"{}"
        else:
            self.asked.append(line)
            answers = self.answers.wait(60)
            content = b'{"jobs": [{"job": 7}], "instance": "a"}'
        if answers:
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content)
            connection.sendall(head + content)
            connection.close()

    def close(self) -> None:
        self._socket.close()
        for connection in self.open:
            connection.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Listener, Listener]]:
    """An active daemon that does not answer, and its standby; no credential is looked for."""
    monkeypatch.setattr("metasched.client.connection.TAKEOVER_CHECK_INTERVAL", 0.1)
    monkeypatch.setattr("metasched.client.connection._TAKEOVER_LOOK", 0.05)
    monkeypatch.setattr("metasched.client.connection.READY_TIMEOUT", 0.5)
    monkeypatch.setattr("metasched.client.connection.SAME_DAEMON_TIMEOUT", 0.2)
    monkeypatch.setattr("metasched.client.remote.credentials", lambda *_: ["Bearer x"])
    with closing(Listener()) as active, closing(Listener()) as standby:
        active.ready = True
        yield active, standby


def take_over_when_asked(active: Listener, standby: Listener) -> threading.Thread:
    def hang() -> None:
        while not active.asked:
            time.sleep(0.01)
        active.ready, standby.ready = False, True
        standby.answers.set()

    thread = threading.Thread(target=hang)
    thread.start()
    return thread


def test_a_request_under_way_is_sent_to_the_daemon_that_took_over(
    pair: tuple[Listener, Listener],
) -> None:
    active, standby = pair
    client = Client(f"{active.url},{standby.url}")
    thread = take_over_when_asked(active, standby)
    assert client.health()["instance"]
    thread.join()
    assert (active.asked, standby.asked) == (["GET /health HTTP/1.0"],) * 2


def test_a_submission_under_way_is_repeated_by_its_key(pair: tuple[Listener, Listener]) -> None:
    active, standby = pair
    client = Client(f"{active.url},{standby.url}")
    thread = take_over_when_asked(active, standby)
    assert [row["job"] for row in client.submit({"jobs": []})] == [7]
    thread.join()
    assert active.asked == ["POST /jobs HTTP/1.0"]
    assert standby.asked == ["GET /health HTTP/1.0", "POST /jobs HTTP/1.0"]


def test_another_change_under_way_is_not_repeated(pair: tuple[Listener, Listener]) -> None:
    active, standby = pair
    client = Client(f"{active.url},{standby.url}")
    thread = take_over_when_asked(active, standby)
    with pytest.raises(DaemonReplaced, match=r"took over before the answer.*check with"):
        client.change("requeue", ["7"])
    thread.join()
    assert standby.asked == []


def test_two_urls_of_a_slow_daemon(
    pair: tuple[Listener, Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ready by both, so its answer is awaited, whichever of them was taken."""
    monkeypatch.setattr("metasched.client.connection.SAME_DAEMON_TIMEOUT", 30.0)
    first, second = pair
    second.ready = True

    def answer_when_checked_twice() -> None:
        for _ in looks(30):
            for listener in pair:
                if listener.ready_checks >= 2:
                    listener.answers.set()
                    return

    thread = threading.Thread(target=answer_when_checked_twice)
    thread.start()
    assert Client(f"{first.url},{second.url}").health()["instance"]
    thread.join()
    assert [*first.asked, *second.asked] == ["GET /health HTTP/1.0"]
