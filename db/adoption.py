"""`metasched db adopt`: the administrator says that the database is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError

from metasched.db.instances import read_first_ids
from metasched.db.marks import Mark, MarkFile, find_loss, is_related, present_mark
from metasched.db.schema import epoch, instance
from metasched.db.store import Database, StoreError

NO_DATABASE = Mark(names=(), event=0, time=0.0, next_job=0, next_reservation=0, next_dispatch=0)


def adopt(database: Database, folder: Path, confirm: Callable[[str], bool]) -> Mark | None:
    """Make the mark of a database anew; return it, or None if `confirm` returns false.

    `folder` is the daemon's. `confirm` is called with what is to be agreed to. StoreError if a
    daemon uses the database, or it fails.
    """
    if (lost := database.lost_mark()) is not None:
        if not confirm(f"{database} does not exist: its jobs are lost. Begin a new one?"):
            return None
        lost.path.unlink(missing_ok=True)  # an empty file may stay
        return NO_DATABASE
    database.open_existing().dispose()  # at another schema, `acquire_writer` would upgrade it
    with database.acquire_writer() as lock:
        try:
            mark = write_mark(lock.connection, database, folder, confirm, lock.server())
            if mark is None:
                return None
            lock.connection.execute(update(epoch).values(holder=lock.process))
            lock.connection.execute(update(instance).values(went_back=""))
            lock.connection.commit()
        except DBAPIError as error:
            raise database.store_error(error) from None
    return mark


def write_mark(
    connection: Connection,
    database: Database,
    folder: Path,
    confirm: Callable[[str], bool] = lambda _: True,
    server: str = "",
) -> Mark | None:
    """Write the mark of a database as it is; None if `confirm` returns false. StoreError."""
    ids = read_first_ids(connection)
    present = present_mark(connection, ids.job, ids.reservation, server)
    if not present.names:
        raise StoreError(f"{database}: no daemon has used it yet; start the daemon once")
    file = MarkFile(database.mark_path(folder, present.names[0]))
    former = file.read()
    loss = ""
    if isinstance(former, Mark) and is_related(former, present):
        loss = find_loss(connection, former, present)
        connection.execute(  # ids are not issued twice
            update(instance)
            .where(instance.c.name == present.names[-1])
            .values(
                first_job=max(former.next_job, ids.job),
                first_reservation=max(former.next_reservation, ids.reservation),
            )
        )
    if not confirm(_question(connection, database, present, loss)):
        return None
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write(present)
    except OSError as error:
        raise StoreError(f"{file.path}: {error.strerror}; give a folder you can write") from None
    return present


def _question(connection: Connection, database: Database, present: Mark, loss: str) -> str:
    """Return what is to be agreed to."""
    went_back = connection.execute(
        select(instance.c.went_back).where(instance.c.went_back != "").limit(1)
    ).scalar()
    if loss:
        return (
            f"{database} went back: {loss}. Tasks that were dispatched since run a second time, "
            "unless the daemon starts without this. Is it right all the same?"
        )
    if went_back:
        return f"{database} went back: {went_back}. Are its held tasks settled?"
    return f"{database} has {present.event} events. Is it the right one?"
