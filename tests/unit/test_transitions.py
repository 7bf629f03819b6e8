"""The transition table: complete for listed states, closed for final states."""

from __future__ import annotations

import pytest

from metasched.core.transitions import (
    ATTEMPT_FINAL,
    FINAL,
    LIVE,
    QUEUED_OR_HELD,
    TABLE,
    IllegalTransition,
    TaskEvent,
    event_for_listed_state,
    find_transition,
)
from metasched.model.job import State


def test_only_a_requeue_leads_out_of_an_ended_state_and_to_a_new_attempt() -> None:
    out = {(state, event): step for (state, event), step in TABLE.items() if state in FINAL}
    assert {event for _, event in out} == {TaskEvent.REQUEUE}
    assert {(step.task, step.attempt) for step in out.values()} == {(State.QUEUED, None)}


def test_ended_attempts_stay_ended() -> None:
    assert not [state for state, _ in TABLE if state in ATTEMPT_FINAL - FINAL]


def test_tasks_and_attempts_stay_in_their_own_states() -> None:
    for step in TABLE.values():
        assert step.task in QUEUED_OR_HELD | LIVE | FINAL
        assert step.attempt is None or step.attempt in LIVE | ATTEMPT_FINAL


def test_a_live_task_shares_the_state_of_its_attempt() -> None:
    for step in TABLE.values():
        if step.task in LIVE:
            assert step.attempt is step.task
        else:
            assert step.attempt not in LIVE


def test_only_unstarted_tasks_return_to_the_queue() -> None:
    """With REQUEUE tasks may have begun. With UNBEGUN a manager has but started their nodes."""
    returned = {
        state
        for (state, event), step in TABLE.items()
        if step.task is State.QUEUED and event not in (TaskEvent.REQUEUE, TaskEvent.UNBEGUN)
    }
    assert returned == {State.HELD, State.DISPATCHING, State.PENDING, State.UNKNOWN}


def test_every_state_is_reached_and_every_event_used() -> None:
    reached = {s for step in TABLE.values() for s in (step.task, step.attempt)} - {None}
    assert reached == set(State)
    assert {event for _, event in TABLE} == set(TaskEvent)


def test_an_illegal_transition_names_the_task() -> None:
    with pytest.raises(
        IllegalTransition, match="task 17_3: start is impossible in state completed"
    ):
        find_transition(State.COMPLETED, TaskEvent.START, "17_3")


@pytest.mark.parametrize(
    ("stored", "listed", "event"),
    [
        (State.PENDING, State.PENDING, None),
        (State.PENDING, State.RUNNING, TaskEvent.START),
        (State.PENDING, State.COMPLETED, TaskEvent.COMPLETE),  # polls skip states
        (State.RUNNING, State.PENDING, None),  # restarted by its manager: no transition
        (State.UNKNOWN, State.PENDING, TaskEvent.SEE),
        (State.DISPATCHING, State.RUNNING, TaskEvent.START),
        (State.RUNNING, State.NODE_FAIL, TaskEvent.LOSE_NODE),
    ],
)
def test_what_a_listed_state_means(stored: State, listed: State, event: TaskEvent | None) -> None:
    assert event_for_listed_state(stored, listed) is event


def test_every_listed_state_can_follow_every_live_one() -> None:
    for stored in LIVE:
        for listed in ATTEMPT_FINAL:
            assert event_for_listed_state(stored, listed) is not None
