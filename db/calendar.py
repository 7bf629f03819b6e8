"""The calendar in SQL: each entry as the core has it, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Connection, delete, func, insert, select

from metasched.core.events import Outcome
from metasched.db.schema import calendar
from metasched.model.calendar import CalendarEntry

_JSON_COLUMNS = ("act", "last_runs")


def store(connection: Connection, outcomes: Iterable[Outcome]) -> None:
    """Store the last versions of changed entries."""
    changed = {id: entry for outcome in outcomes for id, entry in outcome.calendar.items()}
    if not changed:
        return
    connection.execute(delete(calendar).where(calendar.c.id.in_(list(changed))))
    if rows := [_encode_row(entry) for entry in changed.values() if entry is not None]:
        connection.execute(insert(calendar), rows)


def read_entries(connection: Connection) -> list[CalendarEntry]:
    """Return all entries by id."""
    rows = connection.execute(select(calendar).order_by(calendar.c.id)).mappings()
    return [_decode_row(row) for row in rows]


def highest_id(connection: Connection) -> int:
    """Return the highest id of an entry, 0 without entries."""
    return connection.execute(select(func.max(calendar.c.id))).scalar() or 0


def find_mismatches(connection: Connection, replayed: Mapping[int, CalendarEntry]) -> Iterator[str]:
    """Yield a message for each entry that a replay gives otherwise than it is stored."""
    stored = {entry.id: entry for entry in read_entries(connection)}
    for id in sorted(stored.keys() | replayed.keys()):
        if stored.get(id) != replayed.get(id):
            name = (stored.get(id) or replayed[id]).name or "a series"
            yield f"calendar entry {id} ({name}) is stored otherwise than it is replayed"


def _encode_row(entry: CalendarEntry) -> dict[str, Any]:
    row = structs.asdict(entry)
    return row | {name: msgspec.json.encode(row[name]).decode() for name in _JSON_COLUMNS}


def _decode_row(row: Mapping[Any, Any]) -> CalendarEntry:
    values = {str(name): value for name, value in row.items()}
    decoded = {name: msgspec.json.decode(values[name]) for name in _JSON_COLUMNS}
    return msgspec.convert(values | decoded, CalendarEntry)
