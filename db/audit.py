"""Audit records in SQL: stored in the caller's transaction, read in pages, pruned by age.

An id is the time of its record in microseconds since the epoch, or the last id plus 1 if
that is larger. So ids are in the order of commits, and a range of times is a range of ids: each
filter is a range of an index in the order of a page, whatever the number of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Select, delete, func, insert, or_, select

from metasched.db.schema import audit, audit_condition
from metasched.model.audit import PUBLIC, AuditRecord

TICKS = 1_000_000  # ids per second
_INSERT = insert(audit)
# PostgreSQL's planner would rather read and sort a whole range than follow its index to a page
_PLAN_IN_ORDER = select(
    *(
        func.set_config(name, "off", True)
        for name in ("enable_seqscan", "enable_bitmapscan", "enable_sort", "jit")
    )
)
# most seconds that a record may be stored late, or that the clock may have been set back, if
# `until` is to find the record
MAX_LAG = 3600.0


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Which records a listing shows. Times are epoch seconds; None: any."""

    since: float | None = None
    until: float | None = None  # exclusive
    user: str | None = None  # who acted, or whom it concerns
    cluster: str | None = None
    job: int | None = None
    kind: str | None = None
    visible_to: str | None = None  # a user who is no operator; None: an operator


def first_id(moment: float) -> int:
    """Return the lowest id of a record of this time or later."""
    return max(int(moment * TICKS), 0)


def store(connection: Connection, records: Iterable[AuditRecord], last_id: int) -> int:
    """Store records after those up to `last_id`; return the last id now."""
    rows = []
    for record in records:
        last_id = max(last_id + 1, first_id(record.time))
        rows.append(
            {
                "id": last_id,
                "time": record.time,
                "kind": record.kind.value,
                "actor": record.actor,
                "owner": record.owner,
                "job": record.job,
                "task_index": record.task,
                "reservation": record.reservation,
                "cluster": record.cluster,
                "licence": record.licence,
                "cause": record.cause,
                "count": record.count,
                "details": msgspec.json.encode(record.details).decode(),
            }
        )
    if rows:
        connection.execute(_INSERT, rows)
    return last_id


def store_conditions(connection: Connection, changed: Mapping[str, str]) -> None:
    """Store changed conditions by subject; "" removes the condition."""
    for subject, value in changed.items():
        connection.execute(delete(audit_condition).where(audit_condition.c.subject == subject))
        if value:
            connection.execute(insert(audit_condition).values(subject=subject, value=value))


def read_conditions(connection: Connection) -> dict[str, str]:
    """Return the stored conditions by subject."""
    rows = connection.execute(select(audit_condition))
    return {row.subject: row.value for row in rows}


def last_id(connection: Connection, visible_to: str | None = None) -> int:
    """Return the id of the newest record that a user may see (None: an operator); 0: none."""
    if visible_to is None:
        return connection.execute(select(func.max(audit.c.id))).scalar() or 0
    newest = (
        connection.execute(select(func.max(audit.c.id)).where(audit.c.owner == owner)).scalar()
        for owner in (visible_to, PUBLIC)
    )
    return max(id or 0 for id in newest)


def read_page(
    connection: Connection,
    audit_filter: AuditFilter,
    span: tuple[int, int],
    limit: int,
    *,
    newest: bool = False,
) -> list[dict[str, Any]]:
    """Return the first `limit` records that pass a filter, or the last, by id.

    `span`: their ids are above the first, and at most the second.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_PLAN_IN_ORDER)  # for this transaction
    ranges: list[Iterator[dict[str, Any]]] = []
    for condition in _index_ranges(audit_filter):
        query = _in_span(select(audit).where(*condition), audit_filter, span)
        order = audit.c.id.desc() if newest else audit.c.id
        rows = connection.execute(query.order_by(order).limit(limit)).mappings().all()
        ranges.append(map(dict, rows))
    merged = merge(*ranges, key=lambda row: row["id"], reverse=newest)
    page = list(islice(merged, limit))
    return page[::-1] if newest else page


def _in_span(query: Select[Any], audit_filter: AuditFilter, span: tuple[int, int]) -> Select[Any]:
    lowest, last = span[0] + 1, span[1]
    if audit_filter.since is not None:
        lowest = max(lowest, first_id(audit_filter.since))  # no id is below its time
        query = query.where(audit.c.time >= audit_filter.since)
    if audit_filter.until is not None:
        last = min(last, first_id(audit_filter.until + MAX_LAG))
        query = query.where(audit.c.time < audit_filter.until)
    return query.where(audit.c.id >= lowest, audit.c.id <= last)


def _index_ranges(audit_filter: AuditFilter) -> Iterator[list[ColumnElement[bool]]]:
    """Yield conditions of disjoint ranges: the first column is that of an index, others are not.

    A job has few records and a user some; so an index of those is read if possible.
    """
    user, visible_to = audit_filter.user, audit_filter.visible_to
    equal: list[tuple[Column[Any], Any]] = [
        (column, value)
        for column, value in (
            (audit.c.job, audit_filter.job),
            (audit.c.cluster, audit_filter.cluster),
            (audit.c.kind, audit_filter.kind),
        )
        if value is not None
    ]
    if audit_filter.job is not None:
        owner, actor = audit.c.owner + "", audit.c.actor + ""  # no index of these is read
        by_other_fields = [] if user is None else [or_(owner == user, actor == user)]
        if visible_to is not None:
            by_other_fields.append(owner == visible_to)
        (column, value), rest = equal[0], equal[1:]
        yield [column == value, *_unindexed(rest), *by_other_fields]
    elif visible_to is not None:
        # records of others' acts on things without owner are public, but the actor is not
        owners = (visible_to, PUBLIC) if user is None else (visible_to,)
        for name in owners:
            yield [audit.c.owner == name, *_unindexed(equal)]
    elif user is not None:
        yield [audit.c.owner == user, *_unindexed(equal)]
        is_other = func.coalesce(audit.c.owner, PUBLIC) != user
        yield [audit.c.actor == user, is_other, *_unindexed(equal)]
    elif equal:
        (column, value), rest = equal[-1], equal[:-1]  # a kind before a cluster
        yield [column == value, *_unindexed(rest)]
    else:
        yield []


def _unindexed(equal: Iterable[tuple[Column[Any], Any]]) -> list[ColumnElement[bool]]:
    """Return conditions for which no database reads an index."""
    return [column + (0 if isinstance(value, int) else "") == value for column, value in equal]


def prune_batch(connection: Connection, before: float, limit: int) -> int:
    """Delete at most `limit` of the oldest records before a time; return their number.

    The newest record stays: ids continue from it.
    """
    oldest = select(audit.c.id).where(audit.c.id < first_id(before)).order_by(audit.c.id)
    ids = connection.execute(oldest.limit(limit)).scalars().all()
    if not ids:
        return 0
    last = min(ids[-1], last_id(connection) - 1)
    return connection.execute(delete(audit).where(audit.c.id <= last)).rowcount
