"""Uses of limited resources in SQL: counters bounded by the limits.

Each function works in the caller's transaction: a use changes with the tasks that cause it. A start
of the daemon replaces all rows, since the limits may be others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    update,
)

from metasched.core.events import Outcome
from metasched.core.transitions import LIVE, QUEUED_OR_HELD
from metasched.db import task_runs
from metasched.db.schema import attempt, current_spec, job, limit_use, task
from metasched.model.job import Job
from metasched.model.limits import (
    LICENCE,
    LimitChange,
    LimitScope,
    ScopeKind,
    dispatch_demand,
)

_SUM = limit_use.c.used + bindparam("b_delta", type_=limit_use.c.used.type)
# Fails on the constraint `within_limit` if too little is left.
_TAKE = (
    update(limit_use)
    .where(
        limit_use.c.scope == bindparam("b_scope"),
        limit_use.c.name == bindparam("b_name"),
        limit_use.c.resource == bindparam("b_resource"),
    )
    .values(used=_SUM)
)
_FORCE_OR_RETURN = _TAKE.values(
    excess=case((limit_use.c.maximum < _SUM, _SUM - limit_use.c.maximum), else_=0)
)


def store(connection: Connection, outcomes: Sequence[Outcome]) -> None:
    """Store the changed uses. IntegrityError if a use passes its limit."""
    changes: dict[tuple[LimitScope, str], LimitChange] = {}
    for outcome in outcomes:
        if outcome.limit_uses is not None:
            changes = {}
            connection.execute(delete(limit_use))
            rows = [
                _row(use.scope, use.resource, use.used, use.maximum) for use in outcome.limit_uses
            ]
            if rows:
                connection.execute(insert(limit_use), rows)
        for key, step_change in outcome.limit_changes.items():
            change = changes.setdefault(key, LimitChange(step_change.maximum))
            change.delta += step_change.delta
            change.forced |= step_change.forced
    # in a fixed order: concurrent writers wait for each other, until the commit
    for (scope, resource), change in sorted(changes.items(), key=lambda item: item[0]):
        if not change.delta:
            continue
        statement = _FORCE_OR_RETURN if change.forced or change.delta < 0 else _TAKE
        values = {"b_scope": scope.kind, "b_name": scope.name, "b_resource": resource}
        if not connection.execute(statement, {**values, "b_delta": change.delta}).rowcount:
            row = _row(scope, resource, change.delta, change.maximum)
            connection.execute(insert(limit_use), row if change.forced else {**row, "excess": 0})


def _row(scope: LimitScope, resource: str, used: int, maximum: int) -> dict[str, object]:
    return {
        "scope": scope.kind,
        "name": scope.name,
        "resource": resource,
        "used": used,
        "maximum": maximum,
        "excess": max(used - maximum, 0),
    }


def find_mismatches(connection: Connection) -> Iterator[str]:
    """Yield a message for each use that differs from a recount of the open tasks."""
    rows = connection.execute(select(limit_use)).all()
    if not rows:
        return
    counted = _recount(connection)
    for row in sorted(rows, key=lambda row: (row.scope, row.name, row.resource)):
        scope = LimitScope(ScopeKind(row.scope), row.name)
        actual = counted[scope, row.resource]
        if row.used != actual:
            yield f"limit of {scope} counts {row.used} {row.resource}, there are {actual}"


def _recount(connection: Connection) -> Counter[tuple[LimitScope, str]]:
    """Count the uses of all scopes that the open tasks belong to."""
    columns = (task.c.job, task.c.state, attempt.c.lease_expired, attempt.c.licence_choice)
    groups = connection.execute(
        select(*columns, func.count().label("tasks"))
        .select_from(task)
        .outerjoin(
            attempt,
            and_(
                attempt.c.job == task.c.job,
                attempt.c.task_index == task.c.task_index,
                attempt.c.number == task.c.attempts,
            ),
        )
        .where(task.c.ended.is_(None))
        .group_by(*columns)
    ).all()
    jobs = {}
    for row in connection.execute(
        select(job.c.id, current_spec).where(
            job.c.id.in_(select(task.c.job).where(task.c.ended.is_(None)))
        )
    ):
        jobs[row.id] = msgspec.json.decode(row.spec, type=Job)
    counted: Counter[tuple[LimitScope, str]] = Counter()
    for remainder in task_runs.remainders(connection):
        jobs[remainder.job.id] = remainder.job
        for scope in _all_scopes(remainder.job):
            for resource in ("open_tasks", "queued"):
                counted[scope, resource] += len(remainder)
    for stored in jobs.values():
        for scope in _all_scopes(stored):
            counted[scope, "stored_bytes"] += stored.stored_bytes
    for row in groups:
        owner = jobs[row.job].with_licences(row.licence_choice)
        resources = {"open_tasks": 1, "queued": int(row.state in QUEUED_OR_HELD)}
        if row.state in LIVE:
            names = ["dispatched"]
            if not row.lease_expired:
                names += ["running", "processors", *(LICENCE + name for name in owner.licences)]
            resources |= {name: dispatch_demand(name, owner) for name in names}
        for scope in _all_scopes(owner):
            for resource, amount in resources.items():
                counted[scope, resource] += amount * row.tasks
    return counted


def _all_scopes(owner: Job) -> Iterator[LimitScope]:
    """Yield every scope that may count a job's tasks."""
    yield LimitScope(ScopeKind.ALL, "")
    yield LimitScope(ScopeKind.USER, owner.user)
    yield LimitScope(ScopeKind.CLASS, owner.user_class)
    if owner.account is not None:
        yield LimitScope(ScopeKind.ACCOUNT, owner.account)
    for group in owner.groups:
        yield LimitScope(ScopeKind.GROUP, group)
