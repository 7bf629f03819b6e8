"""Strikes and the words of attempts without an answer in SQL: a start has them again."""

from __future__ import annotations

from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    DispatchAccepted,
    DispatchStarted,
    DispatchUncertain,
    JobSubmitted,
    ListingReceived,
)
from metasched.core.scheduler import Core
from metasched.core.strikes import Strike
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.store import Database
from metasched.model.cluster import Cluster
from metasched.model.job import Payload
from metasched.policies.policy import Policy
from tests.unit.core_site import NOW, facts, job

SAID = "Unspecified error"


def started(at: float) -> DaemonStarted:
    return DaemonStarted(at, "cafe", Policy(), (Cluster(name="left", adapter="local"),))


def listing(at: float) -> ListingReceived:
    return ListingReceived(at, "left", info=facts(8), full=True, until=at)


def test_a_start_has_strikes_and_words_again(database: Database) -> None:
    ledger, core = Ledger(database.open()), Core()

    def step(*events: CoreEvent) -> None:
        for event in events:
            stored = []
            if isinstance(event, JobSubmitted):
                payload = Payload(script="", output="/o")
                stored = [StoredJob(job=event.job, script="s", environment="e", payload=payload)]
            texts = {"s": "#!/bin/sh\n", "e": "{}"} if stored else {}
            ledger.record([(event, core.step(event))], stored, texts)

    step(started(NOW), listing(NOW))
    step(JobSubmitted(NOW, job(1, user="a")), DispatchStarted(NOW, 1, 1))
    step(DispatchUncertain(NOW, 1, 1, "?", SAID), listing(NOW + 30))
    step(JobSubmitted(NOW + 35, job(2, user="b")), DispatchStarted(NOW + 35, 2, 1))
    step(DispatchUncertain(NOW + 40, 2, 1, "?", "no"))
    ledger.close()
    ledger, core = Ledger(database.open()), Core()
    try:
        ledger.restore(core, 100)
        assert list(core.state.strikes) == [
            Strike(1, "left", 1, SAID, NOW + 30, 60.0, NOW + 90),
            Strike(2, "left", 0, "no", 0.0, 60.0, NOW + 100),  # other tasks wait for the look
        ]
        assert core.tasks[2, 0].live_attempt.sentence == "no"
        step(started(NOW + 50), listing(NOW + 200))
        strikes = {strike.job: (strike.count, strike.sentence) for strike in core.state.strikes}
        assert strikes == {1: (1, SAID), 2: (1, "no")}
        step(DispatchStarted(NOW + 201, 1, 2), DispatchAccepted(NOW + 201, 1, 2, {0: "7"}))
        assert [strike.job for strike in core.state.strikes] == [2]
    finally:
        ledger.close()
    ledger, core = Ledger(database.open()), Core()
    try:
        ledger.restore(core, 100)
        assert [strike.job for strike in core.state.strikes] == [2]
    finally:
        ledger.close()
