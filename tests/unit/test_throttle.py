"""Throttling of accounts: the use of time, the delay that follows, and the order of the delayed."""

from __future__ import annotations

import asyncio
import math

import pytest

from metasched.api import throttle as module
from metasched.api.throttle import QUIET, SHARE, WINDOW, Throttle

LISTING = "listing"
LONGEST = WINDOW * math.log(1 / SHARE)  # seconds that a request may have to wait


class FakeTime:
    """A clock that advances only while a coroutine sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def fake() -> FakeTime:
    return FakeTime()


@pytest.fixture
def throttle(fake: FakeTime) -> Throttle:
    return Throttle(fake.clock, fake.sleep)


def test_an_account_alone_never_waits(fake: FakeTime, throttle: Throttle) -> None:
    throttle.note_call("b")
    fake.now += QUIET
    throttle.note_call("a")
    throttle.charge(("a", LISTING), 100)
    assert throttle.delay(("a", LISTING)) == 0
    throttle.note_call("b")
    assert throttle.delay(("a", LISTING)) > 0


def test_an_account_with_little_use_never_waits(throttle: Throttle) -> None:
    throttle.charge(("a", LISTING), SHARE * WINDOW)
    throttle.note_call("b")
    assert throttle.delay(("a", LISTING)) == 0
    assert throttle.delay(("unknown", LISTING)) == 0


def test_a_burst_is_allowed_and_more_waits_until_it_has_decayed(
    fake: FakeTime, throttle: Throttle
) -> None:
    throttle.charge(("a", LISTING), 2 * SHARE * WINDOW)
    throttle.note_call("b")
    delay = throttle.delay(("a", LISTING))
    assert delay == pytest.approx(WINDOW * math.log(2))
    fake.now += delay + 0.001
    throttle.note_call("b")
    assert throttle.delay(("a", LISTING)) == 0


def test_a_reading_of_another_kind_does_not_wait(throttle: Throttle) -> None:
    throttle.charge(("a", LISTING), WINDOW)
    throttle.note_call("b")
    assert throttle.delay(("a", LISTING)) > 0
    assert throttle.delay(("a", "named")) == 0


def test_all_requests_of_an_account_have_a_share_of_the_event_loop(throttle: Throttle) -> None:
    throttle.charge(("a", module.WHOLE_REQUEST), WINDOW)
    throttle.note_call("b")
    longest = WINDOW * math.log(1 / module.REQUEST_SHARE)
    assert throttle.delay(("a", module.WHOLE_REQUEST)) == pytest.approx(longest)
    assert throttle.delay(("b", module.WHOLE_REQUEST)) == 0


def test_a_long_listing_delays_the_next_for_seconds_at_most(throttle: Throttle) -> None:
    throttle.note_call("b")
    throttle.charge(("a", LISTING), 1000)
    assert throttle.delay(("a", LISTING)) == pytest.approx(LONGEST)


@pytest.mark.parametrize("cost", [0.001, 0.1])
def test_in_a_loop_an_account_gets_its_share(
    cost: float, fake: FakeTime, throttle: Throttle
) -> None:
    """Each listing takes twice its processor time by the clock."""
    used, begun = 0.0, fake.now

    async def loop() -> None:
        nonlocal used
        while fake.now < begun + 100:
            throttle.note_call("b")
            throttle.note_call("a")
            await throttle.wait(("a", LISTING))
            fake.now += 2 * cost
            throttle.charge(("a", LISTING), cost)
            used += cost

    asyncio.run(loop())
    share = SHARE * (fake.now - begun)
    assert 0.8 * share <= used <= share + WINDOW


def test_delayed_requests_of_an_account_keep_their_order_and_others_pass(
    throttle: Throttle,
) -> None:
    throttle.charge(("a", LISTING), WINDOW)
    throttle.charge(("b", LISTING), SHARE * WINDOW)
    throttle.note_call("a")
    throttle.note_call("b")
    order: list[str] = []

    async def request(user: str, name: str) -> None:
        await throttle.wait((user, LISTING))
        order.append(name)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for user, name in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")):
                group.create_task(request(user, name))

    asyncio.run(run())
    assert order == ["b1", "c1", "a1", "a2", "a3"]
    [row] = throttle.delay_rows(10)
    assert (row["user"], row["requests"]) == ("a", 3)
    assert row["seconds"] > 0


def test_a_request_that_is_cancelled_while_it_waits_leaves_the_others(throttle: Throttle) -> None:
    throttle.charge(("a", LISTING), WINDOW)
    throttle.note_call("b")

    async def run() -> None:
        first, second = (asyncio.create_task(throttle.wait(("a", LISTING))) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert first.cancelled()

    asyncio.run(run())


def test_a_waiting_request_goes_on_when_others_are_quiet(
    fake: FakeTime, throttle: Throttle
) -> None:
    throttle.note_call("b")
    throttle.note_call("a")
    throttle.charge(("a", LISTING), WINDOW)
    begun = fake.now
    asyncio.run(throttle.wait(("a", LISTING)))
    assert fake.now - begun == pytest.approx(QUIET)


def test_the_least_uses_are_forgotten(throttle: Throttle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_READERS", 10)
    throttle.charge(("heavy", LISTING), WINDOW)
    for number in range(1000):
        throttle.charge((f"u{number}", LISTING), 0.01)
        assert len(throttle._uses) <= 10
    throttle.note_call("b")
    assert throttle.delay(("heavy", LISTING)) > 0
