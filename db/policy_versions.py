"""Versions of the policy in SQL, each with the event that put it in force.

`store` works in the transaction of that event: a crash leaves both or neither.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, delete, func, insert, select

from metasched.db.recovery import EVENT_TYPES
from metasched.db.schema import change, event, job, policy_version
from metasched.model.policy_version import PolicyChange, PolicyVersion, text_digest

MAX_VERSIONS = 1000  # rows; older versions are deleted
_PORTION = 16  # rows that are read at a time


class PolicyHistory:
    """Which version was in force at an event."""

    def __init__(self, starts: Sequence[tuple[int, int]]) -> None:
        """`starts` are pairs of event and version, in their order."""
        self._events = [event for event, _ in starts]
        self._numbers = [number for _, number in starts]

    def version_at(self, event: int) -> int | None:
        """Return the version in force; None: it is not known any more, or was not recorded yet."""
        position = bisect_right(self._events, event)
        return self._numbers[position - 1] if position else None


def store(connection: Connection, version: PolicyVersion, event_id: int) -> None:
    """Store a version that comes into force with an event; nothing if it is stored already."""
    highest = connection.execute(select(func.max(policy_version.c.number))).scalar() or 0
    if version.number > highest:
        connection.execute(insert(policy_version).values(**asdict(version), event=event_id))
        oldest = version.number - MAX_VERSIONS
        connection.execute(delete(policy_version).where(policy_version.c.number <= oldest))


def read_newest(connection: Connection) -> PolicyVersion | None:
    """Return the version in force; None: none was recorded yet."""
    newest_first = select(policy_version).order_by(policy_version.c.number.desc())
    row = connection.execute(newest_first.limit(1)).first()
    return None if row is None else _version(row)


def read_version(connection: Connection, number: int) -> PolicyVersion | None:
    """Return a version; None: there is none, or it was deleted."""
    query = select(policy_version).where(policy_version.c.number == number)
    row = connection.execute(query).first()
    return None if row is None else _version(row)


def read_newest_first(connection: Connection, limit: int) -> Iterator[PolicyVersion]:
    """Yield versions, a few in memory at a time: a text may have 64 KiB."""
    query = select(policy_version).order_by(policy_version.c.number.desc()).limit(limit)
    rows = connection.execution_options(yield_per=_PORTION).execute(query)
    yield from map(_version, rows)


def read_history(connection: Connection) -> PolicyHistory:
    """Return from which event on each version was in force."""
    columns = select(policy_version.c.event, policy_version.c.number)
    rows = connection.execute(columns.order_by(policy_version.c.number)).all()
    return PolicyHistory([(row.event, row.number) for row in rows])


class DecisionsOfTask(NamedTuple):
    """What decided about a task, as far as it is recorded."""

    priority: int | None  # version that decided its priority
    placement: int | None  # version that decided its last placement
    cause: str = ""  # of its last dispatch; "": none


def decisions_of_task(connection: Connection, id: int, index: int) -> DecisionsOfTask:
    """Return what decided about a task."""
    priority = connection.execute(select(job.c.policy_version).where(job.c.id == id)).scalar()
    sent = connection.execute(
        select(change.c.event, change.c.cause)
        .where(change.c.job == id, change.c.task_index == index, change.c.task_event == "send")
        .order_by(change.c.id.desc())
        .limit(1)
    ).first()
    if sent is None:
        return DecisionsOfTask(priority, None)
    return DecisionsOfTask(priority, read_history(connection).version_at(sent.event), sent.cause)


def find_mismatches(connection: Connection) -> list[str]:
    """Return what disagrees with the events, of those that are still stored, and with the jobs."""
    problems = []
    rows = connection.execute(
        select(policy_version, event.c.kind, event.c.data)
        .join_from(policy_version, event, event.c.id == policy_version.c.event)
        .order_by(policy_version.c.number)
    )
    for row in rows:
        started = msgspec.json.decode(row.data, type=EVENT_TYPES[row.kind])
        digest = text_digest(row.text) if row.file else ""
        stored = (getattr(started, "policy_version", 0), getattr(started, "policy_digest", ""))
        if stored != (row.number, digest):
            problems.append(f"policy version {row.number} is not that of event {row.event}")
    newest = connection.execute(select(func.max(policy_version.c.number))).scalar() or 0
    later = connection.execute(select(func.max(job.c.policy_version))).scalar() or 0
    if later > newest:
        problems.append(f"jobs have policy version {later}, the newest is {newest}")
    return problems


def _version(row: Row[Any]) -> PolicyVersion:
    values = {name: value for name, value in row._mapping.items() if name != "event"}
    return PolicyVersion(**{**values, "change": PolicyChange(row.change)})
