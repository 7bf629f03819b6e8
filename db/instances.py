"""The names of a database in its tags. A restored backup gets a new name at its first start."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, insert, select, text

from metasched.db.schema import instance, tag_key
from metasched.model.tags import NO_KEY, TagKey

UNNAMED = ""  # the newest name in a backup, until its first start
# A statement for a backup, with its time (epoch seconds) as `{time}` and the schema as `{schema}`.
# The dispatches in the backup belong to the names before it.
MARK_BACKUP = (
    "INSERT INTO {schema}instance (name, created, first_dispatch) "
    f"SELECT '{UNNAMED}', {{time!r}}, COALESCE(MAX(number), 1) FROM ("
    "SELECT MAX(dispatch_id) + 1 AS number FROM {schema}attempt "
    "UNION ALL SELECT MAX(first_dispatch) FROM {schema}instance) AS numbers "
    f"WHERE NOT EXISTS (SELECT 1 FROM {{schema}}instance WHERE name = '{UNNAMED}')"
)


class FirstIds(NamedTuple):
    """The lowest ids that a database may issue: others may have been issued before it went back."""

    job: int = 0
    reservation: int = 0
    dispatch: int = 0

    def above(self, other: FirstIds) -> FirstIds:
        """Return the higher of each id."""
        return FirstIds(*map(max, self, other))


class Identity(NamedTuple):
    """The names of a database."""

    instance: str  # the newest name, used in every new tag
    first_dispatches: Mapping[str, int]  # first dispatch id of each name, oldest first
    restored: bool  # whether this is the first start on a restored backup
    went_back: str = ""  # how it was noticed that the database had gone back; "": it had not


def read_first_dispatches(connection: Connection) -> dict[str, int]:
    """Return the first dispatch id of each name, oldest first."""
    columns = instance.c
    query = select(columns.name, columns.first_dispatch)
    rows = connection.execute(query.order_by(columns.first_dispatch, columns.created))
    return {row.name: row.first_dispatch for row in rows}


def read_first_ids(connection: Connection) -> FirstIds:
    """Return the lowest ids of jobs and reservations that are stored with the names."""
    columns = instance.c
    query = select(func.max(columns.first_job), func.max(columns.first_reservation))
    job, reservation = connection.execute(query).one()
    return FirstIds(job or 0, reservation or 0)


def read_key(connection: Connection) -> TagKey:
    """Return the key of the digests in tags."""
    row = connection.execute(select(tag_key.c.key, tag_key.c.first_dispatch)).first()
    return NO_KEY if row is None else TagKey(*row)


def mark_as_backup(connection: Connection) -> None:
    """Let the next start take the database for a restored backup."""
    connection.execute(text(MARK_BACKUP.format(schema="", time=time.time())))


def read_identity(
    connection: Connection, now: float, went_back: str = "", first_dispatch: int = 0
) -> Identity:
    """Return the names; a new database gets its name, a restored backup the proposal of a name.

    So does a database that went back, if `went_back` says how. Dispatch ids of the proposed name
    begin at `first_dispatch` or above. `store_name` stores the proposal together with the first
    event: until then this is the first start. `now` is in epoch seconds.
    """
    first_dispatches, name = read_first_dispatches(connection), secrets.token_hex(4)
    if not first_dispatches:
        connection.execute(insert(instance).values(name=name, created=now, first_dispatch=0))
        first_dispatches[name] = 0
    restored = UNNAMED in first_dispatches or went_back != ""
    if restored:
        stored = first_dispatches.pop(UNNAMED, 0)
        first_dispatches[name] = max(stored, first_dispatch, *first_dispatches.values())
    return Identity(next(reversed(first_dispatches)), first_dispatches, restored, went_back)


def store_name(
    connection: Connection, name: str, now: float, first_ids: FirstIds, went_back: str
) -> None:
    """Store the name of a restored backup, or of a database that went back, at its first start."""
    connection.execute(delete(instance).where(instance.c.name == UNNAMED))
    connection.execute(
        insert(instance).values(
            name=name,
            created=now,
            first_dispatch=first_ids.dispatch,
            first_job=first_ids.job,
            first_reservation=first_ids.reservation,
            went_back=went_back,
        )
    )
