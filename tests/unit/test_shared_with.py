"""Accounts that share a reservation, while a directory service is slow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from metasched.daemon import shared_with
from metasched.daemon.reservation_requests import sharing_accounts
from metasched.errors import ApiError


class Directory:
    """A directory service that answers when the test says so."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked: list[str] = []
        self.threads: set[str] = set()

    def look_up(self, name: str) -> bool:
        self.asked.append(name)
        self.threads.add(threading.current_thread().name)
        if name.startswith("slow"):
            self.may_answer.wait(60)
        return True


@pytest.fixture
def directory() -> Iterator[Directory]:
    directory = Directory()
    with patch.object(shared_with, "_has_account", directory.look_up):
        yield directory
    directory.may_answer.set()


def test_one_user_has_one_thread_and_none_of_asyncio(directory: Directory) -> None:
    async def run() -> None:
        waiting = [
            asyncio.create_task(sharing_accounts("ada", [f"slow{i}"], (), is_known=False))
            for i in range(40)
        ]
        # neither asyncio's threads nor other users wait
        assert await sharing_accounts("bob", ["eve"], (), is_known=False) == ("eve",)
        assert await asyncio.to_thread(lambda: "free") == "free"
        while "slow0" not in directory.asked:
            await asyncio.sleep(0.001)
        assert sorted(directory.asked) == ["eve", "slow0"]
        directory.may_answer.set()
        assert await asyncio.gather(*waiting) == [(f"slow{i}",) for i in range(40)]

    asyncio.run(run())
    assert all(name.startswith("shared-with") for name in directory.threads)


def test_a_directory_that_does_not_answer_is_an_error_and_asked_no_more(
    directory: Directory,
) -> None:
    async def run() -> None:
        with patch.object(shared_with, "LOOK_UP_TIMEOUT", 0.3):
            for name in ("slow", "other"):
                with pytest.raises(ApiError, match="could not be looked up") as refused:
                    await sharing_accounts("ada", [name], (), is_known=False)
                assert refused.value.status == 503
        assert directory.asked == ["slow"]
        directory.may_answer.set()
        assert await sharing_accounts("ada", ["other"], (), is_known=False) == ("other",)

    asyncio.run(run())
