"""Names of a database in its tags: of new, restored and upgraded databases, on both databases."""

from __future__ import annotations

from alembic import command
from sqlalchemy import text

from metasched.core.events import DaemonStarted
from metasched.core.scheduler import Core
from metasched.db.ledger import Ledger
from metasched.db.store import Database, migration_config
from metasched.model.cluster import Cluster
from metasched.policies.policy import Policy

NOW = 1_000_000.0


def create_previous(database: Database, *statements: str) -> None:
    """Create the database with the schema before `first_dispatch`, and run the statements."""
    config, engine = migration_config(), database.new_engine()
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        database.begin_upgrade(connection)
        command.upgrade(config, "0018")
        for statement in statements:
            connection.execute(text(statement))
        connection.commit()
    engine.dispose()


def start(database: Database, at: float) -> tuple[dict[str, int], bool]:
    """Start a daemon; return its first dispatch ids by name, and whether it is the first start."""
    ledger, core = Ledger(database.open()), Core()
    try:
        ledger.restore(core, 100)
        identity = ledger.identity(at)
        event = DaemonStarted(
            at,
            identity.instance,
            Policy(),
            (Cluster(name="left", adapter="local"),),
            first_dispatches=identity.first_dispatches,
            restored=identity.restored,
        )
        ledger.record([(event, core.step(event))])
        assert core.instance == identity.instance
    finally:
        ledger.close()
    return dict(identity.first_dispatches), identity.restored


def names(instance: str, created: float) -> str:
    return f"INSERT INTO instance (name, created) VALUES ('{instance}', {created})"


def test_a_new_database_has_a_name_that_stays(database: Database) -> None:
    first = start(database, NOW)
    assert first == start(database, NOW + 1)
    assert (list(first[0].values()), first[1]) == ([0], False)


def test_an_upgrade_keeps_the_name(database: Database) -> None:
    create_previous(database, names("old", NOW))
    assert start(database, NOW + 1) == ({"old": 0}, False)


def test_a_backup_of_the_previous_release_is_followed_by_its_old_name(database: Database) -> None:
    create_previous(database, names("old", NOW), names("new", NOW + 1))
    first_dispatches, restored = start(database, NOW + 2)
    assert restored
    assert list(first_dispatches.values()) == [0, 1]
    assert "old" in first_dispatches
    assert "new" not in first_dispatches
    assert start(database, NOW + 3) == (first_dispatches, False)


def test_a_backup_that_the_previous_release_served_keeps_its_newest_name(
    database: Database,
) -> None:
    event = f"INSERT INTO event (id, time, kind, data) VALUES (1, {NOW + 2}, 'x', '')"
    create_previous(database, names("old", NOW), names("new", NOW + 1), event)
    engine = database.open()
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM event"))
    engine.dispose()
    assert start(database, NOW + 3) == ({"new": 0}, False)


def test_a_downgrade_names_a_backup(database: Database) -> None:
    create_previous(database, names("old", NOW), names("new", NOW + 1))
    with database.acquire_writer() as writer_lock:
        database.downgrade(writer_lock.connection)
        query = text("SELECT COUNT(*) FROM instance WHERE name <> ''")
        assert writer_lock.connection.execute(query).scalar() == 2
