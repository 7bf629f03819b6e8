"""The transition table: (state, event) -> new state of the task and of its attempt.

A task is either in metasched (`queued`, `held`) or has exactly one live attempt, and shares its
state. When the attempt ends, the task ends too or returns to `queued`. All state changes of daemon,
simulator and tests go through `find_transition`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from metasched.model.job import State

S = State


class TaskEvent(StrEnum):
    """Events of a task, with their source."""

    SEND = "send"  # metasched: the intent to dispatch it is stored
    ACCEPT = "accept"  # manager: accepted the dispatch
    REFUSE = "refuse"  # manager: rejected the dispatch
    ABSENT = "absent"  # metasched: proved that it never reached the manager
    SEE = "see"  # manager: pending
    START = "start"  # manager: running
    SUSPEND = "suspend"
    COMPLETE = "complete"
    FAIL = "fail"
    EXPIRE = "expire"  # manager: ended at its time limit, or with its reservation
    KILL = "kill"  # manager: cancelled
    LOSE_NODE = "lose_node"
    UNBEGUN = "unbegun"  # manager: its node could not begin it; another node may
    PREEMPT = "preempt"
    EXHAUST = "exhaust"  # manager: out of memory
    WITHDRAW = "withdraw"  # manager: cancelled before the start by metasched (pull, recall, hold)
    RESTART = "restart"  # manager: restarted the payload; a new attempt continues
    ADOPT = "adopt"  # manager: lists an earlier attempt again, which continues
    SILENCE = "silence"  # the manager does not answer or does not list it
    HOLD = "hold"  # user
    RELEASE = "release"  # user
    CANCEL = "cancel"  # user, while the task is in metasched
    REQUEUE = "requeue"  # user: run an ended task again
    WRITE_OFF = "write_off"  # operator: lost, never started
    VOUCH = "vouch"  # operator: ran to its end
    REJECT = "reject"  # metasched: no eligible cluster remains


E = TaskEvent

QUEUED_OR_HELD: Final = frozenset({S.QUEUED, S.HELD})
LIVE: Final = frozenset({S.DISPATCHING, S.PENDING, S.RUNNING, S.SUSPENDED, S.UNKNOWN})
UNANSWERED: Final = frozenset({S.DISPATCHING, S.UNKNOWN})  # of a dispatch
UNSTARTED: Final = frozenset({S.DISPATCHING, S.PENDING})
STARTED: Final = frozenset({S.RUNNING, S.SUSPENDED})
FINAL: Final = frozenset({S.COMPLETED, S.FAILED, S.TIMEOUT, S.CANCELLED, S.REJECTED})
ATTEMPT_FINAL: Final = (FINAL - {S.REJECTED}) | {S.NODE_FAIL, S.PREEMPTED, S.OUT_OF_MEMORY}


class Transition(NamedTuple):
    """The states of the task and of its attempt (None: no attempt) after an event."""

    task: State
    attempt: State | None


def _both(state: State) -> Transition:
    return Transition(state, state)


# Reports of a manager about a live attempt in any state: listings skip states.
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
    **{(state, E.UNBEGUN): Transition(S.QUEUED, S.NODE_FAIL) for state in LIVE},
    **{(state, E.REQUEUE): Transition(S.QUEUED, None) for state in FINAL},
    **{(state, E.RESTART): _both(S.PENDING) for state in LIVE},
}
# A started attempt that is pending again was restarted, which is E.RESTART.
del TABLE[S.RUNNING, E.SEE], TABLE[S.SUSPENDED, E.SEE]
# Reports of the current state are no transitions.
del TABLE[S.PENDING, E.SEE], TABLE[S.RUNNING, E.START], TABLE[S.SUSPENDED, E.SUSPEND]
del TABLE[S.UNKNOWN, E.SILENCE]


class IllegalTransition(Exception):
    """An event is impossible in the state of its task: a defect of metasched."""

    def __init__(self, task: object, state: State, event: TaskEvent) -> None:
        super().__init__(f"task {task}: {event} is impossible in state {state}; see its story")
        self.state, self.event = state, event


def find_transition(state: State, event: TaskEvent, task: object = "?") -> Transition:
    """Return the transition from `state` by `event`. Raises IllegalTransition if there is none."""
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
    """Return the event of a task in state `current` whose manager lists it as `listed`.

    None: the listing changes nothing.
    """
    event = _EVENT_OF_LISTED_STATE[listed]
    return event if (current, event) in TABLE else None
