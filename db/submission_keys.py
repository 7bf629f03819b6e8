"""Idempotency keys of submissions, stored in the transactions of their jobs.

A key belongs to its user. Its row is written only together with new jobs and is smaller than
theirs, so keys cannot use more space than the jobs of the last day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, bindparam, delete, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from metasched.db.schema import submission_key

KEY_LIFETIME = 86400.0  # seconds for which a key is kept
KEYS_PER_TRANSACTION = 100


@dataclass(frozen=True)
class SubmissionKey:
    """The key of a submission."""

    user: str
    key: str  # unique among the user's
    body_digest: str


@dataclass(frozen=True)
class Receipt:
    """The answer of a submission, to be stored under its key."""

    key: SubmissionKey
    time: float  # epoch seconds
    answer: Callable[[], Any]  # the answer as JSON values; called once the core has stepped


_VALUES = ("body_digest", "created", "answer")


def _upsert(insert: Callable[[Table], Any]) -> Any:
    new = insert(submission_key)
    return new.on_conflict_do_update(
        index_elements=["user", "key"], set_={name: new.excluded[name] for name in _VALUES}
    )


_UPSERT = {"sqlite": _upsert(sqlite.insert), "postgresql": _upsert(postgresql.insert)}
_FIND = select(
    submission_key.c.body_digest, submission_key.c.answer, submission_key.c.created
).where(submission_key.c.user == bindparam("b_user"), submission_key.c.key == bindparam("b_key"))


def store(connection: Connection, receipt: Receipt) -> None:
    """Store a receipt; it replaces an expired receipt of the same key."""
    key = receipt.key
    row = {
        "user": key.user,
        "key": key.key,
        "body_digest": key.body_digest,
        "created": receipt.time,
    }
    row["answer"] = msgspec.json.encode(receipt.answer()).decode()
    connection.execute(_UPSERT[connection.dialect.name], row)


def find(connection: Connection, key: SubmissionKey, after: float) -> tuple[str, Any] | None:
    """Return digest of the body and answer of the submission with a key, or None.

    Submissions before `after` (epoch seconds) do not count.
    """
    row = connection.execute(_FIND, {"b_user": key.user, "b_key": key.key}).first()
    if row is None or row.created < after:
        return None
    return row.body_digest, msgspec.json.decode(row.answer)


def prune_batch(connection: Connection, before: float) -> int:
    """Delete some keys older than a time (epoch seconds); return their number."""
    table = submission_key
    keys = tuple_(table.c.user, table.c.key)
    old = (
        select(table.c.user, table.c.key)
        .where(table.c.created < before)
        .limit(KEYS_PER_TRANSACTION)
    )
    return connection.execute(delete(table).where(keys.in_(old))).rowcount
