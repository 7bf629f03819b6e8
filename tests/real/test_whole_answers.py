"""Whole answers: few rows in memory, and a client that does not read hinders nobody."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.responses import Response, StreamingResponse

from metasched.api import whole_answers
from metasched.api.identity import Caller
from metasched.api.jobs import _whole_listing
from metasched.api.pages import IdPage
from metasched.api.readers import Readers, ReadingKind
from metasched.api.throttle import Throttle
from metasched.api.whole_answers import MEMORY, PORTION, joined, live_answer, whole_answer
from metasched.core.events import UserRequested
from metasched.db.job_pages import TaskFilter
from metasched.db.queries import BEFORE_STORY, StoryPosition
from metasched.db.store import Database
from metasched.errors import ApiError
from metasched.paths import NEXT_CURSOR_HEADER
from tests.real.test_database_maintenance import NOW, Life

OPERATOR = Caller("root", operator=True)
ARRAY = 12_000  # tasks, more than a page has
JOBS = 2
LARGE_ARRAY = 100_000  # tasks
LIMIT = 80 << 20  # bytes in use at the peak; all rows would take five times as much


def request_of(user: str) -> Any:
    """Return a request as far as readers look at it."""
    caller, connection = SimpleNamespace(user=user), SimpleNamespace(is_closed=False)
    stack = AsyncExitStack()
    state = SimpleNamespace(caller=caller, connection=connection, until_answered=stack)
    return SimpleNamespace(state=state)


async def text_of(answer: Response) -> bytes:
    if not isinstance(answer, StreamingResponse):
        return bytes(answer.body)
    return b"".join([bytes(part) async for part in answer.body_iterator])  # type: ignore[arg-type]


@pytest.fixture
def life(database: Database) -> Iterator[Life]:
    new_life = Life(database)
    for id in range(1, JOBS + 1):
        new_life.submit(id, NOW, array=f"1-{ARRAY}", held=True, user="bob")
    yield new_life
    new_life.ledger.close()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_listing_of_many_rows_takes_little_memory(life: Life) -> None:
    for id in (JOBS + 1, JOBS + 2):
        life.submit(id, NOW, array=f"1-{LARGE_ARRAY}", held=True, user="ada")
    daemon: Any = SimpleNamespace(ledger=life.ledger, service=None)
    task_filter = TaskFilter(user="ada")

    async def read() -> tuple[int, int]:
        request = request_of("ada")
        async with request.state.until_answered:
            answer = await whole_answer(
                request,
                Readers(Throttle()),
                ReadingKind.LISTING,
                lambda: _whole_listing(daemon, OPERATOR, task_filter),
            )
            assert isinstance(answer, StreamingResponse)
            length = 0
            async for part in answer.body_iterator:
                assert len(part) <= PORTION
                length += len(part)
        return length, int(answer.headers["Content-Length"])

    tracemalloc.start()
    length, announced = asyncio.run(read())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert length == announced > 40 << 20
    assert peak < LIMIT


def test_tasks_that_change_meanwhile_are_listed_once(life: Life) -> None:
    daemon: Any = SimpleNamespace(ledger=life.ledger, service=None)
    parts = []
    for part in _whole_listing(daemon, OPERATOR, TaskFilter()):
        parts.append(part)
        if len(parts) == 1:  # the last page is still to be read
            life.take(UserRequested(NOW + 1, "cancel", 2, tuple(range(1, ARRAY, 2)), by="ada"))
            life.take(UserRequested(NOW + 2, "release", 1, by="ada"))
    rows = json.loads(b"".join(parts))
    expected = [(id, index) for id in range(1, JOBS + 1) for index in range(1, ARRAY + 1)]
    assert [(row["job"], row["task"]) for row in rows] == expected
    on_last_page = {row["task"] % 2: row["state"] for row in rows[-1000:]}
    assert on_last_page == {0: "held", 1: "cancelled"}


def test_the_story_of_a_whole_array_has_a_line_for_each_task(life: Life) -> None:
    life.take(UserRequested(NOW + 1, "cancel", 1, by="ada"))
    lines: dict[int, list[str]] = {}
    for portion in life.ledger.story_portions(1):
        assert len(portion) <= 1000
        for line in portion:
            lines.setdefault(line["task_index"], []).append(line["after"])
    assert len(lines) == ARRAY
    assert {tuple(states) for states in lines.values()} == {("held", "cancelled")}
    assert [line["after"] for line in life.ledger.story(1, 7_777)] == ["held", "cancelled"]


def test_pages_of_a_story_have_each_line_once(life: Life) -> None:
    """Lines of a run are listed singly: a page may end within a run."""
    life.take(UserRequested(NOW + 1, "cancel", 1, (7,), by="ada"))
    life.take(UserRequested(NOW + 2, "release", 1, by="ada"))
    life.take(UserRequested(NOW + 3, "cancel", 1, by="ada"))
    for index in (None, 7, 8_000):
        lines: list[dict[str, Any]] = []
        after: StoryPosition | None = BEFORE_STORY
        while after is not None:
            page, after = life.ledger.story_page(1, index, after, 777)
            assert len(page) <= 777
            lines += page
        assert lines == life.ledger.story(1, index)
        if index is not None:
            assert life.ledger.last_cause(1, index) == lines[-1]["cause"] != ""


def test_rows_of_the_scheduler_are_read_in_portions_and_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole_answers, "LIVE_SECONDS", 0.0)
    served: list[int] = []

    def rows() -> Iterator[dict[str, int]]:
        for number in range(100):
            served.append(other_steps)
            yield {"n": number}

    other_steps = 0

    async def others() -> None:
        nonlocal other_steps
        while True:
            other_steps += 1
            await asyncio.sleep(0)

    async def call(page: IdPage) -> tuple[list[int], str | None]:
        request = request_of("ada")
        other = asyncio.create_task(others())
        async with request.state.until_answered:
            answer = await live_answer(request, Readers(Throttle()), rows(), page)
            text = await text_of(answer)
        other.cancel()
        return [row["n"] for row in json.loads(text)], answer.headers.get(NEXT_CURSOR_HEADER)

    assert asyncio.run(call(IdPage(0, 10_000, False))) == (list(range(100)), None)
    assert served[-1] - served[0] > 50  # others had their turns in between
    assert asyncio.run(call(IdPage(0, 60, True))) == (list(range(60)), "60")
    assert asyncio.run(call(IdPage(60, 60, True))) == (list(range(60, 100)), None)
    assert asyncio.run(call(IdPage(60, 40, True))) == (list(range(60, 100)), None)


def test_a_client_that_does_not_read_delays_no_other() -> None:
    is_read: list[bool] = []

    def long_text() -> Iterator[bytes]:
        yield from (b"x" * PORTION for _ in range(2 * MEMORY // PORTION))
        is_read.append(True)

    async def calls() -> list[bytes]:
        readers, slow, others = Readers(Throttle()), request_of("slow"), []
        async with slow.state.until_answered:
            unread = await whole_answer(slow, readers, ReadingKind.LISTING, long_text)
            assert is_read == [True]  # the database is not used while the client reads
            for number in range(5):
                other = request_of(f"user {number}")
                async with other.state.until_answered:
                    answer = await whole_answer(
                        other, readers, ReadingKind.LISTING, lambda: [b"[]"]
                    )
                    others.append(await text_of(answer))
            assert await text_of(unread) == b"x" * 2 * MEMORY
        return others

    assert asyncio.run(calls()) == [b"[]"] * 5


def test_a_failure_comes_before_the_answer() -> None:
    def broken() -> Iterator[bytes]:
        yield b"["
        raise ApiError(404, "no job 7")

    async def call() -> None:
        request = request_of("ada")
        async with request.state.until_answered:
            await whole_answer(request, Readers(Throttle()), ReadingKind.LISTING, broken)

    with pytest.raises(ApiError, match="no job 7"):
        asyncio.run(call())


def test_lists_are_joined() -> None:
    for lists, text in (
        ([], b"<>"),
        ([b"[]"], b"<>"),
        ([b"[1]"], b"<1>"),
        ([b"[]", b"[1,2]", b"[]", b"[3]"], b"<1,2,3>"),
    ):
        assert b"".join(joined(b"<", lists, b">")) == text
