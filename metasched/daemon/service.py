"""The scheduler service: the core with its database, cluster connections and timers.

An event is handled in three steps. The core steps, a transaction stores the event with its
outcome, and then the actions start. Events that arrive together share a transaction
(`CommitGroup`). The actions follow from stored states: an attempt in state `dispatching` is to be
dispatched, an attempt with an `intent` is to be withdrawn. `DispatchStarted` is stored just before
a dispatch is written to a worker.

A crash between any two steps is therefore harmless. Before the commit nothing has happened. After
it the next start reads the same states. A dispatch that was not started is made; a started dispatch
is first searched in a listing; withdrawals are idempotent. A failed transaction is treated as a
crash: the service is discarded and started again from the database.

A defect is contained: of a row, a cluster, a licence server or a request only that is set aside
(`quarantine`). If the core failed within a step, its state is half-applied. Then the service starts
again from the database, too, and the source of the event pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from metasched.adapters.protocol import FIRST_CURSOR
from metasched.config.settings import Settings
from metasched.core.events import (
    ClockSet,
    CoreEvent,
    DaemonStarted,
    Outcome,
    TimerExpired,
)
from metasched.core.scheduler import Core
from metasched.core.tasks import TaskId
from metasched.daemon.audit_log import log_record
from metasched.daemon.backup_threads import BackupThreads
from metasched.daemon.calendar_runner import CalendarRunner, RunsOutside
from metasched.daemon.cluster_connection import ClusterConnection
from metasched.daemon.commit_group import CommitGroup
from metasched.daemon.database_probe import DatabaseProbe
from metasched.daemon.database_size import DatabaseSize, Size
from metasched.daemon.forecaster import QUEUED, Forecaster, TaskEstimate
from metasched.daemon.late_settings import log_scheduled_mistakes, settings_after_wait
from metasched.daemon.licence_history import LicenceHistory
from metasched.daemon.licence_monitor import LicenceMonitor
from metasched.daemon.limit_mails import LimitMails
from metasched.daemon.manager_start_times import ExpectedStart
from metasched.daemon.metrics import Metrics
from metasched.daemon.notification_sender import NotificationSender
from metasched.daemon.policy_versions import policy_cause, settle_policy
from metasched.daemon.progress import Progress
from metasched.daemon.quarantine import Quarantine, first_error
from metasched.daemon.scheduled_policies import ScheduledPolicies
from metasched.daemon.series import SeriesPlanner
from metasched.daemon.shadow import ShadowRunner
from metasched.db.backends import database_at
from metasched.db.daily_use import day_of
from metasched.db.ledger import Ledger, StoredJob
from metasched.db.period_use import PeriodPass
from metasched.db.pruning import PruningPass
from metasched.db.store import DatabaseUnreachable, StorageFailed, StorageUncertain
from metasched.db.submission_keys import KEY_LIFETIME, Receipt
from metasched.errors import UserError
from metasched.model.audit import AuditKind, AuditRecord, cleaned
from metasched.model.calendar import PruneDatabase
from metasched.model.job import State
from metasched.model.listing import ListedQueue
from metasched.model.policy_version import PolicyVersion
from metasched.model.shadow import Shadow
from metasched.plug_ins.host import PlugInHost
from metasched.policies.plug_in_ratings import plug_ins_of
from metasched.times.active_until import ACTIVE_SECONDS
from metasched.times.clock import ClockStepDetector

log = logging.getLogger("metasched")

PRUNE_INTERVAL = 3600.0  # seconds between removals of jobs that ended before the retention time
PRUNE_PAUSE = 0.1  # seconds between two transactions of a removal, or of sums
SUM_INTERVAL = 3600.0  # seconds between passes that sum the use of past days
# Seconds that a start or takeover waits for the policy files of the calendar: they may lie on a
# filesystem that hangs, and are only reported.
CALENDAR_CHECK_TIME = 2.0
# Seconds between checks that the database is reachable. A standby takes over from a daemon that
# says nothing to the database for some of them: see `db.postgresql.SILENT_HOLDER`.
DATABASE_CHECK_INTERVAL = 2.0
OUTAGE_LOG_INTERVAL = 60.0  # seconds between log lines about the same outage of the database
RESTART_DELAY = 2.0  # seconds before a failed service is started again
MAX_RESTART_DELAY = 60.0  # seconds, if it fails before it runs
MAX_TIMER_SLEEP = 10.0  # seconds; bounds the effect of a change of the wall clock
NOTICE_PAUSE = 1.0  # seconds between two stores of audit records that no event causes
MAX_AUDIT_LINES = 100  # lines of the log of a kind in a commit


class ReloadRefused(UserError):
    """A changed configuration was not taken over; nothing has changed."""

    exit_code = 1


class ServiceReplaced(StorageFailed):
    """The service ends, since another with changed settings takes its place."""

    def __str__(self) -> str:
        return "the daemon takes over its changed configuration"


# Puts a policy in force in a daemon: text, path, reason; see `ScheduledPolicies`
ActivateText = Callable[["Daemon", str, str, str], Awaitable[PolicyVersion]]


@dataclass(frozen=True)
class _Replacement:
    """Settings for the next service, in place of the service that ends for them."""

    settings: Settings
    by: str
    changes: tuple[str, ...]
    done: asyncio.Future[None]  # once the next service runs; ReloadRefused if it cannot

    def refuse(self, reason: str) -> None:
        """Tell who asked for it, unless that was cancelled."""
        if not self.done.done():
            self.done.set_exception(ReloadRefused(reason))


class SchedulerService:
    """One run of the scheduler, from the stored state to a stop or a failed write."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        quarantine: Quarantine,
        metrics: Metrics,
        progress: Progress,
        runs_outside: RunsOutside,
        reloaded_by: str = "",
        config_changes: tuple[str, ...] = (),
    ) -> None:
        """The last two: who let the daemon read its configuration again, and what changed."""
        self.settings, self.ledger, self.quarantine = settings, ledger, quarantine
        self._metrics, self._progress = metrics, progress
        self.core = Core()
        self._clock_detector = ClockStepDetector()
        self.state_changed = asyncio.Event()
        cursors, use_cursors = ledger.listing_cursors(), ledger.use_cursors()
        self.connections = {
            entry.cluster.name: ClusterConnection(
                self,
                entry,
                cursors.get(entry.cluster.name, FIRST_CURSOR),
                use_cursors.get(entry.cluster.name, ""),
            )
            for entry in settings.clusters
        }
        self.licence_monitors = [
            LicenceMonitor(
                self, server, [pool for pool in settings.licences if pool.server == server.name]
            )
            for server in settings.licence_servers
        ]
        self.notifications = NotificationSender(settings, ledger, self._store_soon)
        self._calendar_runner = CalendarRunner(self, self._prune, runs_outside)
        self._series_planner = SeriesPlanner(self)
        self.forecaster = Forecaster(
            self.core,
            lambda: self.state_changed,
            ledger.recent_runs,
            self._listed_queues,
            notify=self.apply_events,
        )
        self.plug_ins = PlugInHost(plug_ins_of(settings.policy), metrics.count_exclusions)
        self._timers_changed = asyncio.Event()
        self._database_suspected = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._group = CommitGroup(self._commit, self._start_actions)
        with ledger.long_silence():
            ledger.restore(self.core, settings.policy.window)
            now = time.time()
            identity = ledger.identity(now)
            rules = self.notifications.rules(identity.instance)
            ledger.open_outbox(rules, now, restored=identity.restored)
            version = settings.policy_version
            started = DaemonStarted(
                now,
                identity.instance,
                settings.policy,
                tuple(entry.cluster for entry in settings.clusters),
                pools=settings.licences,
                first_dispatches=identity.first_dispatches,
                restored=identity.restored,
                went_back=identity.went_back,
                limits=settings.limits,
                fair_share=settings.fair_share,
                policy_file="" if version is None else version.file,
                policy_digest="" if version is None else version.digest,
                policy_owner="" if version is None else version.by,
                policy_version=0 if version is None else version.number,
                policy_cause=policy_cause(version),
                by=reloaded_by,
                config_changes=config_changes,
                former_acts_until=_former_acts_until(ledger, settings),
            )
            outcome = self.core.step(started)
            ledger.record_start(started, outcome, version)
        with ledger.long_silence():
            self.shadow = ShadowRunner(self.core, settings, ledger, ledger.shadow())
        self.limit_mails = LimitMails(self, self._store_soon) if settings.mail else None
        metrics.service_starts.inc()
        self._start_actions([outcome])

    async def apply_events(
        self,
        *events: CoreEvent,
        stored: Sequence[StoredJob] = (),
        new_texts: Mapping[str, str] | None = None,
        receipt: Receipt | None = None,
    ) -> list[Outcome]:
        """Step the core at once, store the outcomes with the group, then start their actions.

        `stored` are new jobs, `new_texts` their scripts and environments by digest, `receipt` the
        answer to their submission. Nothing else comes between the call and the step.
        StorageFailed if nothing was stored: no action was started.
        """
        self._require_running()
        if clock_step := self._clock_detector.detect_step():
            log.warning("the clock was set by %+.0f s", clock_step)
            events = (ClockSet(time.time(), clock_step), *events)
        try:
            outcomes = [self.core.step(event) for event in events]
            steps = list(zip(events, outcomes, strict=True))
            self.ledger.add_to_group(steps, stored, new_texts, receipt)
        except Exception as error:
            self.fail(error)  # the core is ahead of the database
            self._group.close()  # those before it are stored
            raise
        text_length = sum(map(len, new_texts.values())) if new_texts else 0
        await self._group.add(outcomes, text_length)
        if stored:
            for connection in self.connections.values():
                connection.poll_soon()
        return outcomes[1:] if clock_step else outcomes

    async def _store_soon(self) -> None:
        """Wait until the open transaction is stored. StorageFailed if it is not."""
        await self._group.add([], 0)

    def store_group(self) -> None:
        """Store all that waits for the next commit: the caller relies on stored rows.

        StorageFailed if the service ends, perhaps since that failed.
        """
        self._group.close()
        self._require_running()

    def _require_running(self) -> None:
        if isinstance(self.failure, ServiceReplaced):
            raise ServiceReplaced
        if self._failure.done():
            raise StorageFailed("the last write failed; starting again from the database")

    def _commit(self) -> None:
        try:
            with self._metrics.timed_commit():
                self.ledger.commit_group()
        except Exception as error:
            self.fail(error)
            raise

    def _start_actions(self, outcomes: Sequence[Outcome]) -> None:
        """Start the actions of stored outcomes, and wake up requests that wait for a change."""
        for outcome in outcomes:
            for warning in outcome.warnings:
                log.warning("%s", warning)
            for action in outcome.actions:
                self.connections[action.cluster].enqueue(action)
            for reservation_action in outcome.reservation_actions:
                connection = self.connections[reservation_action.cluster]
                connection.reservation_sync.enqueue(reservation_action)
                connection.poll_soon()
            self.notifications.check_outcome(outcome)
            if self.limit_mails is not None:
                self.limit_mails.check_outcome(outcome)
            if outcome.calendar:
                self._calendar_runner.wake()
                self._series_planner.wake()
            try:
                self._metrics.observe(outcome)
                self.forecaster.observe(outcome)
                self.shadow.observe(outcome)
            except Exception:  # a defect there must not keep actions from their clusters
                log.exception("an outcome is missing in the metrics; please report it")
        self._timers_changed.set()
        previous_signal, self.state_changed = self.state_changed, asyncio.Event()
        previous_signal.set()

    def fail(self, error: BaseException) -> None:
        """End this service because of an error; a first error is kept.

        The API refuses requests from now on, though clusters may take seconds to be closed.
        """
        if not self._failure.done():
            self._failure.set_exception(error)

    @property
    def failure(self) -> BaseException | None:
        """The error that ends the service, if it does."""
        is_failing = self._failure.done() and not self._failure.cancelled()
        return self._failure.exception() if is_failing else None

    def is_owner(self, tag: str, account: str) -> bool:
        """Return whether `account` may own native jobs with this tag; in personal mode always."""
        return self.settings.launcher is None or self.owner_of(tag) == account

    def owner_of(self, tag: str) -> str:
        """Return the user who owns the job of a tag; "" for an unknown tag."""
        dispatch = self.core.instances.parse_tag(tag)
        if dispatch is None:
            return ""
        if tasks := self.core.tasks_of(dispatch[0]):
            return tasks[0].job.user
        return self.ledger.owner(dispatch[0]) or ""

    def expected_start(self, task_id: TaskId) -> ExpectedStart | None:
        """Return when the manager of a task expects it to start. Thread-safe."""
        task = self.core.tasks.get(task_id)
        attempt = None if task is None else task.attempt
        connection = None if attempt is None else self.connections.get(attempt.cluster)
        if attempt is None or connection is None:
            return None
        return connection.start_times.expected_start(task_id, attempt)

    def estimate(self, task_id: TaskId) -> TaskEstimate | None:
        """Return when metasched expects a waiting task to start. Thread-safe."""
        task = self.core.tasks.get(task_id)
        attempt = None if task is None else task.attempt
        if attempt is None:
            held = task is not None and task.state is not State.QUEUED
            return None if held else self.forecaster.estimate(task_id, QUEUED)
        if attempt.state is not State.PENDING:
            return None
        return self.forecaster.estimate(task_id, attempt.cluster)

    def _listed_queues(self) -> dict[str, ListedQueue]:
        """Return the order of pending jobs on each cluster that lists it."""
        return {
            name: queue
            for name, connection in self.connections.items()
            if (queue := connection.queue) is not None
        }

    async def run(self) -> None:
        """Run connections, monitors and timers until cancelled or an event could not be stored."""
        async with asyncio.TaskGroup() as group:
            for connection in self.connections.values():
                group.create_task(connection.run(), name=connection.name)
            for monitor in self.licence_monitors:
                group.create_task(self._contain(f"licence server {monitor.name}", monitor.run))
            group.create_task(self._contain("mail", self.notifications.run_mail))
            if self.limit_mails is not None:
                group.create_task(self._contain("mail of limits", self.limit_mails.run))
            for hook in self.settings.webhooks:
                deliver = partial(self.notifications.run_webhook, hook)
                group.create_task(self._contain(f"webhook {hook.name}", deliver))
            group.create_task(self._contain("audit", self._store_notices))
            group.create_task(self._contain("timers", self._run_timers))
            group.create_task(self._contain("plug-ins", self.plug_ins.run))
            group.create_task(self._contain("expected starts", self.forecaster.run))
            group.create_task(self._contain("policy shadow", self.shadow.run))
            if self.settings.licences:
                history = LicenceHistory(self.core, self.ledger)
                group.create_task(self._contain("history of licences", history.run))
            group.create_task(self._contain("removal of old jobs", self._prune_hourly))
            group.create_task(self._contain("sums of use", self._sum_use_hourly))
            group.create_task(self._contain("calendar", self._calendar_runner.run))
            group.create_task(self._contain("series", self._series_planner.run))
            group.create_task(self._contain("backups", self._calendar_runner.run_outside))
            group.create_task(self._check_database())
            await self._failure

    async def _contain(self, source: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a part of the service; after a defect it pauses and is run again."""
        while True:
            if (pause := self.quarantine.pause_of(source)) is not None:
                await asyncio.sleep(pause.open_until - time.monotonic())
            try:
                return await run()
            except StorageFailed as error:
                self.fail(error)
                raise
            except Exception as error:
                self.quarantine.record(source, error)
                if self.failure is not None:
                    raise

    def note_condition(self, record: AuditRecord, subject: str, value: str) -> None:
        """Record a condition of a subject, "" for well, if it differs from the last record."""
        notices = self.quarantine.notices
        if self.ledger.audit_condition(subject) != value or notices.has_condition(subject):
            notices.set_condition(record, subject, value)

    async def _store_notices(self) -> None:
        """Store audit records that no event causes, at most once in `NOTICE_PAUSE`."""
        notices = self.quarantine.notices
        while True:
            due = notices.next_due
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due and max(due - time.monotonic(), 0.0)):
                    await notices.added.wait()
            self.store_notices()
            await asyncio.sleep(NOTICE_PAUSE)

    def store_notices(self) -> None:
        """Store audit records that no event causes. StorageFailed if they wait further."""
        records, conditions = self.quarantine.notices.take()
        if not (records or conditions):
            return
        try:
            self.store_group()
            self.ledger.record_notices(records, conditions)
            self._commit()
        except StorageFailed as error:
            if not isinstance(error, StorageUncertain):  # else they may be stored
                self.quarantine.notices.put_back(records)
            raise

    def store_act(self, record: AuditRecord) -> None:
        """Store the record of an act that is no event of the core. StorageFailed if it is not."""
        record = cleaned(record)
        self.store_group()
        self.ledger.record_notices([record])
        self._commit()
        log_record(record)

    def start_shadow(self, shadow: Shadow, record: AuditRecord) -> Shadow:
        """Store a candidate policy and its record, then run it. StorageFailed if it is not."""
        record = cleaned(record)
        self.store_group()
        started = replace(shadow, number=self.ledger.start_shadow(shadow, record))
        self._commit()
        log_record(record)
        self.shadow.begin(started)
        return started

    def stop_shadow(self, ended: Shadow, record: AuditRecord) -> None:
        """Store the end of a candidate policy and its record. StorageFailed if it is not."""
        record = cleaned(record)
        self.store_group()
        self.ledger.stop_shadow(ended, record)
        self._commit()
        log_record(record)
        self.shadow.end()

    async def _prune(self) -> str:
        """Delete jobs that ended before the retention time, old keys and others, a few at a time.

        Return the numbers of deleted rows in words. StorageFailed if the database fails; rows that
        were deleted before stay so. A thread deletes them: the loop waits for it no longer than
        for any other writer.
        """
        now = time.time()
        pruning = PruningPass(
            now - self.settings.retention,
            now - KEY_LIFETIME,
            now - self.settings.event_retention,
            now,
        )
        while await asyncio.to_thread(self.ledger.prune_portion, pruning):
            await asyncio.sleep(PRUNE_PAUSE)
        return ", ".join(f"{count} {kind}" for kind, count in pruning.deleted.items())

    async def _prune_hourly(self) -> None:
        """Delete old rows every hour, unless the calendar has times for that."""
        while not any(isinstance(each.act, PruneDatabase) for each in self.settings.calendar):
            try:
                await self._prune()
            except StorageFailed as error:
                log.warning("old jobs are not deleted now: %s", error)
            retention = min(self.settings.retention, self.settings.event_retention)
            await asyncio.sleep(min(PRUNE_INTERVAL, retention))

    async def _sum_use_hourly(self) -> None:
        """Sum the use of days and months that are over, for reports; a period at a time."""
        while True:
            periods = PeriodPass(day_of(time.time()))
            try:
                while await asyncio.to_thread(self.ledger.sum_period, periods):
                    await asyncio.sleep(PRUNE_PAUSE)
            except StorageFailed as error:
                log.warning("the use of past days is not summed now: %s", error)
            await asyncio.sleep(SUM_INTERVAL)

    def check_database_soon(self) -> None:
        """Check the database at once instead of at the next interval: a request failed on it."""
        self._database_suspected.set()

    async def _check_database(self) -> None:
        """Check at intervals that the database accepts writes, since an idle daemon makes none."""
        while True:
            try:
                self.ledger.check_active()
            except StorageFailed as error:
                self.fail(error)
                raise
            self._progress.database = True
            if self.quarantine.pause_of("timers") is not None:  # on purpose, after a defect
                self._progress.timers = True
            self._database_suspected.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATABASE_CHECK_INTERVAL):
                    await self._database_suspected.wait()

    async def _run_timers(self) -> None:
        """Raise `TimerExpired` at the times that the core requests."""
        while True:
            self._progress.timers = True
            self._timers_changed.clear()
            due = self.core.next_due
            if due is not None and due <= time.time():
                step_started = time.monotonic()
                await self.apply_events(TimerExpired(time.time()))
                # a large array expires in portions: leave as much time to other events
                await asyncio.sleep(time.monotonic() - step_started)
                continue
            timeout = MAX_TIMER_SLEEP if due is None else min(due - time.time(), MAX_TIMER_SLEEP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._timers_changed.wait()


class Daemon:
    """The scheduler service, restarted after a failed write, as the API accesses it."""

    def __init__(
        self,
        settings: Settings,
        open_ledger: Callable[[], Ledger],
        activate_text: ActivateText,
    ) -> None:
        """`open_ledger` connects to the database; it may take long and raises StoreError.

        `activate_text` puts the policy of a text in force in this daemon.
        """
        self.settings, self.started = settings, time.time()
        # in policies of the calendar, logged or reported already: they refuse no reload
        self.calendar_mistakes: frozenset[str] = frozenset()
        self._open_ledger = open_ledger
        self._ledger: Ledger | None = None  # None until the database answered
        self.service: SchedulerService | None = None
        self.quarantine = Quarantine()
        self._runs_outside = RunsOutside(
            BackupThreads(), ScheduledPolicies(partial(activate_text, self))
        )
        self.metrics = Metrics()
        self.progress = Progress()
        self.audit_added = asyncio.Event()  # set, and replaced, when audit records are stored
        self.database_probe = DatabaseProbe(lambda: self.ledger.check_readable())
        self.database_size = DatabaseSize(self._measure_database)
        self._stopped_reason = "the daemon starts"  # why `service` is None
        self.database_unavailable = False  # at the last try
        self._outage = ""  # error of the database, as logged last
        self._outage_logged = 0.0  # monotonic seconds
        self.stopping = False
        self.reload_lock = asyncio.Lock()
        self.service_runs = asyncio.Event()
        self._replacement: _Replacement | None = None
        self._taken_back: _Replacement | None = None  # it failed; the next service records that

    @property
    def is_replacing_service(self) -> bool:
        """Whether a service with changed settings is about to run."""
        return self._replacement is not None

    async def replace_service(self, settings: Settings, by: str, changes: tuple[str, ...]) -> None:
        """End the service and run another with these settings.

        ReloadRefused if that cannot run: then another service runs with the former settings.
        """
        assert self.service is not None
        done = asyncio.get_running_loop().create_future()
        self._replacement = _Replacement(settings, by, changes, done)
        self.service_runs.clear()
        self.service.fail(ServiceReplaced())
        await done

    def _measure_database(self) -> Size:
        """Measure the database; called in a thread. StorageFailed or OSError if it fails."""
        database = database_at(self.settings.database_url)
        return Size(self.ledger.measure(database), database.free_bytes())

    @property
    def ledger(self) -> Ledger:
        """The ledger. StorageFailed as long as the database did not answer."""
        if self._ledger is None:
            raise StorageFailed(self._outage)
        return self._ledger

    def try_open(self, waits: bool) -> bool:
        """Open the ledger; return False if the database is away. StoreError for other faults.

        `waits`: time may have passed since the files were read.
        """
        try:
            ledger = self._open_ledger()
        except DatabaseUnreachable as error:
            self._note_outage(error)
            return False
        if waits:
            self.settings = settings_after_wait(self.settings, ledger)
        ledger.on_audit = self._audit_stored
        ledger.on_notices = self._notices_stored
        self._ledger = ledger
        thread = threading.Thread(target=self._note_calendar_mistakes, daemon=True)
        thread.start()
        thread.join(CALENDAR_CHECK_TIME)
        return True

    def _note_calendar_mistakes(self) -> None:
        self.calendar_mistakes = log_scheduled_mistakes(self.settings)

    @property
    def unavailable_reason(self) -> str | None:
        """Why no scheduler service runs, or why it ends; None while it runs."""
        if self.service is None:
            return self._stopped_reason
        return None if self.service.failure is None else _reason_of(self.service.failure)

    @property
    def status_line(self) -> str:
        """The state of the daemon on a line for the service manager, without names of jobs."""
        service, reason = self.service, self.unavailable_reason
        if service is None or reason is not None:
            return reason or self._stopped_reason
        up = sum(not service.core.cluster_status(name)[1] for name in service.connections)
        return f"{up} of {len(service.connections)} clusters are up"

    def _notices_stored(self) -> None:
        """Wake the sender of the present service; the ledger must not keep a former one alive."""
        if self.service is not None:
            self.service.notifications.wake()

    def _audit_stored(self, records: Sequence[AuditRecord]) -> None:
        """Write the lines of stored audit records, and wake up who follows them."""
        written: Counter[AuditKind] = Counter()
        for record in records:
            written[record.kind] += 1
            if written[record.kind] <= MAX_AUDIT_LINES:
                log_record(record)
        for kind, number in written.items():
            if number > MAX_AUDIT_LINES:
                omitted = number - MAX_AUDIT_LINES
                log.warning("%s: %d more at once; see `metasched events`", kind.value, omitted)
        previous_signal, self.audit_added = self.audit_added, asyncio.Event()
        previous_signal.set()

    def close(self) -> None:
        """Store the audit records that wait, before the daemon ends."""
        self.quarantine.notices.close()
        if self.service is not None:
            with contextlib.suppress(StorageFailed):
                self.service.store_notices()

    def stop(self) -> None:
        """Wake up requests that wait for a change of state, since the daemon ends."""
        self.stopping = True
        self.audit_added.set()
        if self.service is not None:
            self.service.state_changed.set()

    async def run(self) -> None:
        """Run until cancelled. DatabaseInUse if another daemon has taken over the database."""
        delay = RESTART_DELAY
        # in a thread: the API must answer while a database server does not
        while self._ledger is None and not await asyncio.to_thread(self.try_open, True):
            await asyncio.sleep(RESTART_DELAY)
        while True:
            await self._await_database()
            gc.unfreeze()
            gc.collect()  # a former service has cycles, and would stay in memory beside the next
            is_replacement = self._replacement is not None
            try:
                self.service = self._new_service()
                delay = RESTART_DELAY
                gc.freeze()  # modules and restored tasks: a full collection of them takes 100 ms
                self.service_runs.set()
                await self.service.run()
            except* ServiceReplaced:
                self._stopped_reason = str(ServiceReplaced())
            except* StorageFailed as storage_errors:
                self.database_unavailable = True
                self._stopped_reason = _reason_of(first_error(storage_errors))
            except* Exception as errors:
                self._stopped_reason = _reason_of(first_error(errors))
                if self.service is None and not is_replacement:  # a restart repeats it
                    log.error("the stored state makes the daemon fail", exc_info=errors)
                    delay = min(2 * delay, MAX_RESTART_DELAY)
            if self.service is not None:
                # requests that wait for a change look at the next service
                self.service.state_changed.set()
            self.service = None
            self.service_runs.clear()
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise asyncio.CancelledError  # a task group that fails at that moment drops it
            if self._replacement is None:
                log.error("%s; starting again from the database", self._stopped_reason)
                await asyncio.sleep(delay)

    def _new_service(self) -> SchedulerService:
        """Return a service from the stored state; with changed settings if those are wanted.

        If it fails with changed settings, the former settings are in force again.
        """
        replacement, self._replacement = self._replacement, None
        failed = self._taken_back
        if replacement is None:
            newest = self.ledger.policy_in_force()
            changes = () if failed is None else self._changes_taken_back(failed, newest)
            settings = settle_policy(self.settings, newest)
            service = SchedulerService(
                settings,
                self.ledger,
                self.quarantine,
                self.metrics,
                self.progress,
                self._runs_outside,
                reloaded_by="" if failed is None else failed.by,
                config_changes=tuple(f"taken back: {change}" for change in changes),
            )
            self._taken_back = None
            self.settings = settings
            return service
        try:
            service = SchedulerService(
                replacement.settings,
                self.ledger,
                self.quarantine,
                self.metrics,
                self.progress,
                self._runs_outside,
                reloaded_by=replacement.by,
                config_changes=replacement.changes,
            )
        except StorageFailed as error:
            replacement.refuse(f"{_reason_of(error)}; try again")
            self._taken_back = replacement
            raise
        except Exception as error:
            self._taken_back = replacement
            reason = f"the daemon cannot run with it ({type(error).__name__}: {error})"
            replacement.refuse(f"{reason}; see its log")
            raise
        self.settings = replacement.settings
        if not replacement.done.done():  # who asked for it may have been cancelled
            replacement.done.set_result(None)
        return service

    def _changes_taken_back(
        self, failed: _Replacement, newest: PolicyVersion | None
    ) -> tuple[str, ...]:
        """Return the settings of a failed service that are not in force; a policy may be stored."""
        changes = failed.changes or ("policy",)
        version = failed.settings.policy_version
        if version == newest and version != self.settings.policy_version:
            return tuple(change for change in changes if change != "policy")
        return changes

    async def _await_database(self) -> None:
        """Wait until the database can be written to."""
        while True:
            try:
                # in a thread, as above
                await asyncio.to_thread(self.ledger.acquire_lock)
            except StorageFailed as error:
                self._note_outage(error)
                if self._replacement is not None:
                    self._replacement.refuse(f"{self._stopped_reason}; try again")
                    self._replacement = None
                await asyncio.sleep(RESTART_DELAY)
            else:
                if self.database_unavailable:
                    log.info("the database is back")
                self.database_unavailable, self._outage = False, ""
                return

    def _note_outage(self, error: Exception) -> None:
        """Log an outage of the database, the same error once a minute: a name may be misspelt."""
        self.database_unavailable = True
        self.progress.note_retry()
        self._stopped_reason = f"the database is away ({error})"
        now = time.monotonic()
        if str(error) != self._outage or now - self._outage_logged > OUTAGE_LOG_INTERVAL:
            log.error("%s; retrying every %g s", self._stopped_reason, RESTART_DELAY)
            self._outage_logged = now
        self._outage = str(error)


def _former_acts_until(ledger: Ledger, settings: Settings) -> float:
    """Return until when calls of the replaced daemon may still reach a manager.

    Its workers begin no call after `ACTIVE_SECONDS`; the last call ends in time.
    """
    if not ledger.taken_over:
        return 0.0
    longest = max((entry.call_timeout for entry in settings.clusters), default=0.0)
    return ledger.taken_over + ACTIVE_SECONDS + longest


def _reason_of(failure: BaseException) -> str:
    """Return why a service ends, as callers of the API read it."""
    if isinstance(failure, StorageFailed):
        return f"the database is away or takes no write ({failure})"
    return "the daemon starts again after an error, see its log"
