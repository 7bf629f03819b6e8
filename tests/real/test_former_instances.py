"""Names of a database in its tags: of new databases and of restored backups."""

from __future__ import annotations

from sqlalchemy import text

from metasched.core.events import DaemonStarted
from metasched.core.scheduler import Core
from metasched.db.instances import MARK_BACKUP
from metasched.db.ledger import Ledger
from metasched.db.store import Database
from metasched.model.cluster import Cluster
from metasched.policies.policy import Policy

NOW = 1_000_000.0


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


def test_a_new_database_has_a_name_that_stays(database: Database) -> None:
    first = start(database, NOW)
    assert first == start(database, NOW + 1)
    assert (list(first[0].values()), first[1]) == ([0], False)


def test_a_restored_backup_gets_a_name_of_its_own(database: Database) -> None:
    former, _ = start(database, NOW)
    engine = database.open()
    with engine.begin() as connection:
        connection.execute(text(MARK_BACKUP.format(schema="", time=NOW + 1)))
    engine.dispose()
    first_dispatches, restored = start(database, NOW + 2)
    assert restored
    assert list(first_dispatches.values()) == [0, 0]  # nothing was dispatched
    assert list(first_dispatches)[:1] == list(former)
    assert start(database, NOW + 3) == (first_dispatches, False)
