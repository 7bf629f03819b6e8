"""Strikes in SQL, in the caller's transaction: they change with the attempts that cause them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs
from sqlalchemy import Connection, bindparam, delete, insert, select

from metasched.core.events import Outcome
from metasched.core.strikes import Strike
from metasched.db.schema import strike

_DELETE = delete(strike).where(
    strike.c.job == bindparam("b_job"), strike.c.cluster == bindparam("b_cluster")
)


def store(connection: Connection, outcomes: Iterable[Outcome]) -> None:
    """Store the last versions of changed strikes."""
    changed: dict[tuple[int, str], Strike | None] = {}
    for outcome in outcomes:
        changed |= outcome.strikes
    if not changed:
        return
    keys = [{"b_job": job, "b_cluster": cluster} for job, cluster in changed]
    connection.execute(_DELETE, keys)
    if rows := [structs.asdict(each) for each in changed.values() if each is not None]:
        connection.execute(insert(strike), rows)


def read_all(connection: Connection) -> list[Strike]:
    """Return all strikes."""
    rows = connection.execute(select(strike).order_by(strike.c.job, strike.c.cluster)).mappings()
    return [Strike(**row) for row in rows]
