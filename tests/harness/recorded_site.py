"""A ledger with a long history: what a daemon would have stored of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from metasched.core.events import CoreEvent, JobSubmitted, Outcome
from metasched.core.scheduler import Core
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.store import Database
from metasched.laboratory.simulate.engine import Schedule, Simulation
from metasched.model.job import Payload

STEPS_OF_A_GROUP = 500  # of a transaction
TEXTS = {"s": "#!/bin/sh\n", "e": "{}"}


def record(simulation: Simulation, database: Database) -> Schedule:
    """Run a simulation; store each of its events in a new ledger."""
    with recording(simulation.core, database):
        return simulation.run()


@contextmanager
def recording(core: Core, database: Database) -> Iterator[None]:
    """Store each step of a core in a new ledger, unless an error ends them."""
    ledger = Ledger(database.open())
    ledger.restore(core, 100)
    step, numbers = core.step, count()

    def step_and_store(event: CoreEvent) -> Outcome:
        outcome = step(event)
        jobs = [_stored(event)] if isinstance(event, JobSubmitted) else []
        ledger.add_to_group([(event, outcome)], jobs, TEXTS)
        if next(numbers) % STEPS_OF_A_GROUP == 0:
            ledger.commit_group()
        return outcome

    core.step = step_and_store  # type: ignore[method-assign]
    try:
        yield
        ledger.commit_group()
    finally:
        ledger.close()


def _stored(event: JobSubmitted) -> StoredJob:
    payload: Any = Payload(script="", output="/dev/null")
    return StoredJob(job=event.job, script="s", environment="e", payload=payload)
