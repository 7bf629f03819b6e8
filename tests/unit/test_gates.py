"""Scheduling gates: begin time, hold, and release of arrays in portions."""

from __future__ import annotations

from metasched.core.events import ClockSet, Dispatch, JobSubmitted, TimerExpired, UserRequested
from metasched.core.gates import MAX_RELEASED_PER_STEP, NEXT_STEP
from metasched.model.job import Reason, State
from tests.unit.core_site import NOW, Site, job


def test_a_large_array_is_let_go_in_portions_and_others_go_between_them() -> None:
    site = Site()
    sent = [site.step(JobSubmitted(NOW, job(1, array=f"1-{2 * MAX_RELEASED_PER_STEP + 200}")))]
    assert site.core.next_due == NEXT_STEP
    [other] = site.step(JobSubmitted(NOW, job(2)))
    assert isinstance(other, Dispatch)
    assert other.job == 2
    # a clock that is set back does not delay the next portion
    sent.append(site.step(ClockSet(NOW - 3600, step=-3600.0)))
    while site.core.next_due is not None:
        assert len(sent) < 10
        sent.append(site.step(TimerExpired(NOW - 3600)))
    portions = [
        [index for action in actions if isinstance(action, Dispatch) for index in action.indices]
        for actions in sent
    ]
    assert max(map(len, portions)) == MAX_RELEASED_PER_STEP
    assert [min(portion) for portion in portions if portion] == list(
        range(1, 2 * MAX_RELEASED_PER_STEP + 201, MAX_RELEASED_PER_STEP)
    )
    assert sorted(i for portion in portions for i in portion) == list(
        range(1, 2 * MAX_RELEASED_PER_STEP + 201)
    )


def test_tasks_whose_portion_has_yet_to_come_are_held_and_cancelled_like_all() -> None:
    site = Site()
    last = MAX_RELEASED_PER_STEP + 2
    site.step(JobSubmitted(NOW, job(1, array=f"1-{last}")))
    site.step(UserRequested(NOW, "cancel", 1, (last,)))
    assert (1, last) not in site.core.tasks
    site.step(UserRequested(NOW, "hold", 1, (last - 1,)))
    assert site.core.tasks[1, last - 1].state is State.HELD
    assert site.step(TimerExpired(NOW)) == []
    [again] = site.step(UserRequested(NOW, "release", 1, (last - 1,)))
    assert isinstance(again, Dispatch)
    assert again.indices == (last - 1,)


def test_begin_time_and_hold_wait_in_metasched() -> None:
    site = Site()
    assert site.step(JobSubmitted(NOW, job(1, begin=NOW + 60))) == []
    assert site.core.next_due == NOW + 60
    assert site.step(TimerExpired(NOW + 59)) == []
    assert site.step(TimerExpired(NOW + 60)) == [Dispatch(1, 1, "left", (0,))]
    assert site.step(JobSubmitted(NOW, job(2, held=True))) == []
    assert site.state(2) is State.HELD
    assert site.step(UserRequested(NOW, "release", 2)) == [Dispatch(2, 1, "right", (0,))]


def test_another_reason_to_wait_is_stored_though_nothing_else_has_changed() -> None:
    site = Site()
    site.step(JobSubmitted(NOW, job(1, array="1-2%1", begin=NOW + 60)))
    assert site.core.tasks[1, 2].reason == Reason.BEGIN_TIME
    site.step(TimerExpired(NOW + 60))
    assert site.core.tasks[1, 2].reason == Reason.LIMIT_ARRAY
    assert site.out.tasks[1, 2] is site.core.tasks[1, 2]
