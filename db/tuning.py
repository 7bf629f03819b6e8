"""The state of the self-optimising classification and its changes, in SQL.

`store` works in the caller's transaction: both change with the submission that causes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from metasched.core.events import CoreEvent, JobSubmitted, Outcome
from metasched.db.schema import change, tuning, tuning_change
from metasched.model.tuning import TuningChange, TuningState

MAX_CHANGES = 1000  # rows; older changes are deleted


class RecordedChange(NamedTuple):
    """A change with its cause."""

    time: float  # epoch seconds
    job: int | None  # the submitted job; None: a start of the daemon
    change: TuningChange


def changes_of(event: CoreEvent, outcome: Outcome) -> list[RecordedChange]:
    """Return the changes of a step."""
    job = event.job.id if isinstance(event, JobSubmitted) else None
    return [RecordedChange(event.time, job, made) for made in outcome.tuning_changes]


def store(
    connection: Connection, first_event: int, steps: Sequence[tuple[CoreEvent, Outcome]]
) -> None:
    """Store the last state of these steps, and all changes. Event ids begin at `first_event`."""
    states: list[TuningState] | None = None
    rows = []
    for event_id, (event, outcome) in enumerate(steps, start=first_event):
        states = states if outcome.tuning is None else outcome.tuning
        rows += [
            {
                "event": event_id,
                "time": made.time,
                "job": made.job,
                "parameter": made.change.parameter,
                "change": msgspec.json.encode(made.change).decode(),
            }
            for made in changes_of(event, outcome)
        ]
    if states is not None:
        connection.execute(delete(tuning))
    if states:
        connection.execute(
            insert(tuning),
            [
                {"parameter": state.parameter, "state": msgspec.json.encode(state).decode()}
                for state in states
            ],
        )
    if rows:
        connection.execute(insert(tuning_change), rows)
        # counted, since a database may leave out ids
        newest_first = select(tuning_change.c.id).order_by(tuning_change.c.id.desc())
        last = connection.execute(newest_first.offset(MAX_CHANGES).limit(1)).scalar()
        if last is not None:
            connection.execute(delete(tuning_change).where(tuning_change.c.id <= last))


def read_states(connection: Connection) -> list[TuningState]:
    """Return the stored states."""
    rows = connection.execute(select(tuning.c.state).order_by(tuning.c.parameter)).scalars()
    return [msgspec.json.decode(row, type=TuningState) for row in rows]


def changes_before(connection: Connection, job_id: int) -> list[RecordedChange]:
    """Return the change of each parameter that was in force when a job was submitted."""
    submission = select(func.min(change.c.event)).where(change.c.job == job_id).scalar_subquery()
    last = (
        select(func.max(tuning_change.c.id))
        .where(tuning_change.c.event < submission)
        .group_by(tuning_change.c.parameter)
    )
    return _recorded(connection, tuning_change.c.id.in_(last))


def find_mismatches(
    connection: Connection,
    since: int,
    replayed_states: Iterable[TuningState],
    replayed_changes: Sequence[RecordedChange],
) -> Iterator[str]:
    """Yield a message for each difference from a replay of the events since an id."""
    stored_states = {state.parameter: state for state in read_states(connection)}
    expected_states = {state.parameter: state for state in replayed_states}
    for parameter in sorted(stored_states.keys() | expected_states.keys()):
        if stored_states.get(parameter) != expected_states.get(parameter):
            yield (
                f"self-optimisation of {parameter} is {_describe(stored_states.get(parameter))}, "
                f"the replay has {_describe(expected_states.get(parameter))}"
            )
    stored = _recorded(connection, tuning_change.c.event >= since)
    if stored != list(replayed_changes[-MAX_CHANGES:]):
        yield (
            f"{len(stored)} changes by self-optimisation are stored, "
            f"the replay has {len(replayed_changes)}, or others"
        )


def _recorded(connection: Connection, condition: ColumnElement[bool]) -> list[RecordedChange]:
    query = select(tuning_change).where(condition).order_by(tuning_change.c.id)
    return [
        RecordedChange(row.time, row.job, msgspec.json.decode(row.change, type=TuningChange))
        for row in connection.execute(query)
    ]


def _describe(state: TuningState | None) -> str:
    if state is None:
        return "missing"
    values = ", ".join(f"{value:g}" for value in state.configuration)
    return f"{values} by {len(state.history)} jobs"
