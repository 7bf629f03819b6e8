"""The names of a database in its tags. A restored backup gets a new name at its first start."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, insert, select, update

from metasched.db.schema import instance

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


class Identity(NamedTuple):
    """The names of a database."""

    instance: str  # the newest name, used in every new tag
    first_dispatches: Mapping[str, int]  # first dispatch id of each name, oldest first
    restored: bool  # whether this is the first start on a restored backup


def read_first_dispatches(connection: Connection) -> dict[str, int]:
    """Return the first dispatch id of each name, oldest first."""
    columns = instance.c
    query = select(columns.name, columns.first_dispatch)
    rows = connection.execute(query.order_by(columns.first_dispatch, columns.created))
    return {row.name: row.first_dispatch for row in rows}


def read_identity(connection: Connection, now: float) -> Identity:
    """Return the names; a new database gets its name, a restored backup the proposal of a name.

    `store_name` stores the proposal together with the first event: until then this is the first
    start. `now` is in epoch seconds.
    """
    first_dispatches, name = read_first_dispatches(connection), secrets.token_hex(4)
    if not first_dispatches:
        connection.execute(insert(instance).values(name=name, created=now, first_dispatch=0))
        first_dispatches[name] = 0
    restored = UNNAMED in first_dispatches
    if restored:
        first_dispatches[name] = first_dispatches.pop(UNNAMED)
    return Identity(next(reversed(first_dispatches)), first_dispatches, restored)


def store_name(connection: Connection, name: str, now: float) -> None:
    """Store the name of a restored backup at its first start."""
    unnamed = instance.c.name == UNNAMED
    connection.execute(update(instance).where(unnamed).values(name=name, created=now))
