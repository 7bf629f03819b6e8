"""Databases by their URL as text, as a configuration names them."""

from __future__ import annotations

from pathlib import Path

from metasched.config.database_url import parse_database_url
from metasched.db.backends import database_at
from metasched.db.store import Database


def database_from_url(url: str, base: Path) -> Database:
    """Return the database at a URL; a relative path is resolved in `base`."""
    return database_at(parse_database_url(url, base))
