"""Encoding of tasks and attempts as rows, and the statements that update these rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import bindparam, func, update

from metasched.core.tasks import Attempt, Task
from metasched.db.recovery import ATTEMPT_FIELDS
from metasched.db.schema import attempt, task

_UPDATED_COLUMNS = [name for name in ATTEMPT_FIELDS if name != "number"]


def task_row(encoded: Task) -> dict[str, Any]:
    """Encode a task as a row of `task`."""
    return {
        "job": encoded.job.id,
        "task_index": encoded.index,
        "state": encoded.state,
        "reason": encoded.reason,
        "held": encoded.held,
        "target": encoded.target,
        "attempts": encoded.attempts,
        "moves": encoded.moves,
        "ended": encoded.ended,
        "ignore_rejections_until": encoded.ignore_rejections_until,
    }


def new_task_row(encoded: Task) -> dict[str, Any]:
    """Encode a new task, with the columns that never change."""
    return {**task_row(encoded), "user": encoded.job.user}


def attempt_row(owner: Task, encoded: Attempt) -> dict[str, Any]:
    """Encode an attempt of the task `owner` as a row of `attempt`."""
    row = {name: getattr(encoded, name) for name in ATTEMPT_FIELDS}
    return {"job": owner.job.id, "task_index": owner.index, **row}


def bind_values(row: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an update statement: column names prefixed with `b_`."""
    return {f"b_{name}": value for name, value in row.items()}


def _update_statement(table: Any, keys: Sequence[str], columns: Iterable[str]) -> Any:
    return (
        update(table)
        .where(*(table.c[key] == bindparam(f"b_{key}") for key in keys))
        .values({name: bindparam(f"b_{name}") for name in columns})
    )


UPDATE_TASK = _update_statement(
    task,
    ("job", "task_index"),
    ("state", "reason", "held", "target", "attempts", "moves", "ended", "ignore_rejections_until"),
)

UPDATE_ATTEMPT = _update_statement(attempt, ("job", "task_index", "number"), _UPDATED_COLUMNS)

# Of a past attempt; its intent changes only if a value is given.
UPDATE_PAST_ATTEMPT = _update_statement(
    attempt, ("job", "task_index", "dispatch_id"), ("has_started", "revoked")
).values(intent=func.coalesce(bindparam("b_intent"), attempt.c.intent))
