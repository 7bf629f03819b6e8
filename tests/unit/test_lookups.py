"""Look-ups of accounts: in threads of their own, shared by equal requests."""

from __future__ import annotations

import asyncio
import threading

from metasched.api.lookups import MAX_LOOKUPS, Lookups


def test_equal_lookups_share_a_thread_and_its_result() -> None:
    """A directory service that hangs is asked once for an account, however many requests wait."""
    calls: list[int] = []
    may_answer = threading.Event()

    def look_up() -> int:
        calls.append(1)
        may_answer.wait(60)
        return 17

    async def run() -> None:
        lookups = Lookups("account")
        waiting = [asyncio.create_task(lookups.run("ada", look_up)) for _ in range(100)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        # neither asyncio's threads nor the look-ups of other accounts wait
        assert await asyncio.to_thread(lambda: "free") == "free"
        assert await lookups.run("bob", lambda: 18) == 18
        may_answer.set()
        assert await asyncio.gather(*waiting[1:]) == [17] * 99
        assert await lookups.run("ada", lambda: 19) == 19  # the next is made anew

    asyncio.run(run())
    assert calls == [1]


def test_a_failed_lookup_fails_for_all_who_wait_and_is_repeated() -> None:
    def fail() -> int:
        raise KeyError("ada")

    async def run() -> None:
        lookups = Lookups("account")
        both = await asyncio.gather(
            *(lookups.run("ada", fail) for _ in range(2)), return_exceptions=True
        )
        assert [type(error) for error in both] == [KeyError, KeyError]
        assert await lookups.run("ada", lambda: 1) == 1

    asyncio.run(run())


def test_asyncios_threads_are_free_while_every_lookup_hangs() -> None:
    may_answer = threading.Event()

    async def run() -> None:
        lookups = Lookups("account")
        hanging = [
            asyncio.create_task(lookups.run(uid, lambda: may_answer.wait(60)))
            for uid in range(MAX_LOOKUPS + 32)
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(lambda: "pruned") == "pruned"
        assert not any(task.done() for task in hanging)
        may_answer.set()
        await asyncio.gather(*hanging)

    asyncio.run(run())
