"""Connection limits of a listener, repeated log lines, and clients of a busy daemon."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metasched.api.admission import SMALL_BODY, BodyMemory
from metasched.api.connections import MIN_LIMIT, Connection, OpenConnections, Refusal, Wait
from metasched.api.selection import parse_job_ids
from metasched.client.client import Client
from metasched.client.connection import PermissionDenied
from metasched.daemon import descriptors
from metasched.daemon.repeated_lines import BURST, CLIENT_BURST, INTERVAL, MAX_KEYS, RepeatHandler
from metasched.errors import ApiError
from metasched.model.request_bounds import MAX_SELECTORS

ACCEPTED, _OTHER_END = socket.socketpair()


class Peer(Connection):
    """A connection that records whether it was closed."""

    def __init__(self, peer: str, is_receiving: bool = True) -> None:
        super().__init__(ACCEPTED)
        self.peer, self.is_receiving, self.is_closed = peer, is_receiving, False

    def abort(self) -> None:
        self.is_closed = True


def opened(limit: int, *peers: Peer) -> OpenConnections:
    connections = OpenConnections("socket", limit)
    for peer in peers:
        assert connections.admit(peer)
    return connections


def test_a_peer_at_its_limit_loses_its_oldest_request() -> None:
    a, b = [Peer("a") for _ in range(5)], Peer("b")
    connections = opened(16, b, *a)
    assert [peer.is_closed for peer in a] == [True, False, False, False, False]
    assert not b.is_closed
    assert len(connections) == 5


def test_a_request_that_is_served_is_not_closed() -> None:
    served, half = Peer("a", is_receiving=False), Peer("a")
    connections = opened(16, served, half, Peer("a"), Peer("a"))
    assert connections.admit(Peer("a"))
    assert (served.is_closed, half.is_closed) == (False, True)


def test_a_peer_whose_requests_are_all_served_is_refused() -> None:
    connections = opened(16, *(Peer("a", is_receiving=False) for _ in range(4)))
    assert not connections.admit(Peer("a"))
    assert connections.admit(Peer("b"))


def test_a_full_listener_takes_from_the_peer_with_most_connections() -> None:
    served = [Peer("served", is_receiving=False) for _ in range(2)]
    two, singles = [Peer("two") for _ in range(2)], [Peer(f"single {i}") for i in range(4)]
    connections = opened(8, *served, *singles, *two)
    assert connections.admit(Peer("new"))
    assert two[0].is_closed
    assert not any(peer.is_closed for peer in (*served, two[1], *singles))
    assert len(connections) == 8


def test_a_full_listener_that_serves_all_requests_refuses() -> None:
    connections = opened(4, *(Peer(str(i), is_receiving=False) for i in range(4)))
    assert not connections.admit(Peer("new"))


def test_an_authenticated_connection_counts_for_its_user() -> None:
    first, second = Peer("10.0.0.1"), Peer("10.0.0.1")
    connections = opened(4, first)
    assert connections.assign(first, "alice")
    assert connections.admit(second)
    assert not first.is_closed
    first.is_receiving = False
    assert not connections.assign(second, "alice")
    connections.remove(first)
    connections.remove(first)
    assert connections.assign(second, "alice")
    assert len(connections) == 1


def test_a_peer_is_named_by_account_or_network() -> None:
    assert Connection(ACCEPTED).peer.startswith("uid ")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        connection = Connection(accepted)
    assert (connection.uid, connection.peer) == (None, "127.0.0.1")


@pytest.fixture
def limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(
    ("inherited", "requested", "expected", "soft"),
    [
        ((1024, 4096), 1024, 1024, 2312),  # 256 + 8 + 2 x 1024
        ((1024, 1024), 1024, 380, 1024),  # (1024 - 264) / 2
        ((256, 256), 1024, descriptors.MIN_CONNECTIONS, 256),
        ((3000, 4096), 1024, 1024, 3000),
    ],
)
def test_connections_leave_descriptors_to_the_daemon(
    monkeypatch: pytest.MonkeyPatch,
    inherited: tuple[int, int],
    requested: int,
    expected: int,
    soft: int,
) -> None:
    changes = [inherited]
    monkeypatch.setattr(descriptors, "_INHERITED_LIMITS", inherited)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changes.append(limits))
    assert descriptors.connection_limit(requested, listeners=2, workers=1) == expected
    assert changes[-1] == (soft, inherited[1])


class Log:
    """A log handler whose records have the times that the test sets."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.handler = RepeatHandler()
        self.handler.setStream(self.stream)

    def write(self, message: str, now: float, logger: str = "metasched", key: str = "") -> None:
        record = logging.LogRecord(logger, logging.WARNING, "", 0, message, None, None)
        record.created = now
        if key:
            record.repeat_key = key
        self.handler.handle(record)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


def test_a_repeated_line_is_counted() -> None:
    log = Log()
    for i in range(1000):
        log.write("same", i * 0.01)
    log.write("other", 20.0)
    assert log.lines == ["same"] * BURST + ["other"]
    log.write("other", INTERVAL)
    repeated = f"repeated {1000 - BURST} times in 60 s: same"
    assert log.lines[BURST + 1 :] == [repeated, "other"]
    log.write("same", INTERVAL)
    assert log.lines[-1] == "same"


def test_lines_of_a_library_are_equal_but_for_numbers() -> None:
    log = Log()
    for i in range(1000):
        log.write(f"transport {i} at 0x{i:x}\nTraceback", 0.0, "asyncio")
    assert len(log.lines) < 100
    before = len(log.lines)
    for i in range(100):
        log.write(f"job {i}", 0.0)
    assert len(log.lines) == before + 100


def test_lines_about_clients_are_limited_for_each_and_for_all() -> None:
    log = Log()
    for i in range(100):
        log.write(f"refused a: {i}", 0.0, key="refused a")
    log.write("refused b: 1", 0.0, key="refused b")
    assert log.lines == [*(f"refused a: {i}" for i in range(BURST)), "refused b: 1"]
    for i in range(10_000):
        log.write(f"refused {i}", 0.0, key=f"refused {i}")
    assert len(log.lines) <= CLIENT_BURST
    log.write("own", 0.0)
    assert log.lines[-1] == "own"


def test_the_count_of_the_last_lines_is_written_at_the_end() -> None:
    log = Log()
    for _ in range(BURST + 2):
        log.write("same", 0.0)
    log.handler.close()
    assert log.lines[-1] == "repeated 2 times in 60 s: same"


def test_few_lines_are_remembered() -> None:
    log = Log()
    for _ in range(BURST + 1):
        log.write("same", 0.0)
    for i in range(2 * MAX_KEYS):
        log.write(f"line {i}", 0.0)
    assert "repeated 1 times in 60 s: same" in log.lines
    assert len(log.handler._lines) == MAX_KEYS


ANSWER = b'HTTP/1.0 401 Unauthorized\r\nContent-Length: 21\r\n\r\n{"error":"no; do so"}'


def answer_all(listener: socket.socket, after: float) -> None:
    """Answer each connection without reading more than the first bytes of its request."""
    time.sleep(after)
    with contextlib.suppress(OSError):
        while True:
            accepted, _ = listener.accept()
            with accepted, contextlib.suppress(OSError):
                accepted.recv(10)
                accepted.sendall(ANSWER)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "ms.sock"))
        bound.listen(1)
        yield bound
        bound.shutdown(socket.SHUT_RDWR)


def test_a_client_reads_a_refusal_that_comes_before_its_body_was_sent(
    listener: socket.socket,
) -> None:
    threading.Thread(target=answer_all, args=(listener, 0.0), daemon=True).start()
    with pytest.raises(PermissionDenied, match="no; do so"):
        Client(listener.getsockname()).submit({"scripts": {"a": "x" * (7 << 20)}})


def test_a_client_waits_for_a_daemon_with_many_callers(listener: socket.socket) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(BlockingIOError):  # the listener's queue is full
            while True:
                other = stack.enter_context(socket.socket(socket.AF_UNIX))
                other.setblocking(False)
                other.connect(listener.getsockname())
        client = Client(listener.getsockname())
        threading.Thread(target=answer_all, args=(listener, 0.3), daemon=True).start()
        threading.Timer(0.4, stack.pop_all().close).start()
        with pytest.raises(PermissionDenied, match="no; do so"):
            client.health()


def test_a_wait_ends_for_that_of_a_user_with_fewer() -> None:
    connections = OpenConnections("socket", 32)  # 16 waits, of a user 6
    with contextlib.ExitStack() as stack:
        waits = {
            user: [stack.enter_context(connections.waiting(user)) for _ in range(6)]
            for user in ("a", "b")
        }
        with pytest.raises(ApiError, match="too many requests wait"):
            stack.enter_context(connections.waiting("a"))
        others = [stack.enter_context(connections.waiting("c")) for _ in range(4)]
        new = stack.enter_context(connections.waiting("d"))
        assert [wait.is_over for wait in waits["a"]] == [True] + 5 * [False]
        assert not any(wait.is_over for wait in [*waits["b"], *others, new])
        assert connections.refusals[Refusal.WAITING] == 1
    assert connections.waiting_requests == 0


def test_a_wait_between_two_pauses_ends_too() -> None:
    """A pause that is over cannot be cut short: the request ends at its next look."""

    async def pause_in_vain(wait: Wait) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0) as wait.timeout:
                await asyncio.sleep(60)

    wait = Wait()
    asyncio.run(pause_in_vain(wait))
    wait.end()
    assert wait.is_over


def test_equal_shares_of_waits_are_left_alone() -> None:
    connections = OpenConnections("socket", 8)  # 4 waits, of a user 1
    with contextlib.ExitStack() as stack:
        waits = [stack.enter_context(connections.waiting(user)) for user in "abcd"]
        with pytest.raises(ApiError, match="too many requests wait"):
            stack.enter_context(connections.waiting("e"))
        assert not any(wait.is_over for wait in waits)


def test_a_listener_without_descriptors_gives_connections_back() -> None:
    served, half = Peer("served", is_receiving=False), [Peer(str(i // 4)) for i in range(15)]
    connections = opened(64, served, *half)
    connections.shrink()
    assert (connections.limit, len(connections)) == (12, 12)
    assert not served.is_closed
    assert sum(peer.is_closed for peer in half) == connections.refusals[Refusal.REPLACED] == 4
    for _ in range(9):
        connections.shrink()
    assert connections.limit == MIN_LIMIT


def test_the_bodies_of_all_users_share_a_memory() -> None:
    memory = BodyMemory(limit=8 << 20, largest=2 << 20)
    with contextlib.ExitStack() as stack:
        for user in "abcd":
            stack.enter_context(memory.taken(user, 2 << 20))
        for user in ("a", "e"):
            with pytest.raises(ApiError, match="too many large requests"):
                stack.enter_context(memory.taken(user, SMALL_BODY + 1))
        stack.enter_context(memory.taken("e", SMALL_BODY))  # small bodies always have room
    with memory.taken("e", 2 << 20), pytest.raises(ApiError), memory.taken("e", 1 << 20):
        pytest.fail("a user has more than his share")


def test_a_request_names_a_bounded_number_of_tasks() -> None:
    assert len(parse_job_ids(["1_[1-99999]", "2"])) == MAX_SELECTORS
    with pytest.raises(ApiError, match="more than 100000 jobs and tasks") as caught:
        parse_job_ids(["1_[1-1000000]"] * 1000)
    assert caught.value.status == 422
