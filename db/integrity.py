"""Integrity checks of a database: pages, references, counters, and replay of its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, func, select

from metasched.core.array_remainder import range_of
from metasched.core.recovered_state import RecoveredState
from metasched.core.scheduler import DECISION_VERSION, Core
from metasched.core.transitions import FINAL, LIVE
from metasched.db import (
    calendar,
    daily_use,
    leases,
    limit_uses,
    policy_versions,
    reservations,
    share_uses,
    task_runs,
    tuning,
)
from metasched.db.recovery import recorded_events
from metasched.db.schema import attempt, checkpoint, event, job, metadata, task
from metasched.db.store import Database
from metasched.model.job import State

EXAMPLES = 3  # problems quoted per check


@dataclass(frozen=True)
class CheckResult:
    """The result of a check. `metasched db check --json` prints these fields."""

    check: str  # name of the check
    ok: bool
    text: str  # summary, or the first problems


def check_database(database: Database) -> list[CheckResult]:
    """Check a snapshot of the database; a daemon may keep writing meanwhile.

    Raises StoreError if the database is missing or cannot be read.
    """
    checks: tuple[tuple[str, Callable[[Connection], tuple[list[str], str]]], ...] = (
        ("integrity", lambda connection: _check_integrity(database, connection)),
        ("counters", _check_counters),
        ("replay", _check_replay),
    )
    with database.snapshot() as connection:
        return [_result(name, *run_check(connection)) for name, run_check in checks]


def _result(check: str, problems: list[str], success: str) -> CheckResult:
    suffix = f" and {len(problems) - EXAMPLES} more" if len(problems) > EXAMPLES else ""
    return CheckResult(
        check, not problems, f"{'; '.join(problems[:EXAMPLES])}{suffix}" if problems else success
    )


def _check_integrity(database: Database, connection: Connection) -> tuple[list[str], str]:
    """Run the database's own check of its pages, and check every foreign key."""
    problems = database.find_damage(connection)
    for table in metadata.sorted_tables:
        for key in table.foreign_key_constraints:
            target = key.referred_table.alias()
            matches = and_(*(e.parent == target.c[e.column.name] for e in key.elements))
            is_orphan = ~select(1).where(matches).correlate(table).exists()
            query = select(func.count()).where(is_orphan).select_from(table)
            if orphans := connection.execute(query).scalar():
                referred = key.referred_table
                problems.append(f"{orphans} rows of {table.name} refer to a missing {referred}")
    return problems, "pages, indexes and references are sound"


def _check_counters(connection: Connection) -> tuple[list[str], str]:
    """Compare counters and states of tasks and licences with a recount of attempts and leases."""
    execute = connection.execute
    problems = []
    counted = {
        (row.job, row.task_index): (row.number, row.attempts)
        for row in execute(
            select(
                attempt.c.job,
                attempt.c.task_index,
                func.max(attempt.c.number).label("number"),
                func.count().label("attempts"),
            ).group_by(attempt.c.job, attempt.c.task_index)
        )
    }
    live: dict[tuple[int, int], list[str]] = {}
    for row in execute(select(attempt).where(attempt.c.state.in_(sorted(LIVE)))):
        live.setdefault((row.job, row.task_index), []).append(row.state)
    tasks = execute(select(task)).all()
    for row in tasks:
        key, name = (row.job, row.task_index), f"task {row.job}_{row.task_index}"
        if counted.get(key, (0, 0)) != (row.attempts, row.attempts):
            problems.append(f"{name} counts {row.attempts} attempts, there are {counted.get(key)}")
        if live.get(key, []) != ([row.state] if row.state in LIVE else []):
            problems.append(f"{name} is {row.state}, its live attempts {live.get(key, [])}")
    without_tasks = select(job.c.id).where(~select(1).where(task.c.job == job.c.id).exists())
    problems += [f"job {id} has no task" for id in execute(without_tasks).scalars()]
    problems += leases.find_mismatches(connection)
    problems += limit_uses.find_mismatches(connection)
    problems += reservations.find_conflicts(connection)
    problems += policy_versions.find_mismatches(connection)
    problems += daily_use.find_mismatches(connection)
    return problems, f"{len(tasks)} tasks agree with their attempts, licences with their leases"


def _check_replay(connection: Connection) -> tuple[list[str], str]:
    """Replay the events through a fresh core and compare its tasks and uses with the tables.

    Events that a release with another version of the decisions recorded are not replayed.
    """
    first = _first_checkpoint(connection)
    if first is None:
        return [], "no event was recorded by a release that decides as this one: none was replayed"
    core, since = Core(), first.event
    count, ended = 0, {}
    tuning_changes: list[tuning.RecordedChange] = []
    core.restore(RecoveredState.unpack(first.data))
    for recorded in recorded_events(connection, since):
        count += 1
        outcome = core.step(recorded)
        tuning_changes += tuning.changes_of(recorded, outcome)
        for key, replayed_task in outcome.tasks.items():
            if replayed_task.state in FINAL:
                ended[key] = _summary(replayed_task.state, replayed_task.attempts)
            else:
                ended.pop(key, None)
        for job_id, run in outcome.cancelled_runs:
            cancelled = _summary(State.CANCELLED, 0)
            ended |= {(job_id, index): cancelled for index in range_of(run)}
    replayed = ended | {
        key: _summary(open_task.state, open_task.attempts) for key, open_task in core.tasks.items()
    }
    for remainder in core.remainders.values():
        for run in remainder.runs:
            for index in range_of(run):
                replayed[remainder.job.id, index] = _summary(remainder.state, 0)
    stored = {
        (row.job, row.task_index): _summary(row.state, row.attempts)
        for row in connection.execute(select(task))
    }
    stored |= {key: _summary(state, 0) for key, state in task_runs.all_states(connection)}
    problems = [
        f"task {key[0]}_{key[1]} is stored {stored[key]}, replayed {replayed.get(key)}"
        for key in stored
        if replayed.get(key, stored[key] if since > 1 else None) != stored[key]
    ]
    problems += [
        f"task {key[0]}_{key[1]} is not stored, replayed {replayed[key]}"
        for key in replayed.keys() - ended.keys() - stored.keys()
    ]
    problems += share_uses.find_mismatches(connection, core.fair_share.uses.values())
    problems += calendar.find_mismatches(connection, core.calendar.entries)
    problems += tuning.find_mismatches(
        connection, since, core.state.tuning.values(), tuning_changes
    )
    origin = f"the checkpoint before event {since}" if since > 1 else "the beginning"
    older = connection.execute(select(func.count()).where(event.c.id < since)).scalar()
    remark = f"; {older} older events were not replayed" if older else ""
    return (
        problems,
        f"{count} events from {origin} give the state of {len(stored)} tasks again{remark}",
    )


def _first_checkpoint(connection: Connection) -> Row[Any] | None:
    """Return the checkpoint after which all events were decided by the present version."""
    other_version = checkpoint.c.decisions != DECISION_VERSION
    last_other = select(func.coalesce(func.max(checkpoint.c.event), 0)).where(other_version)
    return connection.execute(
        select(checkpoint)
        .where(checkpoint.c.event > last_other.scalar_subquery())
        .order_by(checkpoint.c.event)
        .limit(1)
    ).first()


def _summary(state: str, attempts: int) -> str:
    return f"{state} after {attempts} attempts"
