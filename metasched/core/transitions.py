"""The one table of transitions: (state, event) -> new state of the task and of its attempt.

A task waits with us (`queued`, `held`) or has exactly one live attempt, whose state it then
shares. When an attempt ends the task ends with it, or comes back to `queued`. Nothing else
changes a state: daemon, simulator and tests all go through `advance`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from metasched.model.job import State

S = State


class TaskEvent(StrEnum):
    """What can happen to a task, with whose word we have for it."""

    __hash__ = str.__hash__  # as of State

    SEND = "send"  # we: the intent to hand it to a cluster is stored
    ACCEPT = "accept"  # manager: it is in the queue
    REFUSE = "refuse"  # manager: it is certainly not in the queue
    ABSENT = "absent"  # a listing proves that it never reached the manager
    SEE = "see"  # manager: it waits in the queue
    START = "start"  # manager: it runs
    SUSPEND = "suspend"
    COMPLETE = "complete"
    FAIL = "fail"
    EXPIRE = "expire"  # manager: ended at its time limit, or with the window of its reservation
    KILL = "kill"  # manager: ended because somebody cancelled it
    LOSE_NODE = "lose_node"
    PREEMPT = "preempt"
    EXHAUST = "exhaust"  # manager: ended for lack of memory
    WITHDRAW = "withdraw"  # manager: gone unstarted, as we wished (pull, recall, hold)
    RESTART = "restart"  # manager: it has begun the payload anew; a new attempt goes on
    ADOPT = "adopt"  # manager: an attempt that was given up is there after all
    SILENCE = "silence"  # the manager does not answer, or has lost sight of it
    HOLD = "hold"  # user
    RELEASE = "release"  # user
    CANCEL = "cancel"  # user, while it is with us
    REQUEUE = "requeue"  # user: what has ended runs again
    WRITE_OFF = "write_off"  # operator: it is lost and never began
    VOUCH = "vouch"  # operator: it ran
    REJECT = "reject"  # we: no cluster is left that could take it


E = TaskEvent

QUEUED_OR_HELD: Final = frozenset({S.QUEUED, S.HELD})
LIVE: Final = frozenset({S.DISPATCHING, S.PENDING, S.RUNNING, S.SUSPENDED, S.UNKNOWN})
UNSTARTED: Final = frozenset({S.DISPATCHING, S.PENDING})
STARTED: Final = frozenset({S.RUNNING, S.SUSPENDED})
FINAL: Final = frozenset({S.COMPLETED, S.FAILED, S.TIMEOUT, S.CANCELLED, S.REJECTED})
ATTEMPT_FINAL: Final = (FINAL - {S.REJECTED}) | {S.NODE_FAIL, S.PREEMPTED, S.OUT_OF_MEMORY}


class Transition(NamedTuple):
    """The state of the task after an event, and of its attempt (None: it has none)."""

    task: State
    attempt: State | None


def _both(state: State) -> Transition:
    return Transition(state, state)


# What a manager may report of a live attempt, whatever we last knew: polls skip states.
_LISTED = {
    E.SEE: _both(S.PENDING),
    E.START: _both(S.RUNNING),
    E.SUSPEND: _both(S.SUSPENDED),
    E.COMPLETE: _both(S.COMPLETED),
    E.FAIL: _both(S.FAILED),
    E.EXPIRE: _both(S.TIMEOUT),
    E.KILL: _both(S.CANCELLED),
    E.LOSE_NODE: Transition(S.FAILED, S.NODE_FAIL),
    E.PREEMPT: Transition(S.FAILED, S.PREEMPTED),
    E.EXHAUST: Transition(S.FAILED, S.OUT_OF_MEMORY),
    E.SILENCE: _both(S.UNKNOWN),
}
_GONE_UNSTARTED = Transition(S.QUEUED, S.CANCELLED)

TABLE: Final[dict[tuple[State, TaskEvent], Transition]] = {
    (S.QUEUED, E.SEND): _both(S.DISPATCHING),
    (S.QUEUED, E.HOLD): Transition(S.HELD, None),
    (S.QUEUED, E.CANCEL): Transition(S.CANCELLED, None),
    (S.QUEUED, E.REJECT): Transition(S.REJECTED, None),
    (S.HELD, E.RELEASE): Transition(S.QUEUED, None),
    (S.HELD, E.CANCEL): Transition(S.CANCELLED, None),
    (S.QUEUED, E.ADOPT): _both(S.UNKNOWN),
    (S.HELD, E.ADOPT): _both(S.UNKNOWN),
    (S.DISPATCHING, E.ACCEPT): _both(S.PENDING),
    (S.DISPATCHING, E.REFUSE): Transition(S.QUEUED, S.FAILED),
    (S.DISPATCHING, E.ABSENT): _GONE_UNSTARTED,
    (S.DISPATCHING, E.WITHDRAW): _GONE_UNSTARTED,
    (S.PENDING, E.ABSENT): _GONE_UNSTARTED,
    (S.PENDING, E.WITHDRAW): _GONE_UNSTARTED,
    (S.UNKNOWN, E.ABSENT): _GONE_UNSTARTED,
    (S.UNKNOWN, E.ACCEPT): _both(S.PENDING),
    (S.UNKNOWN, E.REFUSE): Transition(S.QUEUED, S.FAILED),
    (S.UNKNOWN, E.WITHDRAW): _GONE_UNSTARTED,
    (S.UNKNOWN, E.WRITE_OFF): _GONE_UNSTARTED,
    (S.UNKNOWN, E.VOUCH): _both(S.COMPLETED),
    **{(state, event): step for state in LIVE for event, step in _LISTED.items()},
    **{(state, E.REQUEUE): Transition(S.QUEUED, None) for state in FINAL},
    **{(state, E.RESTART): _both(S.PENDING) for state in LIVE},
}
# What has begun cannot be unbegun: a manager that says so restarts it, which is E.RESTART.
del TABLE[S.RUNNING, E.SEE], TABLE[S.SUSPENDED, E.SEE]
# Nothing new is no transition.
del TABLE[S.PENDING, E.SEE], TABLE[S.RUNNING, E.START], TABLE[S.SUSPENDED, E.SUSPEND]
del TABLE[S.UNKNOWN, E.SILENCE]


class IllegalTransition(Exception):
    """An event that cannot happen to a task in its state: a defect of ours, never of the user's."""

    def __init__(self, task: object, state: State, event: TaskEvent) -> None:
        super().__init__(f"task {task}: {event} is impossible in state {state}; see its story")
        self.state, self.event = state, event


def find_transition(state: State, event: TaskEvent, task: object = "?") -> Transition:
    """The step that `event` makes from `state`. IllegalTransition if the table has none."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalTransition(task, state, event) from None


_EVENT_OF_LISTED_STATE: Final = {
    S.PENDING: E.SEE,
    S.RUNNING: E.START,
    S.SUSPENDED: E.SUSPEND,
    S.COMPLETED: E.COMPLETE,
    S.FAILED: E.FAIL,
    S.TIMEOUT: E.EXPIRE,
    S.CANCELLED: E.KILL,
    S.NODE_FAIL: E.LOSE_NODE,
    S.PREEMPTED: E.PREEMPT,
    S.OUT_OF_MEMORY: E.EXHAUST,
    S.UNKNOWN: E.SILENCE,
}


def event_for_listed_state(current: State, listed: State) -> TaskEvent | None:
    """The event by which a manager's `listed` state reaches us in state `known`.

    None when it tells nothing new.
    """
    event = _EVENT_OF_LISTED_STATE[listed]
    return event if (current, event) in TABLE else None
