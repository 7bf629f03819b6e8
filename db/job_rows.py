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
from metasched.db.recovery import ATTEMPT
from metasched.db.schema import (
    attempt,
    task,
)

_CHANGED = [name for name in ATTEMPT if name != "number"]


def _task_row(owner: Task) -> dict[str, Any]:
    return {
        "job": owner.job.id,
        "task_index": owner.index,
        "state": owner.state,
        "reason": owner.reason,
        "held": owner.held,
        "target": owner.target,
        "attempts": owner.attempts,
        "moves": owner.moves,
        "ended": owner.ended,
        "forgiven": owner.forgiven,
    }


def _attempt_row(owner: Task, tried: Attempt) -> dict[str, Any]:
    row = {name: getattr(tried, name) for name in ATTEMPT}
    return {"job": owner.job.id, "task_index": owner.index, **row}


def _bound(row: dict[str, Any]) -> dict[str, Any]:
    return {f"b_{name}": value for name, value in row.items()}


def _update(table: Any, keys: Sequence[str], columns: Iterable[str]) -> Any:
    return (
        update(table)
        .where(*(table.c[key] == bindparam(f"b_{key}") for key in keys))
        .values({name: bindparam(f"b_{name}") for name in columns})
    )


_UPDATE_TASK = _update(
    task,
    ("job", "task_index"),
    ("state", "reason", "held", "target", "attempts", "moves", "ended", "forgiven"),
)


_UPDATE_ATTEMPT = _update(attempt, ("job", "task_index", "number"), _CHANGED)


# of most that are in the past, the intent stays as it was
_UPDATE_PAST = _update(attempt, ("job", "task_index", "sending"), ("begun", "revoked")).values(
    intent=func.coalesce(bindparam("b_intent"), attempt.c.intent)
)
