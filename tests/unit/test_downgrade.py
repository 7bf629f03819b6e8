"""Downgrade from the newest schema to that of the previous release."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from metasched.db.schema import PREVIOUS_REVISION, REVISION
from metasched.db.sqlite import Sqlite
from metasched.db.store import migration_config


def schema_of(connection: Connection) -> dict[str, object]:
    """Return columns, indexes and checks by table; the checks' order differs between migrations."""
    inspector = inspect(connection)
    return {
        table: (
            [(column["name"], str(column["type"])) for column in inspector.get_columns(table)],
            sorted(str(index["name"]) for index in inspector.get_indexes(table)),
            sorted(check["sqltext"] for check in inspector.get_check_constraints(table)),
        )
        for table in inspector.get_table_names()
    }


def test_every_newer_migration_can_be_taken_back() -> None:
    scripts = ScriptDirectory.from_config(migration_config())
    newer = list(scripts.iterate_revisions(REVISION, PREVIOUS_REVISION))
    lacking = [script.revision for script in newer if not hasattr(script.module, "downgrade")]
    assert lacking == [], "the previous release could not be started again after an upgrade"


def test_a_downgrade_gives_the_schema_of_the_previous_release(tmp_path: Path) -> None:
    previous, present = Sqlite(tmp_path / "previous.db"), Sqlite(tmp_path / "present.db")
    config = migration_config()
    engine = previous.new_engine()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        previous.begin_upgrade(connection)
        command.upgrade(config, PREVIOUS_REVISION)
        connection.commit()
        expected = schema_of(connection)
    engine.dispose()
    with present.acquire_writer() as writer_lock:
        assert present.read_revision(writer_lock.connection) == REVISION
        present.downgrade(writer_lock.connection)
        assert present.read_revision(writer_lock.connection) == PREVIOUS_REVISION
        assert schema_of(writer_lock.connection) == expected
    present.open().dispose()  # upgrades again
