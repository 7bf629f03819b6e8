"""A stored dump with a row of each table is upgraded by a later release, and goes back unchanged.

The dump stays as it is when the schema changes: a further schema gets a dump of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, LargeBinary, MetaData, insert, select, text

from metasched.db import downgrade as downgrading
from metasched.db import store
from metasched.db.downgrade import Drop, downgrade
from metasched.db.schema import REVISION, drain
from metasched.db.sqlite import Sqlite
from metasched.db.store import Database, DatabaseInUse, StoreError
from metasched.errors import UserError
from tests.harness import next_release
from tests.harness.next_release import NEXT_REVISION
from tests.harness.reflected_schema import schema_of

FIRST = "s0001"
DUMP: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / f"recorded/rows_of_{FIRST}.json").read_text()
)
SINCE_FIRST = [Drop("attempt", "submitted", 0)]  # dropped by migrations of this release
Rows = dict[str, list[dict[str, Any]]]


def reflected(connection: Connection) -> MetaData:
    """Return the present tables but Alembic's."""
    present = MetaData()
    present.reflect(connection)
    present.remove(present.tables["alembic_version"])
    return present


def stored_rows(connection: Connection) -> Rows:
    """Return all rows of the present tables, as the database reports both."""
    rows = {
        table.name: [dict(row._mapping) for row in connection.execute(select(table))]
        for table in reflected(connection).sorted_tables
    }
    connection.rollback()
    return rows


@pytest.fixture
def dump(database: Database) -> Rows:
    """Load the dump into the database, at its schema; return its rows."""
    config = store.migration_config()
    if isinstance(database, Sqlite):
        database.path.touch()  # no connection does
    engine = database.new_engine()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        database.begin_upgrade(connection)
        command.upgrade(config, FIRST)
        for table in reflected(connection).sorted_tables:
            row = {
                name: bytes.fromhex(value) if isinstance(table.c[name].type, LargeBinary) else value
                for name, value in DUMP[table.name].items()
            }
            connection.execute(table.delete())
            connection.execute(insert(table).values(row))
        connection.commit()
        rows = stored_rows(connection)
    engine.dispose()
    return rows


@pytest.fixture
def at_next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be the later release."""
    monkeypatch.setattr(store, "migration_config", next_release.migration_config)
    for module in (store, downgrading):
        monkeypatch.setattr(module, "REVISION", NEXT_REVISION)
    monkeypatch.setattr(drain.c.entry, "name", "calendar_entry")


@pytest.fixture
def upgraded(database: Database, dump: Rows, at_next_release: None) -> Database:
    """The database with the dump, upgraded by the later release."""
    database.open().dispose()
    return database


def read(database: Database, function: Callable[[Connection], Any]) -> Any:
    engine = database.new_engine()
    with engine.connect() as connection:
        value = function(connection)
    engine.dispose()
    return value


def accept(_: Sequence[Drop]) -> bool:
    return True


def test_the_dump_has_a_row_of_each_table(database: Database, dump: Rows) -> None:
    assert {name: [set(row)] for name, row in DUMP.items()} == {
        name: [set(row) for row in rows] for name, rows in dump.items()
    }


def test_this_release_opens_the_dump(database: Database, dump: Rows) -> None:
    database.open().dispose()
    database.open_existing().dispose()
    assert database.schema_revision() == REVISION


def test_a_dump_goes_up_and_down_again_unchanged(
    database: Database, dump: Rows, at_next_release: None
) -> None:
    first_schema = read(database, schema_of)
    for _ in range(2):
        database.open().dispose()
        assert database.schema_revision() == NEXT_REVISION
        later = read(database, stored_rows)
        assert later["remark"] == [{"cluster": "alpha", "text": DUMP["drain"]["reason"]}]
        assert [row["seen"] for row in later["cluster"]] == [DUMP["cluster"]["time"]]
        [former] = dump["drain"]
        [renamed] = later["drain"]
        assert renamed.pop("calendar_entry") == former["entry"]
        assert renamed == {name: former[name] for name in renamed}
        drops = downgrade(database, FIRST, accept)
        assert drops is not None
        assert set(drops) >= {
            Drop("attempt", "nice", 0),
            Drop("cluster", "seen", 1),
            Drop("job", "colour", 0),
            Drop("note", None, 0),
            Drop("remark", None, 1),
        }
        assert database.schema_revision() == FIRST
        assert read(database, stored_rows) == dump
        assert read(database, schema_of) == first_schema


def test_nothing_changes_unless_it_is_confirmed(upgraded: Database) -> None:
    before, schema = read(upgraded, stored_rows), read(upgraded, schema_of)
    shown: list[Drop] = []

    def decline(drops: Sequence[Drop]) -> bool:
        shown.extend(drops)
        return False

    assert downgrade(upgraded, FIRST, decline) is None
    assert Drop("note", None, 0) in shown
    assert read(upgraded, stored_rows) == before
    assert read(upgraded, schema_of) == schema
    assert upgraded.schema_revision() == NEXT_REVISION


def test_an_earlier_release_would_not_know_tags_with_a_digest(
    database: Database, dump: Rows
) -> None:
    database.open().dispose()
    engine = database.new_engine()
    with engine.begin() as connection:
        dispatch = text("UPDATE attempt SET state = 'running', dispatch_id = dispatch_id + 1")
        connection.execute(dispatch)
    engine.dispose()
    with pytest.raises(StoreError, match="1 dispatched tasks have tags that schema s0002"):
        downgrade(database, FIRST, accept)
    assert database.schema_revision() == REVISION


@pytest.mark.parametrize(
    ("statement", "part"),
    [
        ("UPDATE attempt SET nice = 5", r"attempt\.nice"),
        ("UPDATE job SET colour = 'red'", r"job\.colour"),
        (f"INSERT INTO note VALUES ({DUMP['job']['id']}, 'x')", "note"),
    ],
)
@pytest.mark.parametrize("state", ["dispatching", "running", "unknown"])
def test_what_dispatched_jobs_need_is_not_dropped(
    upgraded: Database, alter: Callable[[str], None], state: str, statement: str, part: str
) -> None:
    alter(f"UPDATE attempt SET state = '{state}'")
    alter(statement)
    before = read(upgraded, stored_rows)
    with pytest.raises(StoreError, match=rf"schema s0001 has no {part}, .* 1 rows .* wait until"):
        downgrade(upgraded, FIRST, accept)
    assert read(upgraded, stored_rows) == before
    assert upgraded.schema_revision() == NEXT_REVISION
    alter("UPDATE attempt SET state = 'completed'")
    assert downgrade(upgraded, FIRST, accept) is not None


@pytest.mark.parametrize("target", ["0015", "s9999", "s00", "", "head", "-1", "base"])
def test_an_unknown_target_is_refused(upgraded: Database, target: str) -> None:
    expected = rf"not known .*; name one of t0001, {REVISION}, .*{FIRST}$"
    with pytest.raises(UserError, match=expected):
        downgrade(upgraded, target, accept)
    assert upgraded.schema_revision() == NEXT_REVISION


def test_only_the_newest_schema_of_a_stopped_daemon_goes_back(
    database: Database, dump: Rows, at_next_release: None
) -> None:
    with pytest.raises(StoreError, match="has schema s0001, this metasched t0001; run"):
        downgrade(database, FIRST, accept)
    assert read(database, stored_rows) == dump
    with database.acquire_writer(), pytest.raises(DatabaseInUse, match="another daemon"):
        downgrade(database, FIRST, accept)
    assert downgrade(database, NEXT_REVISION, accept) == []
    assert database.schema_revision() == NEXT_REVISION


def test_a_downgrade_that_fails_changes_nothing(
    upgraded: Database, alter: Callable[[str], None]
) -> None:
    alter("DROP INDEX ix_attempt_nice")  # the migration would drop it
    before = read(upgraded, stored_rows)
    with pytest.raises(StoreError, match=r"downgrade failed .* nothing is changed; try again"):
        downgrade(upgraded, FIRST, accept)
    assert read(upgraded, stored_rows) == before
    assert upgraded.schema_revision() == NEXT_REVISION


def test_an_upgrade_that_fails_changes_nothing(
    database: Database, dump: Rows, at_next_release: None
) -> None:
    engine = database.new_engine()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (id INTEGER)"))  # the migration would create it
    engine.dispose()
    before, schema = read(database, stored_rows), read(database, schema_of)
    with pytest.raises(StoreError, match=r"migration failed .*; try again"):
        database.open()
    assert read(database, stored_rows) == before
    assert read(database, schema_of) == schema
    assert database.schema_revision() == FIRST
