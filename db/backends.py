"""Chooses SQLite or PostgreSQL by the URL of the database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from metasched.db.store import Database, StoreError, _without_password, hide_password

if TYPE_CHECKING:  # a third of the daemon's start, and only needed when there is work for it
    pass


def database_from_url(url: str, base: Path) -> Database:
    """The database that a URL names; a relative file is in `base`. StoreError if it is none."""
    from metasched.db.postgresql import Postgresql
    from metasched.db.sqlite import Sqlite

    remedy = "write sqlite:////path/to/file.db, or postgresql://user@host/database"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError(f'database "{_without_password(url)}" is no URL; {remedy}') from None
    if parsed.drivername == "sqlite" and parsed.database:
        return Sqlite(base / parsed.database)
    if parsed.drivername in ("postgresql", "postgresql+psycopg", "postgres"):
        return Postgresql(parsed)
    raise StoreError(f'database "{hide_password(parsed)}" is not supported; {remedy}')
