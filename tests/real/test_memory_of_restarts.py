"""Memory of a start on a filled database: no more than the state that it restores.

What a start takes for a moment stays with the process for its life: the new state lies above it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from metasched.config.reading import load_settings
from metasched.core.events import (
    CoreEvent,
    DaemonStarted,
    JobSubmitted,
    Outcome,
    TimerExpired,
)
from metasched.core.scheduler import Core
from metasched.daemon.policy_activation import activate_scheduled
from metasched.daemon.service import Daemon, SchedulerService
from metasched.db.backends import database_at
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.schema import checkpoint
from metasched.db.store import Database, StorageFailed
from metasched.model.cluster import Cluster
from metasched.model.job import Job, Payload
from metasched.policies.policy import Policy

NOW = 1_000_000.0
ARRAYS, TASKS = 20, 250  # below `REMAINDER_MINIMUM`: each task is an object
# of what stays: pages of rows, and a job as stored
MOMENTARY = 0.3
GROWTH = 1.05  # of a restored state over that before; equal texts are objects of their own
LONG = "x" * 2000  # a name: a text of the job that all of its tasks share


def started(ledger: Ledger) -> Core:
    """Restore a core from the database, and start it."""
    core = Core()
    ledger.restore(core, 100)
    instance, clusters = ledger.identity(NOW).instance, (Cluster(name="left", adapter="local"),)
    event = DaemonStarted(NOW, instance, Policy(), clusters)
    ledger.record([(event, core.step(event))])
    return core


def submit_arrays(core: Core, ledger: Ledger, number: int) -> None:
    for _ in range(number):
        id = ledger.next_job(TASKS)
        job = Job(id=id, submitted=NOW, estimated=60.0, array=f"1-{TASKS}", name=LONG)
        event = JobSubmitted(NOW, job)
        stored = StoredJob(job=job, script="s", environment="e", payload=Payload(script=""))
        ledger.record([(event, core.step(event))], [stored], {"s": "#!/bin/sh\n", "e": "{}"})


def traced(make: Callable[[], Core]) -> tuple[int, int]:
    """Return the bytes of the core that `make` returns, and those that were taken at most."""
    gc.collect()
    tracemalloc.start()
    try:
        core = make()
        _, most = tracemalloc.get_traced_memory()
        gc.collect()
        stays, _ = tracemalloc.get_traced_memory()
        assert len(core.tasks) == ARRAYS * TASKS
    finally:
        tracemalloc.stop()
    return stays, most


def test_a_start_takes_the_memory_of_the_state_that_it_restores(database: Database) -> None:
    ledger = Ledger(database.open())
    submit_arrays(started(ledger), ledger, 1)  # SQLAlchemy keeps its statements

    def filled() -> Core:
        core = started(ledger)
        submit_arrays(core, ledger, ARRAYS - 1)
        return core

    before, _ = traced(filled)
    with ledger._transaction() as connection:
        connection.execute(checkpoint.delete())  # the next start stores one again
    stays, most = traced(lambda: started(ledger))
    assert most < (1 + MOMENTARY) * stays
    assert stays < GROWTH * before
    ledger.close()


def test_a_failed_service_is_freed_before_the_next_whose_state_no_collection_examines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metasched.daemon.service.RESTART_DELAY", 0.01)
    cluster = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 1\n'
    (tmp_path / "metasched.toml").write_text(f'[daemon]\ndatabase = "sqlite:///ms.db"\n{cluster}')
    settings = load_settings(tmp_path / "metasched.toml")
    former: list[weakref.ref[SchedulerService]] = []
    alive: list[int] = []  # services, at each restoration
    examined: list[int] = []  # objects that a full collection examines, after each start
    restored = asyncio.Event()

    class FailingLedger(Ledger):
        disk_full = False

        def restore(self, core: Core, window: int) -> None:
            alive.append(sum(reference() is not None for reference in former))
            self.disk_full = False
            super().restore(core, window)
            restored.set()

        def _write_steps(self, steps: Sequence[tuple[CoreEvent, Outcome]]) -> None:
            if self.disk_full:
                raise StorageFailed("disk full")
            super()._write_steps(steps)

    async def fail_repeatedly() -> None:
        ledger = FailingLedger(database_at(settings.database_url).open())
        daemon = Daemon(settings, lambda: ledger, activate_scheduled)
        running = asyncio.create_task(daemon.run())
        for _ in range(3):
            await restored.wait()
            restored.clear()
            assert daemon.service is not None
            examined.append(len(gc.get_objects()))
            former.append(weakref.ref(daemon.service))
            ledger.disk_full = True
            with contextlib.suppress(StorageFailed):
                await daemon.service.apply_events(TimerExpired(time.time()))
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        ledger.close()

    gc.disable()  # by chance it would be early enough
    try:
        asyncio.run(fail_repeatedly())
    finally:
        gc.enable()
        gc.unfreeze()
    assert alive == [0, 0, 0]
    # modules have a hundred thousand; a full collection of these takes 60 ms
    assert max(examined) < 0.1 * len(gc.get_objects())
