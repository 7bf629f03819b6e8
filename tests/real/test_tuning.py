"""Self-optimisation in a real database: restarts and replays change nothing, damage is found."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from sqlalchemy import delete, select, update

from metasched.core.events import DaemonStarted, JobSubmitted
from metasched.core.scheduler import Core
from metasched.db.integrity import CheckResult, check_database
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.schema import digest, tuning, tuning_change
from metasched.db.store import Database
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload
from metasched.model.tuning import TuningChange
from metasched.policies.policy import Policy, SelfOptimisation

NOW = 1_000_000.0
PARAMETER = "base-span"
TUNED = Policy(self_optimising={PARAMETER: SelfOptimisation(history=20)})
TEXT = digest("")


class Daemon:
    """Core and ledger, connected as in the daemon."""

    def __init__(self, ledger: Ledger, policy: Policy = TUNED) -> None:
        self.core, self.ledger = Core(), ledger
        ledger.restore(self.core, policy.window)
        started = DaemonStarted(NOW, "cafe", policy, (Cluster(name="left", adapter="local"),))
        ledger.record([(started, self.core.step(started))])

    def submit(self, *margins: float) -> list[int]:
        """Submit jobs with these margins; return their priorities."""
        priorities = []
        for margin in margins:
            job = Job(
                id=self.ledger.next_job(1),
                submitted=NOW,
                estimated=1e6,
                deadline=NOW + 1e6 + margin,
                user="ada",
            )
            event = JobSubmitted(NOW, job)
            outcome = self.core.step(event)
            payload = Payload(script="", output="/o")
            stored = StoredJob(job=job, script=TEXT, environment=TEXT, payload=payload)
            self.ledger.record([(event, outcome)], [stored], {TEXT: ""})
            priorities.append(outcome.priority)
        return priorities


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    new_ledger = Ledger(database.open())
    yield new_ledger
    new_ledger.close()


def margins(low: float, high: float, number: int = 60) -> list[float]:
    rng = Random(low)
    return [rng.uniform(low, high) for _ in range(number)]


def replay_result(database: Database) -> CheckResult:
    return next(check for check in check_database(database) if check.check == "replay")


def test_a_restart_goes_on_where_it_was(database: Database, ledger: Ledger) -> None:
    first = Daemon(ledger)
    first.submit(*margins(2000, 4000))
    configuration = first.core.state.tuning[PARAMETER].configuration
    assert configuration != (2.0, 2.0)
    restarted = Daemon(ledger)
    assert restarted.core.state.tuning == first.core.state.tuning
    assert restarted.core.classifier.optimisers[0].strategy.configuration == configuration
    restarted.submit(*margins(100, 200))
    assert restarted.core.state.tuning[PARAMETER].configuration != configuration
    assert replay_result(database).ok, replay_result(database)


def test_explanation_of_a_job_has_the_change_before_it(ledger: Ledger) -> None:
    daemon = Daemon(ledger)
    daemon.submit(*margins(2000, 4000))
    [change, *_] = [
        row.job for row in ledger._engine.connect().execute(select(tuning_change)).all()
    ]
    assert ledger.tuning_in_force(change) == []  # it was classified by the old configuration
    [recorded] = ledger.tuning_in_force(change + 1)
    assert recorded.change.before == (2.0, 2.0)
    assert recorded.job == change


def test_another_policy_ends_self_optimisation(database: Database, ledger: Ledger) -> None:
    tuned = Daemon(ledger)
    tuned.submit(*margins(2000, 4000))
    before = tuned.core.state.tuning[PARAMETER].configuration
    plain = Daemon(ledger, Policy())
    assert plain.core.state.tuning == {}
    plain.submit(300.0)
    [recorded] = ledger.tuning_in_force(61)
    assert recorded.change == TuningChange(PARAMETER, before, ())
    assert Daemon(ledger).core.state.tuning[PARAMETER].configuration == (2.0, 2.0)
    assert replay_result(database).ok, replay_result(database)


def test_only_the_last_changes_are_stored(
    database: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasched.db.tuning.MAX_CHANGES", 3)
    daemon = Daemon(ledger)
    daemon.submit(*margins(2000, 4000))
    with ledger._engine.begin() as connection:  # a gap, as a refused write leaves
        [newest, *_] = connection.execute(
            select(tuning_change.c.id).order_by(tuning_change.c.id.desc())
        ).scalars()
        older = tuning_change.c.id < newest
        connection.execute(update(tuning_change).where(older).values(id=tuning_change.c.id - 5))
    daemon = Daemon(ledger)
    before = daemon.core.state.tuning[PARAMETER].configuration
    for margin in margins(100, 200):  # until the next change
        if daemon.core.state.tuning[PARAMETER].configuration == before:
            daemon.submit(margin)
    assert daemon.core.state.tuning[PARAMETER].configuration != before
    with ledger._engine.connect() as connection:
        assert len(connection.execute(select(tuning_change)).all()) == 3
    assert replay_result(database).ok, replay_result(database)


def test_a_check_of_the_database_notices_damage(database: Database, ledger: Ledger) -> None:
    Daemon(ledger).submit(*margins(2000, 4000))
    assert replay_result(database).ok, replay_result(database)
    with ledger._engine.begin() as connection:
        connection.execute(
            update(tuning).values(state='{"parameter":"base-span","configuration":[3.0,2.0]}')
        )
    assert "base-span is 3, 2 by 0 jobs, the replay has" in replay_result(database).text
    Daemon(ledger)  # stores what it read
    with ledger._engine.begin() as connection:
        connection.execute(delete(tuning_change))
    assert "0 changes by self-optimisation are stored" in replay_result(database).text
