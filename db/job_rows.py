"""Rows of tasks and attempts, and the statements that update them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    bindparam,
    func,
    update,
)

from metasched.core.tasks import Attempt, Task
from metasched.db.recovery import ATTEMPT_FIELDS
from metasched.db.schema import (
    attempt,
    task,
)

_UPDATED_COLUMNS = [column for column in ATTEMPT_FIELDS if column != "number"]


def _task_row(changed_task: Task) -> dict[str, Any]:
    return {
        "job": changed_task.job.id,
        "task_index": changed_task.index,
        "state": changed_task.state,
        "reason": changed_task.reason,
        "held": changed_task.held,
        "target": changed_task.target,
        "attempts": changed_task.attempts,
        "moves": changed_task.moves,
        "ended": changed_task.ended,
        "forgiven": changed_task.ignore_rejections_until,
    }


def _attempt_row(attempted_task: Task, stored_attempt: Attempt) -> dict[str, Any]:
    row = {column: getattr(stored_attempt, name) for column, name in ATTEMPT_FIELDS.items()}
    return {"job": attempted_task.job.id, "task_index": attempted_task.index, **row}


def _bind_values(row: dict[str, Any]) -> dict[str, Any]:
    return {f"b_{name}": value for name, value in row.items()}


def _update_statement(table: Any, keys: Sequence[str], columns: Iterable[str]) -> Any:
    return (
        update(table)
        .where(*(table.c[key] == bindparam(f"b_{key}") for key in keys))
        .values({name: bindparam(f"b_{name}") for name in columns})
    )


_UPDATE_TASK = _update_statement(
    task,
    ("job", "task_index"),
    ("state", "reason", "held", "target", "attempts", "moves", "ended", "forgiven"),
)


_UPDATE_ATTEMPT = _update_statement(attempt, ("job", "task_index", "number"), _UPDATED_COLUMNS)


# of most that are in the past, the intent stays as it was
_UPDATE_PAST = _update_statement(
    attempt, ("job", "task_index", "sending"), ("begun", "revoked")
).values(intent=func.coalesce(bindparam("b_intent"), attempt.c.intent))
