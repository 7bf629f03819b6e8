"""The shell round the core: database, workers, timers.

Every event goes one way: the core steps, one transaction stores the event with all that followed
(`Ledger.record`), and only then is anything done in the world. What is to be done is in the
states themselves: an attempt `dispatching` is a send intended, its `intent` a wish to withdraw.
Just before a send is made `Tried` is stored. Hence a crash between any two steps is harmless:
before the commit nothing happened; after it the next start reads the same intents; an untried
send is made, one that was tried is looked for in a listing first, a withdrawal is idempotent.
A transaction that fails is treated as such a crash: the engine is thrown away and started again
from the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

from metasched.clock import ClockStepDetector
from metasched.config.settings import Settings
from metasched.core.events import (
    ClockSet,
    CoreEvent,
    DaemonStarted,
    JobSubmitted,
    Outcome,
    TimerExpired,
)
from metasched.core.scheduler import Core
from metasched.core.tasks import TaskId
from metasched.daemon.cluster_connection import MAX_POLL_INTERVAL, ClusterConnection
from metasched.daemon.licence_monitor import LicenceMonitor
from metasched.daemon.mail import Mailer
from metasched.daemon.manager_start_times import ExpectedStart
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.store import StorageFailed
from metasched.model.tags import parse_tag

log = logging.getLogger("metasched")

PRUNE_INTERVAL = 3600.0  # seconds between looks for jobs that ended too long ago to be kept
PRUNE_PAUSE = 0.1  # seconds between two portions of them
DATABASE_CHECK_INTERVAL = 10.0  # seconds between looks whether the database is there
RESTART_DELAY = 2.0  # seconds before an engine that broke is started again


class SchedulerService:
    """One life of the scheduler, from the database as it stands to a stop or a failed write."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings, self.ledger = settings, ledger
        self.core = Core()
        self._clock_detector = ClockStepDetector()
        self.state_changed = asyncio.Event()
        self.connections = {
            cluster.cluster.name: ClusterConnection(self, cluster) for cluster in settings.clusters
        }
        self.licence_monitors = [
            LicenceMonitor(
                self, server, [pool for pool in settings.licences if pool.server == server.name]
            )
            for server in settings.licence_servers
        ]
        self.mailer = Mailer(settings.mail_program, ledger)
        self._timers_changed = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ledger.restore(self.core, settings.policy.window)
        now = time.time()
        self.apply_events(
            DaemonStarted(
                now,
                ledger.instance(now),
                settings.policy,
                tuple(cluster.cluster for cluster in settings.clusters),
                pools=settings.licences,
            )
        )

    def apply_events(
        self,
        *events: CoreEvent,
        stored: Sequence[StoredJob] = (),
        new_texts: Mapping[str, str] | None = None,
    ) -> list[Outcome]:
        """Let events happen: step, store in one transaction, then act. StorageFailed: none did."""
        if self._failure.done():
            raise StorageFailed("the last write failed; starting again from the database")
        if clock_step := self._clock_detector.detect_step():
            log.warning("the clock was set by %+.0f s", clock_step)
            events = (ClockSet(time.time(), clock_step), *events)
        try:
            outcomes = [self.core.step(event) for event in events]
            self.ledger.record(list(zip(events, outcomes, strict=True)), stored, new_texts)
        except Exception as error:
            # the core is ahead of the database now: this engine is at its end
            if not self._failure.done():
                self._failure.set_exception(error)
            raise
        for outcome in outcomes:
            for warning in outcome.warnings:
                log.warning("%s", warning)
            for action in outcome.actions:
                self.connections[action.cluster].enqueue(action)
            for binding in outcome.reservation_actions:
                self.connections[binding.cluster].reservation_sync.enqueue(binding)
                self.connections[binding.cluster].poll_soon()
            self.mailer.check_outcome(outcome)
        if any(isinstance(event, JobSubmitted) for event in events):
            for connection in self.connections.values():
                connection.poll_soon()
        self._timers_changed.set()
        previous_signal, self.state_changed = self.state_changed, asyncio.Event()
        previous_signal.set()
        return outcomes[1:] if clock_step else outcomes

    def is_owner(self, tag: str, owner: str) -> bool:
        """Whether that account owns the job of a tag, if jobs have owners here."""
        return self.settings.launcher is None or self.owner_of(tag) == owner

    def owner_of(self, tag: str) -> str:
        """The user to whom the job of a tag belongs; "" if it was never stored."""
        dispatch = parse_tag(tag, self.core.instance)
        if dispatch is None:
            return ""
        if tasks := self.core.tasks_of(dispatch[0]):
            return tasks[0].job.user
        return self.ledger.owner(dispatch[0]) or ""

    def expected_start(self, task_id: TaskId) -> ExpectedStart | None:
        """When a task's manager expects it to begin. May be called from any thread."""
        task = self.core.tasks.get(task_id)
        attempt = None if task is None else task.attempt
        connection = None if attempt is None else self.connections.get(attempt.cluster)
        return (
            None
            if attempt is None or connection is None
            else connection.start_times.expected_start(task_id, attempt)
        )

    async def run(self) -> None:
        """Run all clusters and timers until cancelled, or until an event could not be taken."""
        async with asyncio.TaskGroup() as group:
            for connection in self.connections.values():
                group.create_task(connection.run(), name=connection.name)
            for monitor in self.licence_monitors:
                group.create_task(monitor.run(), name=f"licence server {monitor.settings.name}")
            group.create_task(self.mailer.run(), name="mail")
            group.create_task(self._run_timers())
            group.create_task(self._prune())
            group.create_task(self._check_database())
            await self._failure

    async def _prune(self) -> None:
        """Forget what ended long ago, a little at a time."""
        while True:
            while self.ledger.prune(time.time() - self.settings.retention):
                await asyncio.sleep(PRUNE_PAUSE)
            await asyncio.sleep(min(PRUNE_INTERVAL, self.settings.retention))

    async def _check_database(self) -> None:
        """An idle daemon writes nothing, and should know all the same that it could not."""
        while True:
            await asyncio.sleep(DATABASE_CHECK_INTERVAL)
            self.ledger.check_active()

    async def _run_timers(self) -> None:
        while True:
            self._timers_changed.clear()
            due = self.core.next_due
            if due is not None and due <= time.time():
                step_started = time.monotonic()
                self.apply_events(TimerExpired(time.time()))
                # between the portions of a large array all others have as much time
                await asyncio.sleep(time.monotonic() - step_started)
                continue
            timeout = None if due is None else min(due - time.time(), MAX_POLL_INTERVAL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._timers_changed.wait()


class Daemon:
    """The engine, restarted after a failed write, and what the API needs to reach it."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings, self.ledger, self.started = settings, ledger, time.time()
        self.service: SchedulerService | None = None
        self.unavailable_reason = "the daemon starts"  # why there is no engine
        self.database_unavailable = False  # the database, as far as has been told
        self.stopping = False

    def stop(self) -> None:
        """Let go of those who wait for news: the end is near."""
        self.stopping = True
        if self.service is not None:
            self.service.state_changed.set()

    async def run(self) -> None:
        """Until it is cancelled. Busy: another daemon has the database by now."""
        while True:
            await self._await_database()
            try:
                self.service = SchedulerService(self.settings, self.ledger)
                await self.service.run()
            except* StorageFailed as storage_errors:
                self.database_unavailable = True
                self.unavailable_reason = (
                    f"the database is away or takes no write ({_first_error(storage_errors)})"
                )
            except* Exception:
                self.unavailable_reason = "the daemon starts again after an error, see its log"
                log.exception("a defect; the engine starts again from the database")
            self.service = None
            log.error("%s; starting again from the database", self.unavailable_reason)
            await asyncio.sleep(RESTART_DELAY)

    async def _await_database(self) -> None:
        """Wait until the database can be written to."""
        logged_reason = ""
        while True:
            try:
                # a server that does not answer must not keep us from answering
                await asyncio.to_thread(self.ledger.acquire_lock)
            except StorageFailed as error:
                self.database_unavailable = True
                self.unavailable_reason = f"the database is away ({error})"
                if self.unavailable_reason != logged_reason:
                    log.error("%s; it is tried every %g s", self.unavailable_reason, RESTART_DELAY)
                logged_reason = self.unavailable_reason
                await asyncio.sleep(RESTART_DELAY)
            else:
                if self.database_unavailable:
                    log.info("the database is back")
                self.database_unavailable = False
                return


def _first_error(group: BaseExceptionGroup[StorageFailed]) -> BaseException:
    """An error out of a group, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
