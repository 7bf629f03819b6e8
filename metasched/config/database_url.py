"""The URL of the ledger's database, checked and absolute; `db.backends` opens it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from metasched.config.settings import ConfigError
from metasched.paths import personal_data

_REMEDY = "write sqlite:////path/to/file.db, or postgresql://user@host/database"
_POSTGRESQL = ("postgresql", "postgresql+psycopg", "postgres")


def parse_database_url(text: str, base: Path | None) -> URL:
    """Return the URL of a file of SQLite or of a database of PostgreSQL, without a driver's name.

    A relative path is resolved in `base`. ConfigError for a malformed URL or another kind of
    database, for a relative path without `base`, and for SQLite with a host or options.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigError(f'database "{_without_password(text)}" is not a URL; {_REMEDY}') from None
    if url.drivername == "sqlite" and url.database and not url.host:
        if "?" in text:  # SQLAlchemy drops what follows
            raise ConfigError(f'database "{text}" has a ?; write %3F if it is part of the path')
        path = Path(url.database)
        if base is None and not path.is_absolute():
            absolute = sqlite_url(path.absolute())
            raise ConfigError(f'database "{url}" is a relative path; write {absolute}')
        return sqlite_url((base or Path("/")) / path)
    if url.drivername in _POSTGRESQL:
        return url.set(drivername="postgresql")
    raise ConfigError(f'database "{url}" is not supported; {_REMEDY}')


def sqlite_url(path: Path) -> URL:
    """Return the URL of a file of SQLite."""
    return URL.create("sqlite", database=str(path))


def default_state_folder(url: URL) -> Path:
    """Return the folder of the clusters' files if the configuration names none."""
    if url.drivername == "sqlite":
        return Path(url.database or "").with_suffix(".clusters")
    return Path(personal_data()) / f"{url.database or 'metasched'}.clusters"


def _without_password(text: str) -> str:
    return text if "@" not in text else "..." + text[text.rindex("@") :]
