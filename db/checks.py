"""Is the database sound? Its pages, its counters, and whether its events give its state again."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, func, select, text

from metasched.core import Core
from metasched.db import leases
from metasched.db.ledger import Known, Ledger
from metasched.db.schema import attempt, checkpoint, event, task
from metasched.db.store import StoreError, open_existing
from metasched.db.upkeep import snapshot
from metasched.transitions import FINAL, LIVE

TOLD = 3  # examples of what is wrong


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    ok: bool
    text: str


def check(path: Path) -> list[Finding]:
    """Check a copy of the database as it is at one moment, so that a daemon may go on.

    StoreError if there is no database that can be read.
    """
    if not path.is_file():
        raise StoreError(f"no database {path}; start the daemon once, or name its configuration")
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-check-") as folder:
            copy = Path(folder, "copy.db")
            snapshot(path, copy)
            engine = open_existing(copy)
            try:
                return list(_findings(engine))
            finally:
                engine.dispose()
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} cannot be copied ({error}); see that there is room") from None


def _findings(engine: Engine) -> Iterator[Finding]:
    checks: tuple[tuple[str, Callable[[Connection], tuple[list[str], str]]], ...] = (
        ("integrity", _integrity),
        ("counters", _counters),
        ("replay", lambda connection: _replayed(engine, connection)),
    )
    for name, what in checks:
        with engine.connect() as connection:
            wrong, fine = what(connection)
        more = f" and {len(wrong) - TOLD} more" if len(wrong) > TOLD else ""
        yield Finding(name, not wrong, f"{'; '.join(wrong[:TOLD])}{more}" if wrong else fine)


def _integrity(connection: Connection) -> tuple[list[str], str]:
    """SQLite's own check of pages and indexes, and every reference between tables."""
    said = [str(line) for line in connection.exec_driver_sql("PRAGMA integrity_check").scalars()]
    wrong = [line for line in said if line != "ok"]
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    wrong += [f"{row[0]} {row[1]} refers to a missing {row[2]}" for row in broken]
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
    lonely = text("SELECT id FROM job WHERE NOT EXISTS (SELECT 1 FROM task WHERE job = job.id)")
    wrong += [f"job {id} has no task" for id in run(lonely).scalars()]
    wrong += leases.wrong(connection)
    return wrong, f"{len(tasks)} tasks agree with their attempts, licences with their leases"


def _replayed(engine: Engine, connection: Connection) -> tuple[list[str], str]:
    """The events, stepped through a fresh core, against the tasks as they are stored."""
    core, since = Core(), 0
    first = connection.execute(select(func.min(event.c.id))).scalar()
    oldest = connection.execute(select(checkpoint).order_by(checkpoint.c.event)).first()
    if first != 1 and oldest is not None:
        since = oldest.event
        core.restore(**vars(Known.unpacked(oldest.data)))
    ledger = Ledger(engine)
    many, ended = 0, {}
    for what in ledger.events(since):
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
