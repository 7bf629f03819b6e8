"""Replay: the stored events through a fresh core, and where its decisions are not those stored.

A replay begins at a checkpoint of a release with the same `DECISION_VERSION`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, select

from metasched.core.array_remainder import range_of
from metasched.core.events import CoreEvent, Dispatch, JobSubmitted, Outcome
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import DECISION_VERSION, Core
from metasched.core.tasks import TaskId
from metasched.core.transitions import FINAL
from metasched.db import calendar, share_uses, task_runs, tuning
from metasched.db.recovery import recorded_events
from metasched.db.schema import attempt, checkpoint, event, job, task
from metasched.model.job import State

PROGRESS_STEP = 1000  # events


@dataclass(frozen=True)
class Replay:
    """The replayed events, and where the result differs from the tables."""

    since: int  # id of the first event
    events: int
    older_events: int  # that are stored, but were not replayed
    tasks: int  # stored, whose states were compared
    decisions: int  # priorities and dispatches that were compared
    problems: list[str]


def replay(
    connection: Connection,
    begin: float = -math.inf,
    progress: Callable[[int], None] | None = None,
) -> Replay | None:
    """Replay the events; None: no release with the same `DECISION_VERSION` has recorded any.

    It begins at the last checkpoint before `begin` (epoch seconds), else at the first checkpoint.
    """
    first = _checkpoint(connection, begin)
    if first is None:
        return None
    core, since = Core(), int(first.event)
    count, ended = 0, dict[TaskId, str]()
    decisions = _Decisions()
    tuning_changes: list[tuning.RecordedChange] = []
    core.restore(RecoveredState.unpack(first.data))
    for recorded in recorded_events(connection, since):
        count += 1
        if progress is not None and count % PROGRESS_STEP == 0:
            progress(PROGRESS_STEP)
        outcome = core.step(recorded)
        decisions.note(recorded, outcome)
        tuning_changes += tuning.changes_of(recorded, outcome)
        for key, replayed_task in outcome.tasks.items():
            if replayed_task.state in FINAL:
                ended[key] = _summary(replayed_task.state, replayed_task.attempts)
            else:
                ended.pop(key, None)
        for job_id, run in outcome.cancelled_runs:
            cancelled = _summary(State.CANCELLED, 0)
            ended |= {(job_id, index): cancelled for index in range_of(run)}
    stored = {
        (row.job, row.task_index): _summary(row.state, row.attempts)
        for row in connection.execute(select(task))
    }
    stored |= {key: _summary(state, 0) for key, state in task_runs.all_states(connection)}
    problems = [*_state_problems(stored, ended | _open_tasks(core), ended, since)]
    problems += decisions.problems(connection)
    problems += share_uses.find_mismatches(connection, core.fair_share.uses.values())
    problems += calendar.find_mismatches(connection, core.calendar.entries)
    problems += tuning.find_mismatches(
        connection, since, core.state.tuning.values(), tuning_changes
    )
    older = connection.execute(select(func.count()).where(event.c.id < since)).scalar()
    return Replay(since, count, older or 0, len(stored), len(decisions), problems)


def _checkpoint(connection: Connection, begin: float) -> Row[Any] | None:
    """Return the last checkpoint before a time after which all was decided by this version."""
    other_version = checkpoint.c.decision_version != DECISION_VERSION
    last_other = select(func.coalesce(func.max(checkpoint.c.event), 0)).where(other_version)
    usable = select(checkpoint).where(checkpoint.c.event > last_other.scalar_subquery())
    before = usable.where(checkpoint.c.time <= begin).order_by(checkpoint.c.event.desc())
    latest = None if begin == -math.inf else connection.execute(before.limit(1)).first()
    return latest or connection.execute(usable.order_by(checkpoint.c.event).limit(1)).first()


def _open_tasks(core: Core) -> dict[TaskId, str]:
    summaries = {
        key: _summary(open_task.state, open_task.attempts) for key, open_task in core.tasks.items()
    }
    for remainder in core.remainders.values():
        for run in remainder.runs:
            for index in range_of(run):
                summaries[remainder.job.id, index] = _summary(remainder.state, 0)
    return summaries


def _state_problems(
    stored: dict[TaskId, str], replayed: dict[TaskId, str], ended: dict[TaskId, str], since: int
) -> Iterator[str]:
    for key in stored:
        if replayed.get(key, stored[key] if since > 1 else None) != stored[key]:
            yield f"task {key[0]}_{key[1]} is stored {stored[key]}, replayed {replayed.get(key)}"
    for key in replayed.keys() - ended.keys() - stored.keys():
        yield f"task {key[0]}_{key[1]} is not stored, replayed {replayed[key]}"


def _summary(state: str, attempts: int) -> str:
    return f"{state} after {attempts} attempts"


class _Decisions:
    """Priorities and clusters that a replay gives."""

    def __init__(self) -> None:
        self._priorities: dict[int, int] = {}  # by job
        self._clusters: dict[tuple[int, int, int], str] = {}  # by job, dispatch and task

    def __len__(self) -> int:
        return len(self._priorities) + len(self._clusters)

    def note(self, recorded: CoreEvent, outcome: Outcome) -> None:
        """Note the decisions of a step."""
        if isinstance(recorded, JobSubmitted):
            self._priorities[recorded.job.id] = outcome.priority
        for action in outcome.actions:
            if isinstance(action, Dispatch):
                for index in action.indices:
                    self._clusters[action.job, action.dispatch_id, index] = action.cluster

    def problems(self, connection: Connection) -> Iterator[str]:
        """Yield the stored decisions that are others; a modified job has another priority."""
        unchanged = select(job.c.id, job.c.priority).where(job.c.modified_spec.is_(None))
        for row in connection.execute(unchanged):
            if self._priorities.get(row.id, row.priority) != row.priority:
                yield (
                    f"job {row.id} has priority {row.priority}, replayed {self._priorities[row.id]}"
                )
        columns = (attempt.c.job, attempt.c.dispatch_id, attempt.c.task_index, attempt.c.cluster)
        for sent in connection.execute(select(*columns)):
            key = sent.job, sent.dispatch_id, sent.task_index
            if self._clusters.get(key, sent.cluster) != sent.cluster:
                yield (
                    f"task {sent.job}_{sent.task_index} was sent to {sent.cluster}, replayed to "
                    f"{self._clusters[key]}"
                )
