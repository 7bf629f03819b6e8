"""Submission keys in both databases: separate by user, replaced and removed when old."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metasched.core.events import DaemonStarted, JobSubmitted
from metasched.core.scheduler import Core
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.pruning import PruningPass
from metasched.db.store import Database
from metasched.db.submission_keys import KEYS_PER_TRANSACTION, Receipt, SubmissionKey
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload
from metasched.policies.policy import Policy

NOW = 1_800_000_000.0


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    opened = Ledger(database.open())
    yield opened
    opened.close()


class Submissions:
    """Stores jobs with receipts, as the daemon does."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._core = ledger, Core()
        ledger.restore(self._core, 100)
        started = DaemonStarted(
            NOW, ledger.identity(NOW).instance, Policy(), (Cluster(name="left", adapter="local"),)
        )
        ledger.record([(started, self._core.step(started))])

    def store(self, key: SubmissionKey, time: float) -> int:
        """Store a job and its answer; return the id."""
        job = Job(id=self._ledger.next_job(1), submitted=time, estimated=60.0, user=key.user)
        event = JobSubmitted(time, job)
        payload = Payload(script="", output="/o")
        self._ledger.record(
            [(event, self._core.step(event))],
            [StoredJob(job=job, script="s", environment="e", payload=payload)],
            {"s": "#!/bin/sh\n", "e": "{}"},
            Receipt(key, time, lambda: {"jobs": [job.id]}),
        )
        return job.id


def test_a_key_belongs_to_its_user_and_its_day(ledger: Ledger) -> None:
    submissions = Submissions(ledger)
    of_ada, of_bob = (SubmissionKey(user, "k", f"body of {user}") for user in ("ada", "bob"))
    assert ledger.find_submission(of_ada, 0.0) is None
    first = submissions.store(of_ada, NOW)
    assert ledger.find_submission(of_bob, 0.0) is None
    second = submissions.store(of_bob, NOW + 10)
    assert ledger.find_submission(of_ada, NOW) == ("body of ada", {"jobs": [first]})
    assert ledger.find_submission(of_ada, NOW + 1) is None
    third = submissions.store(of_ada, NOW + 20)  # expired, but not pruned
    assert ledger.find_submission(of_ada, NOW + 20) == ("body of ada", {"jobs": [third]})
    assert ledger.find_submission(of_bob, NOW) == ("body of bob", {"jobs": [second]})


def test_old_keys_are_removed_in_portions(ledger: Ledger) -> None:
    submissions = Submissions(ledger)
    keys = [SubmissionKey("ada", f"k{n}", "body") for n in range(KEYS_PER_TRANSACTION + 2)]
    for number, key in enumerate(keys):
        submissions.store(key, NOW + number)

    def left() -> list[SubmissionKey]:
        return [key for key in keys if ledger.find_submission(key, 0.0)]

    end = NOW + KEYS_PER_TRANSACTION + 1
    pruning = PruningPass(0.0, end)
    assert ledger.prune_portion(pruning)
    assert len(left()) == 2
    assert ledger.prune_portion(pruning)
    assert left() == keys[-1:]
    assert not ledger.prune_portion(pruning)
