"""The database: reachable, newest schema, private; tasks held after a restore; clocks."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError

from metasched.config.settings import Settings
from metasched.core.task_state_machine import HELD_AFTER_BACKUP
from metasched.core.transitions import TaskEvent
from metasched.daemon.doctor.findings import Finding, found, from_error, passed
from metasched.db.backends import database_at
from metasched.db.instances import read_first_dispatches
from metasched.db.marks import Mark, MarkFile, find_loss, is_related, present_mark
from metasched.db.schema import REVISION, attempt, change, instance, task
from metasched.db.sqlite import Sqlite
from metasched.db.store import Database, driver_message
from metasched.errors import UserError
from metasched.model.job import State

MAX_CLOCK_SKEW = 2.0  # seconds; managers report whole seconds
RECENT_CHANGES = 10_000  # stored changes that are examined for clock differences


def check_database(settings: Settings, before_start: bool = False) -> Iterator[Finding]:
    """Open the database without changing it.

    `before_start`: tables that the next start will create or upgrade are no problem.
    """
    database = database_at(settings.database_url)
    if isinstance(database, Sqlite):
        files = list(_check_files(database))
        yield from files
        if any(finding.kind and finding.kind.id == "database-unreadable" for finding in files):
            return  # SQLite would call it damaged
    try:
        if before_start and (change_at_start := _change_at_start(database)):
            yield passed("database", change_at_start)
            return
        engine = database.open_existing()
    except UserError as error:
        yield from_error("database-unusable", "database", str(error))
        return
    try:
        with engine.connect() as connection:
            weakness, size = database.quick_check(connection), database.size(connection)
            last_change = select(func.max(change.c.id)).scalar_subquery()
            clocks = connection.execute(
                select(
                    attempt.c.cluster,
                    func.max(attempt.c.dispatched - attempt.c.started),
                    func.max(attempt.c.started - change.c.time),
                )
                .join(
                    change,
                    (change.c.job == attempt.c.job)
                    & (change.c.task_index == attempt.c.task_index)
                    & (change.c.attempt == attempt.c.number),
                )
                .where(
                    change.c.id > last_change - RECENT_CHANGES,
                    change.c.task_event == TaskEvent.START,
                )
                .group_by(attempt.c.cluster)
            ).all()
            held, names = count_held_after_backup(connection), read_first_dispatches(connection)
            history = list(_check_history(database, connection, settings.state_folder))
    except DBAPIError as error:
        text = f"{database}: {driver_message(error)}"
        yield found("database-unusable", "database", text, "restore a backup")
        return
    finally:
        engine.dispose()
    text = f"{database}, {size >> 10} KiB"
    if weakness is None:
        yield passed("database", text)
    else:
        yield found("database-unsafe", "database", f"{text}: {weakness[0]}", weakness[1])
    yield from history
    if held:
        tasks = "1 task is" if held == 1 else f"{held} tasks are"
        text = f"{tasks} held; a dispatch after the backup is possible"
        tags = " or ".join(f"ms-{name}-JOB-*" for name in list(names)[:-1])
        fix = (
            f"look for {tags} in the records of the clusters; `metasched cancel` the tasks that "
            "are there, and `metasched release` the others"
        )
        yield found("restored-backup", "restored backup", text, fix)
    for name, behind, ahead in clocks:
        yield _check_clock(name, behind, ahead)


def _check_history(database: Database, connection: Connection, folder: Path) -> Iterator[Finding]:
    """Check whether the database went back; its mark is read before what is stored."""
    check, names = "database history", list(read_first_dispatches(connection))
    if not names:
        return
    file = MarkFile(database.mark_path(folder, names[0]))
    mark, present = file.read(), present_mark(connection)
    went_back = connection.execute(
        select(instance.c.went_back).order_by(instance.c.first_dispatch.desc()).limit(1)
    ).scalar()
    if isinstance(mark, Mark) and (loss := find_loss(connection, mark, present)):
        fix = (
            "if there is a later state, put it in its place before a start; else start the daemon, "
            "which takes a new name and holds the tasks in doubt"
        )
        yield found("database-went-back", check, f"the database went back: {loss}", fix)
    elif went_back:
        tags = " or ".join(f"ms-{name}-JOB-*" for name in names[:-1])
        fix = (
            f"look for {tags} in the clusters: jobs that metasched does not know are theirs alone, "
            "tasks in doubt are held; then stop the daemon, and `metasched db adopt`"
        )
        yield found("database-went-back", check, f"the database went back: {went_back}", fix)
    elif isinstance(mark, str):
        yield found("database-mark", check, f"the mark {file.path} {mark}")
    elif not is_related(mark, present):
        yield found("database-mark", check, f"the mark {file.path} is of another database")


def _change_at_start(database: Database) -> str:
    """Return what the next start will do to the tables; "": nothing.

    Raises StoreError if it would fail.
    """
    if isinstance(database, Sqlite) and not database.path.exists():
        database.require_creatable()
        return f"{database} does not exist yet; the first start creates it"
    revision = database.schema_revision()
    if revision is None:
        database.require_creatable()
        return f"{database} is empty; the first start creates its tables"
    if revision == REVISION:
        return ""
    database.require_upgradable(revision)
    return f"{database} has schema {revision}; the next start upgrades it to {REVISION}"


def _check_files(database: Sqlite) -> Iterator[Finding]:
    """Check that this account can read and write the database's files, and no other can."""
    paths = [database.path, *(database.path.with_name(database.path.name + s) for s in _SIDE_FILES)]
    for path in paths:
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            text = f"{path.parent} may not be entered by {_name_of(os.geteuid())}"
            yield found("database-unreadable", "database", text)
            return
        owner, mode = _name_of(status.st_uid), stat.S_IMODE(status.st_mode)
        if not os.access(path, os.R_OK | os.W_OK):
            text = f"{path} belongs to {owner}, {_name_of(os.geteuid())} may not use it"
            fix = f"sudo -u {owner} metasched doctor"
            yield found("database-unreadable", "database", text, fix)
            return
        if mode & 0o077:
            access = "write" if mode & 0o022 else "read"
            text = f"{path} has mode {mode:o}: other accounts may {access} it"
            yield found("database-mode", "database file", text, f"chmod 600 {path}")


_SIDE_FILES = ("-wal", "-shm")  # which SQLite keeps beside the database


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def count_held_after_backup(connection: Connection) -> int:
    """Count the tasks that are held since their database was restored."""
    last_change = (
        select(change.c.cause)
        .where(change.c.job == task.c.job, change.c.task_index == task.c.task_index)
        .order_by(change.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = select(func.count()).select_from(task)
    held = query.where(task.c.state == State.HELD, last_change == HELD_AFTER_BACKUP)
    return connection.execute(held).scalar_one()


def _check_clock(name: str, behind: float | None, ahead: float | None) -> Finding:
    """Compare clocks: no job starts before its dispatch, or after it was seen running."""
    check = f"clock of {name}"
    for seconds, direction in ((behind or 0.0, "behind"), (ahead or 0.0, "ahead of")):
        if seconds > MAX_CLOCK_SKEW:
            text = f"its clock is at least {seconds:.0f} s {direction} this host's"
            return found("clock-differs", check, f"{text}, by its jobs' starts")
    return passed(check, f"within {MAX_CLOCK_SKEW:g} s of this host's")
