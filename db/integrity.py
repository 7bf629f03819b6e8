"""Is the database sound? Its pages, its counters, and whether its events give its state again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs
from sqlalchemy import Connection, and_, func, select

from metasched.core.scheduler import Core
from metasched.core.transitions import FINAL, LIVE
from metasched.db import leases, reservations
from metasched.db.recovery import Known, events
from metasched.db.schema import attempt, checkpoint, event, job, metadata, task
from metasched.db.store import Database

TOLD = 3  # examples of what is wrong


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    ok: bool
    text: str


def check(database: Database) -> list[Finding]:
    """Check the database as it is at one moment, so that a daemon may go on.

    StoreError if there is none that can be read.
    """
    checks: tuple[tuple[str, Callable[[Connection], tuple[list[str], str]]], ...] = (
        ("integrity", lambda connection: _integrity(database, connection)),
        ("counters", _counters),
        ("replay", _replayed),
    )
    with database.moment() as connection:
        return [_found(name, *look(connection)) for name, look in checks]


def _found(check: str, wrong: list[str], fine: str) -> Finding:
    more = f" and {len(wrong) - TOLD} more" if len(wrong) > TOLD else ""
    return Finding(check, not wrong, f"{'; '.join(wrong[:TOLD])}{more}" if wrong else fine)


def _integrity(database: Database, connection: Connection) -> tuple[list[str], str]:
    """The database's own check of what lies on its disk, and every reference between tables."""
    wrong = database.damage(connection)
    for table in metadata.sorted_tables:
        for key in table.foreign_key_constraints:
            target = key.referred_table.alias()
            met = and_(*(pair.parent == target.c[pair.column.name] for pair in key.elements))
            many = select(func.count()).where(~select(1).where(met).correlate(table).exists())
            if lonely := connection.execute(many.select_from(table)).scalar():
                wrong.append(f"{lonely} of {table.name} refer to a missing {key.referred_table}")
    return wrong, "pages, indexes and references are sound"


def _counters(connection: Connection) -> tuple[list[str], str]:
    """Each counter and state of a task against a recount of its attempts, of a licence likewise."""
    run = connection.execute
    wrong = []
    counted = {
        (row.job, row.task_index): (row.number, row.many)
        for row in run(
            select(
                attempt.c.job,
                attempt.c.task_index,
                func.max(attempt.c.number).label("number"),
                func.count().label("many"),
            ).group_by(attempt.c.job, attempt.c.task_index)
        )
    }
    live: dict[tuple[int, int], list[str]] = {}
    for row in run(select(attempt).where(attempt.c.state.in_(sorted(LIVE)))):
        live.setdefault((row.job, row.task_index), []).append(row.state)
    tasks = run(select(task)).all()
    for row in tasks:
        key, name = (row.job, row.task_index), f"task {row.job}_{row.task_index}"
        if counted.get(key, (0, 0)) != (row.attempts, row.attempts):
            wrong.append(f"{name} counts {row.attempts} attempts, there are {counted.get(key)}")
        if live.get(key, []) != ([row.state] if row.state in LIVE else []):
            wrong.append(f"{name} is {row.state}, its live attempts {live.get(key, [])}")
    lonely = select(job.c.id).where(~select(1).where(task.c.job == job.c.id).exists())
    wrong += [f"job {id} has no task" for id in run(lonely).scalars()]
    wrong += leases.wrong(connection)
    wrong += reservations.wrong(connection)
    return wrong, f"{len(tasks)} tasks agree with their attempts, licences with their leases"


def _replayed(connection: Connection) -> tuple[list[str], str]:
    """The events, stepped through a fresh core, against the tasks as they are stored."""
    core, since = Core(), 0
    first = connection.execute(select(func.min(event.c.id))).scalar()
    oldest = connection.execute(select(checkpoint).order_by(checkpoint.c.event)).first()
    if first != 1 and oldest is not None:
        since = oldest.event
        core.restore(**structs.asdict(Known.unpacked(oldest.data)))
    many, ended = 0, {}
    for what in events(connection, since):
        many += 1
        for key, owner in core.step(what).tasks.items():
            if owner.state in FINAL:
                ended[key] = _told(owner.state, owner.attempts)
            else:
                ended.pop(key, None)
    again = ended | {key: _told(t.state, t.attempts) for key, t in core.tasks.items()}
    stored = {
        (row.job, row.task_index): _told(row.state, row.attempts)
        for row in connection.execute(select(task))
    }
    wrong = [
        f"task {key[0]}_{key[1]} is stored {stored[key]}, replayed {again.get(key)}"
        for key in stored
        if again.get(key, stored[key] if since else None) != stored[key]
    ]
    wrong += [
        f"task {key[0]}_{key[1]} is not stored, replayed {again[key]}"
        for key in core.tasks.keys() - stored.keys()
    ]
    start = f"the checkpoint before event {since}" if since else "the beginning"
    return wrong, f"{many} events from {start} give the state of {len(stored)} tasks again"


def _told(state: str, attempts: int) -> str:
    return f"{state} after {attempts} attempts"
