"""Where the record of a site is: its database, or a backup of it."""

from __future__ import annotations

from pathlib import Path

from metasched.config.database_url import parse_database_url, sqlite_url
from metasched.config.reading import find_config, load_settings
from metasched.db.backends import database_at
from metasched.db.store import Database


def open_record(backup: str | None, config: Path | None) -> Database:
    """Return the database that has the record.

    `backup`: a file or URL; None: the database of `config`, by default of the nearest
    configuration.
    """
    if backup is None:
        return database_at(load_settings(find_config(config)).database_url)
    is_url = "://" in backup
    return database_at(parse_database_url(backup, None) if is_url else sqlite_url(Path(backup)))
