"""Chooses SQLite or PostgreSQL by the URL of the database."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL

from metasched.db.store import Database


def database_at(url: URL) -> Database:
    """Return the database at a URL of `config.database_url`; nothing is opened yet."""
    from metasched.db.postgresql import Postgresql
    from metasched.db.sqlite import Sqlite

    return Sqlite(Path(url.database or "")) if url.drivername == "sqlite" else Postgresql(url)
