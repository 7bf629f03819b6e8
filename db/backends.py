"""Chooses SQLite or PostgreSQL by the URL of the database."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from metasched.db.store import Database, StoreError, hide_password


def database_from_url(url: str, base: Path | None) -> Database:
    """Return the database named by a URL; a relative file path is resolved in `base`.

    Raises StoreError for a malformed URL or an unsupported kind of database, and for a relative
    path without `base`.
    """
    from metasched.db.postgresql import Postgresql
    from metasched.db.sqlite import Sqlite

    remedy = "write sqlite:////path/to/file.db, or postgresql://user@host/database"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError(f'database "{_without_password(url)}" is not a URL; {remedy}') from None
    if parsed.drivername == "sqlite" and parsed.database:
        path = Path(parsed.database)
        if base is None and not path.is_absolute():
            absolute = f"sqlite:///{path.absolute()}"
            raise StoreError(f'database "{url}" is a relative path; write {absolute}')
        return Sqlite((base or Path("/")) / path)
    if parsed.drivername in ("postgresql", "postgresql+psycopg", "postgres"):
        return Postgresql(parsed)
    raise StoreError(f'database "{hide_password(parsed)}" is not supported; {remedy}')


def _without_password(url: str) -> str:
    return url if "@" not in url else "..." + url[url.rindex("@") :]
