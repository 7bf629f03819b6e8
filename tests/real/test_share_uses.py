"""Decayed use in a real database: stored with its cause, read exactly, checked by a replay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import update

from metasched.core.events import CoreEvent, DaemonStarted, SharesReported, UseReported
from metasched.core.scheduler import Core
from metasched.db.integrity import CheckResult, check_database
from metasched.db.ledger import Ledger
from metasched.db.schema import share_use
from metasched.db.store import Database, RowsRejected
from metasched.model.cluster import Cluster
from metasched.model.fair_share import FairShareSettings, ForeignUse, ShareTree, ShareUse
from metasched.policies.policy import Policy

NOW = 1_000_000.0
HALF_LIFE = 1000.0
TREE = ShareTree(users={"ada": 3.0})


class Daemon:
    """Core and ledger, connected as in the daemon."""

    def __init__(self, ledger: Ledger, now: float = NOW) -> None:
        self.core, self.ledger = Core(), ledger
        ledger.restore(self.core, 100)
        clusters = (Cluster(name="left", adapter="local"),)
        fair_share = FairShareSettings(half_life=HALF_LIFE, shares_from="left")
        self.take(DaemonStarted(now, "cafe", Policy(), clusters, fair_share=fair_share))

    def take(self, event: CoreEvent) -> None:
        self.ledger.record([(event, self.core.step(event))])

    def report(self, now: float, cursor: str, *uses: tuple[str, float]) -> None:
        reported = [
            ForeignUse(user=user, processor_seconds=seconds, ended=now - 7.0)
            for user, seconds in uses
        ]
        self.take(UseReported(now, "left", cursor, tuple(reported)))


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    new_ledger = Ledger(database.open())
    yield new_ledger
    new_ledger.close()


def replay_result(database: Database) -> CheckResult:
    return next(check for check in check_database(database) if check.check == "replay")


def test_use_cursor_and_tree_survive_a_restart_exactly(database: Database, ledger: Ledger) -> None:
    first = Daemon(ledger)
    assert ledger.use_cursors() == {}
    first.take(SharesReported(NOW, "left", TREE))
    first.report(NOW + 1, "10", ("ada", 1 / 3), ("bob", 1e9 + 0.1))
    first.report(NOW + 400, "20", ("ada", 0.7))
    assert ledger.use_cursors() == {"left": "20"}
    second = Daemon(ledger, NOW + 500)
    assert second.core.fair_share.uses == first.core.fair_share.uses
    assert second.core.fair_share.tree == TREE
    second.report(NOW + 600, "30", ("ada", 5.0))
    # what has decayed to nothing is deleted by the next start
    third = Daemon(ledger, NOW + 25 * HALF_LIFE)
    assert list(third.core.fair_share.uses) == [("", "bob")]
    assert replay_result(database).ok, replay_result(database)


def test_a_check_of_the_database_notices_a_wrong_use(database: Database, ledger: Ledger) -> None:
    daemon = Daemon(ledger)
    daemon.report(NOW, "10", ("ada", 8.0))
    assert replay_result(database).ok
    with ledger._engine.begin() as connection:
        connection.execute(update(share_use).values(used=4.0))
    [stored] = daemon.core.fair_share.uses.values()
    assert replay_result(database).text == (
        f"use of ada is 4 at {stored.as_of:.0f}, the replay has 8 at {stored.as_of:.0f}"
    )


def test_a_refused_write_leaves_the_cursor(ledger: Ledger) -> None:
    """Use and cursor are stored together, or neither is: no job is counted twice."""
    daemon = Daemon(ledger)
    daemon.report(NOW, "10", ("ada", 8.0))
    event = UseReported(NOW, "left", "20")
    outcome = daemon.core.step(event)
    outcome.share_uses["", "ada"] = ShareUse(account="", user="ada", used=-1.0, as_of=NOW)
    with pytest.raises(RowsRejected, match="used"):
        ledger.record([(event, outcome)])
    assert ledger.use_cursors() == {"left": "10"}
