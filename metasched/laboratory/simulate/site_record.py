"""Where the record of a site is: its database, or a backup of it."""

from __future__ import annotations

from pathlib import Path

from metasched.config.database_url import parse_database_url, sqlite_url
from metasched.config.reading import find_config, load_settings
from metasched.db.backends import database_at
from metasched.db.store import Database


def open_record(backup: str | None, config: Path | None) -> tuple[Database, dict[str, str]]:
    """Return the database, and the policies of its local clusters as far as they are known.

    `backup`: a file or URL; None: the database of `configuration`, by default the nearest
    configuration. Policies of local clusters are in no event, so those of a backup are unknown.
    """
    if backup is not None:
        is_url = "://" in backup
        url = parse_database_url(backup, None) if is_url else sqlite_url(Path(backup))
        return database_at(url), {}
    settings = load_settings(find_config(config))
    policies = {
        entry.cluster.name: str(entry.options["policy"])
        for entry in settings.clusters
        if entry.cluster.adapter == "local" and "policy" in entry.options
    }
    return database_at(settings.database_url), policies
