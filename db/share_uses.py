"""Decayed use, positions in accounting, and reported trees of shares in SQL.

`store` works in the caller's transaction: use changes with the tasks and reports that cause it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from sqlalchemy import Connection, Table, delete, insert, select, update

from metasched.core.events import CoreEvent, Outcome, SharesReported, UseReported
from metasched.db.schema import share_tree, share_use, use_cursor
from metasched.model.fair_share import ShareTree, ShareUse


def store(connection: Connection, steps: Sequence[tuple[CoreEvent, Outcome]]) -> None:
    """Store the changed uses, and the uses that the reports among the events add."""
    changed: dict[tuple[str, str], ShareUse | None] = {}
    for event, outcome in steps:
        changed |= outcome.share_uses
        if isinstance(event, UseReported):
            _put(connection, use_cursor, {"cluster": event.cluster}, {"cursor": event.cursor})
        elif isinstance(event, SharesReported):
            tree = msgspec.json.encode(event.tree).decode()
            _put(connection, share_tree, {"cluster": event.cluster}, {"tree": tree})
    for (account, user), use in sorted(changed.items(), key=lambda item: item[0]):
        key = {"account": account, "user": user}
        if use is not None:
            _put(connection, share_use, key, {"used": use.used, "as_of": use.as_of})
            continue
        connection.execute(
            delete(share_use).where(share_use.c.account == account, share_use.c.user == user)
        )


def _put(
    connection: Connection, table: Table, key: dict[str, str], values: dict[str, object]
) -> None:
    """Update the row of a key, or insert it."""
    matches = [table.c[name] == value for name, value in key.items()]
    if not connection.execute(update(table).where(*matches).values(values)).rowcount:
        connection.execute(insert(table).values(**key, **values))


def read_uses(connection: Connection) -> list[ShareUse]:
    """Return the stored uses."""
    return [ShareUse(**row) for row in connection.execute(select(share_use)).mappings()]


def read_trees(connection: Connection) -> dict[str, ShareTree]:
    """Return the trees as reported last, by cluster."""
    rows = connection.execute(select(share_tree)).all()
    return {row.cluster: msgspec.json.decode(row.tree, type=ShareTree) for row in rows}


def read_cursors(connection: Connection) -> dict[str, str]:
    """Return the positions in the accounting of clusters."""
    return {row.cluster: row.cursor for row in connection.execute(select(use_cursor)).all()}


def find_mismatches(connection: Connection, replayed: Iterable[ShareUse]) -> Iterator[str]:
    """Yield a message for each use that differs from that of a replay."""
    stored = {(use.account, use.user): use for use in read_uses(connection)}
    expected = {(use.account, use.user): use for use in replayed}
    for key in sorted(stored.keys() | expected.keys()):
        if stored.get(key) != expected.get(key):
            account, user = key
            of_account = f" in account {account}" if account else ""
            yield f"use of {user}{of_account} is {_describe(stored.get(key))}, " + (
                f"the replay has {_describe(expected.get(key))}"
            )


def _describe(use: ShareUse | None) -> str:
    return "missing" if use is None else f"{use.used:g} at {use.as_of:.0f}"
