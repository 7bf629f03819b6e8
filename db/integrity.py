"""Integrity checks of a database: pages, references, counters, and replay of its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, select

from metasched.core.transitions import LIVE
from metasched.db import daily_use, leases, limit_uses, period_use, policy_versions, reservations
from metasched.db.replay import replay
from metasched.db.schema import attempt, job, metadata, task
from metasched.db.store import Database

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
    problems += period_use.find_mismatches(connection)
    return problems, f"{len(tasks)} tasks agree with their attempts, licences with their leases"


def _check_replay(connection: Connection) -> tuple[list[str], str]:
    """Compare the state after a replay of the events with the tables."""
    result = replay(connection)
    if result is None:
        return [], "no event was recorded by a release that decides as this one: none was replayed"
    origin = f"the checkpoint before event {result.since}" if result.since > 1 else "the beginning"
    text = f"{result.events} events from {origin} give the state of {result.tasks} tasks again"
    if result.older_events:
        text += f"; {result.older_events} older events were not replayed"
    return result.problems, text
