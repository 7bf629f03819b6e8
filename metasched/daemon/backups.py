"""Copies of the database that the calendar makes: one file for each run, whole or not there."""

from __future__ import annotations

import os
import re
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

from metasched.db.store import Database, StoreError

ABANDONED_AFTER = 86400.0  # seconds after which an incomplete copy is deleted


def write_backup(database: Database, folder: Path, entry: str, due: float, copies: int) -> str:
    """Write the copy of a run and delete the oldest copies; return the path and size, as text.

    `entry` is the name of the calendar's entry, `due` the nominal time of the run in epoch seconds.
    A copy that is there already stays: the daemon ended just before it recorded it. StoreError if
    nothing was written.
    """
    moment = datetime.fromtimestamp(due, UTC).strftime("%Y%m%dT%H%M%SZ")
    target = folder / f"metasched-{entry}-{moment}{database.backup_suffix}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not target.exists():
            _write(database, target)
        size = target.stat().st_size
        _delete_oldest(folder, entry, database.backup_suffix, copies)
    except OSError as error:
        raise StoreError(f"{error.strerror}, {error.filename or folder}") from None
    return f"{target}, {size} bytes"


def _write(database: Database, target: Path) -> None:
    # a name of its own: a daemon that was replaced may still write another
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        database.backup(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete_oldest(folder: Path, entry: str, suffix: str, copies: int) -> None:
    """Delete all copies of an entry but the newest, and copies that were never completed."""
    name = rf"metasched-{re.escape(entry)}-\d{{8}}T\d{{6}}Z{re.escape(suffix)}"
    whole = sorted(path for path in folder.iterdir() if re.fullmatch(name, path.name, re.ASCII))
    for path in whole[:-copies]:
        path.unlink(missing_ok=True)
    abandoned_at = time.time() - ABANDONED_AFTER
    for path in folder.iterdir():
        is_part = re.fullmatch(rf"\.{name}\.[0-9a-f]+\.part", path.name, re.ASCII)
        if is_part and path.stat().st_mtime < abandoned_at:
            path.unlink(missing_ok=True)
