"""Runs the entries of the site's calendar, each run once.

The core stores which run an entry waits for. This module computes times and acts:
- A drain or resume is stored in the transaction that records its run. So there are both, or none.
- A backup, a removal of old rows or a change of the policy happens outside of the core. That it has
  begun is stored first (`CalendarEntry.running`). After a crash it is done again, which changes
  nothing further: a copy has the name of its run.
- Of missed runs the last happens, late, if it is not later than `grace`. The others
  are recorded as skipped.
- A limit of a licence lasts: once begun, it takes effect as soon as the daemon knows of it.
- If the clock was set back, an entry waits for the next run that has not happened yet. Limits of
  licences of the days between hold again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from metasched.config.settings import CalendarSettings
from metasched.core.calendar_events import CalendarEntryRemoved, CalendarEntrySet, CalendarRun
from metasched.core.events import ClusterDrained, ClusterResumed, CoreEvent
from metasched.daemon.backup_threads import BackupThreads, EntryRun
from metasched.daemon.backups import write_backup
from metasched.daemon.calendar_limits import describe_conflict, limits_of
from metasched.daemon.host import SchedulerHost
from metasched.daemon.scheduled_policies import (
    PolicyNotActivated,
    PolicyRunSkipped,
    ScheduledPolicies,
)
from metasched.db.backends import database_at
from metasched.db.store import StorageFailed, StoreError
from metasched.model.audit import AuditKind, AuditRecord
from metasched.model.calendar import (
    MAX_COUNTED,
    MAX_REMEMBERED_RUNS,
    ActivatePolicy,
    BackUpDatabase,
    CalendarEntry,
    DrainCluster,
    LimitLicence,
    ResumeCluster,
    RunResult,
)
from metasched.model.reservation import OPEN_STATES, Reservation
from metasched.times.clock import ClockStepDetector
from metasched.times.recurrence import Recurrence, parse_recurrence

log = logging.getLogger("metasched")

MAX_SLEEP = 10.0  # seconds between looks at the clock, which may be set
SLOW_AFTER = 3600.0  # seconds after which a run that has not ended is reported
PUNCTUAL = 60.0  # seconds; a run that is later has a remark


class RunPlan(NamedTuple):
    """What to do about an entry that is due. Times are epoch seconds."""

    run: float | None  # nominal time of the run that happens; None: all are too late
    first: float  # nominal time of the first run since the last report
    skipped: int  # number of runs that do not happen any more, `MAX_COUNTED` at the most
    last_skipped: float | None  # nominal time, if several are skipped
    next_run: float | None  # nominal time of the first run after now


@lru_cache(maxsize=1024)
def recurrence_of(rule: str, zone: str) -> Recurrence:
    """Return the rule of a stored entry."""
    return parse_recurrence(rule, zone)


def plan_runs(entry: CalendarEntry, now: float) -> RunPlan:
    """Return the run up to now that happens, and when the next is due. Pure.

    The entry must be due.
    """
    rule, first = recurrence_of(entry.rule, entry.zone), entry.next_run
    assert first is not None
    last = first
    later = rule.next_after(first)
    if later is not None and later <= now:
        last = rule.last_until(first, now)
        while last > first and last in entry.last_runs:  # before the clock was set back
            last = rule.last_until(first, last - 1)
    next_run = rule.next_after(max(now, last))
    while next_run is not None and next_run in entry.last_runs:
        next_run = rule.next_after(next_run)
    if now - last > entry.grace:
        count = rule.count(first, last, MAX_COUNTED)
        return RunPlan(None, first, count, last if count > 1 else None, next_run)
    count = 0 if last == first else max(rule.count(first, last, MAX_COUNTED) - 1, 1)
    return RunPlan(last, first, count, None, next_run)


def next_unrepeated(entry: CalendarEntry, now: float) -> float | None:
    """Return the first time after now at which the entry has not run yet; None: never. Pure.

    Of a limit, that of now counts as well, unless it has begun.
    """
    rule, last_runs = recurrence_of(entry.rule, entry.zone), entry.last_runs
    begin = now
    if isinstance(entry.act, LimitLicence):
        begin = max(
            now - entry.act.duration, *(moment for moment in last_runs if moment <= now), 0.0
        )
    if len(last_runs) == MAX_REMEMBERED_RUNS:
        begin = max(begin, last_runs[0])  # of earlier runs it is not known whether they happened
    moment = rule.next_after(begin)
    while moment is not None and (moment in last_runs or moment == entry.running):
        moment = rule.next_after(moment)
    return moment


class RunsOutside(NamedTuple):
    """Runs outside of the core, which outlive the service that began them."""

    backups: BackupThreads
    policies: ScheduledPolicies

    def forget(self, run: EntryRun) -> None:
        """Forget a run whose result is stored."""
        self.backups.forget(run)
        self.policies.forget(run)


class CalendarRunner:
    """Keeps the entries of the site's file in step with the ledger, and runs them."""

    def __init__(
        self, host: SchedulerHost, prune: Callable[[], Awaitable[str]], outside: RunsOutside
    ) -> None:
        """`prune` deletes old rows and returns their numbers as text."""
        self._host, self._prune, self._outside = host, prune, outside
        self._changed, self._begun = asyncio.Event(), asyncio.Event()
        self._clock, self._pruning = ClockStepDetector(), asyncio.Lock()

    def wake(self) -> None:
        """Look at the entries again, which have changed."""
        self._changed.set()
        self._begun.set()

    async def run(self) -> None:
        """Start runs when they are due, until cancelled. StorageFailed if any is not stored."""
        await self.take_over_file()
        await self.correct_for_clock()  # which may have been set back before this start
        while True:
            self._changed.clear()
            await self.start_due_runs()
            awaited = (e.next_run for e in self._entries() if e.running is None)
            due = min((moment for moment in awaited if moment is not None), default=math.inf)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(due - time.time(), 0.0), MAX_SLEEP)):
                    await self._changed.wait()
            if self._clock.detect_step() < 0:
                await self.correct_for_clock()

    async def run_outside(self) -> None:
        """Do and finish the runs that have begun outside of the core, until cancelled.

        Each run has a task of its own: the folder of a copy may hang. StorageFailed if a result
        cannot be stored.
        """
        tasks: dict[EntryRun, asyncio.Task[None]] = {}
        try:
            while True:
                self._begun.clear()
                for run in [run for run, task in tasks.items() if task.done()]:
                    tasks.pop(run).result()
                for entry in self._entries():
                    if entry.running is not None:
                        run = EntryRun(entry.id, entry.running)
                        if run not in tasks:
                            tasks[run] = asyncio.create_task(self.finish_run(entry))
                            tasks[run].add_done_callback(lambda _: self._begun.set())
                await self._begun.wait()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def take_over_file(self) -> None:
        """Make the stored entries those of the site's file."""
        now = time.time()
        events = list(self._changes_of_file(now))
        reservations = self._licence_holders()
        limited = [
            event.entry
            for event in events
            if isinstance(event, CalendarEntrySet) and isinstance(event.entry.act, LimitLicence)
        ]
        if reservations and limited:
            conflicts = await asyncio.to_thread(_find_conflicts, limited, reservations)
            # an entry may have run meanwhile
            events = [_with_conflict(e, conflicts) for e in self._changes_of_file(now)]
        if events:
            await self._host.apply_events(*events)

    def _licence_holders(self) -> list[Reservation]:
        """Return the open reservations with licences."""
        return [
            reservation
            for reservation in self._host.core.reservations.by_id.values()
            if reservation.state in OPEN_STATES and reservation.licences
        ]

    async def correct_for_clock(self) -> None:
        """Let entries run sooner whose next run is later than it has to be."""
        if events := list(self._corrections(time.time())):
            await self._host.apply_events(*events)

    async def start_due_runs(self) -> None:
        """Start the run of each entry that is due, or record that it is skipped."""
        now = time.time()
        due = [
            entry
            for entry in self._entries()
            if entry.next_run is not None and entry.next_run <= now and entry.running is None
        ]
        if not due:
            return
        plans = await asyncio.to_thread(lambda: [plan_runs(entry, now) for entry in due])
        # in the order of their times: of a drain and its end that were missed, the end comes last
        planned = sorted(
            zip(plans, due, strict=True), key=lambda pair: (pair[0].run or 0.0, pair[1].id)
        )
        for plan, entry in planned:
            if self._host.core.calendar.entries.get(entry.id) is entry:
                await self._host.apply_events(*self._events_of(entry, plan, now))

    def _entries(self) -> list[CalendarEntry]:
        """Return the entries of the site."""
        entries = self._host.core.calendar.entries.values()
        return [entry for entry in entries if not entry.is_series]

    def _changes_of_file(self, now: float) -> Iterator[CoreEvent]:
        """Yield how the stored entries become those of the file."""
        stored = {entry.name: entry for entry in self._entries()}
        for settings in self._host.settings.calendar:
            before = stored.pop(settings.name, None)
            if before is None:
                yield CalendarEntrySet(now, self._new_entry(settings, now), cause="new")
            elif _terms(before) != _terms(settings):
                after = structs.replace(
                    before, **{name: getattr(settings, name) for name in _TERMS}
                )
                is_other_act = type(before.act) is not type(settings.act)
                if is_other_act:
                    after = structs.replace(after, running=None, last_runs=())
                is_limit = isinstance(settings.act, LimitLicence)
                is_other_rule = (before.rule, before.zone) != (settings.rule, settings.zone)
                if is_other_rule and is_limit:  # limits of the old rule have ended
                    after = structs.replace(after, last_runs=_runs_of_rule(after))
                if is_other_rule or (is_other_act and is_limit):
                    after = structs.replace(after, next_run=next_unrepeated(after, now))
                yield CalendarEntrySet(now, after, cause="changed")
        for entry in stored.values():
            yield CalendarEntryRemoved(now, entry.id, cause="removed")

    def _new_entry(self, settings: CalendarSettings, now: float) -> CalendarEntry:
        entry = CalendarEntry(
            id=self._host.ledger.next_reservation(),
            name=settings.name,
            act=settings.act,
            rule=settings.rule,
            zone=settings.zone,
            created=now,
            grace=settings.grace,
        )
        return structs.replace(entry, next_run=next_unrepeated(entry, now))

    def _corrections(self, now: float) -> Iterator[CoreEvent]:
        """Yield the entries that may run sooner, since the clock was set back."""
        for entry in self._entries():
            corrected = entry
            if isinstance(entry.act, LimitLicence):  # of these the core knows the last run only
                corrected = structs.replace(
                    entry, last_runs=tuple(run for run in entry.last_runs if run <= now)
                )
            sooner = next_unrepeated(corrected, now)
            if sooner is None or (entry.next_run is not None and entry.next_run <= sooner):
                continue
            after = structs.replace(corrected, next_run=sooner)
            yield CalendarEntrySet(now, after, cause="the clock was set back")

    def _events_of(self, entry: CalendarEntry, plan: RunPlan, now: float) -> list[CoreEvent]:
        """Return the events of the runs that are due, and of those that are skipped."""
        events: list[CoreEvent] = []
        if plan.skipped:
            cause = "a later run was due as well"
            if plan.run is None:
                cause = f"the daemon did not run for more than {entry.grace:.0f} s"
            after = plan.next_run if plan.run is None else plan.run
            events.append(
                CalendarRun(
                    now,
                    entry.id,
                    plan.first,
                    RunResult.SKIPPED,
                    after,
                    cause,
                    last=plan.last_skipped,
                    count=plan.skipped,
                )
            )
        if plan.run is not None:
            events += self._run_events(entry, plan.run, plan.next_run, now)
        return events

    def _run_events(
        self, entry: CalendarEntry, due: float, next_run: float | None, now: float
    ) -> list[CoreEvent]:
        """Return the events of a run: those of its act, or that it begins outside of the core."""
        remarks = [f"{now - due:.0f} s late"] if now - due > PUNCTUAL else []
        act, run_result, acts = entry.act, RunResult.DONE, list[CoreEvent]()
        if isinstance(act, LimitLicence):
            remarks = []  # the core follows from the run itself until when
        elif not isinstance(act, DrainCluster | ResumeCluster):
            run_result = RunResult.STARTED
        else:
            drain = self._host.core.find_drain(act.cluster)
            if isinstance(act, DrainCluster) and drain is None:
                acts.append(
                    ClusterDrained(
                        now, act.cluster, "", act.reason, act.keep_pending, entry=entry.name
                    )
                )
            elif isinstance(act, DrainCluster):
                remarks.append(f"it is {drain} already")
            elif drain is None:
                remarks.append("it was not drained")
            elif drain.entry:
                acts.append(ClusterResumed(now, act.cluster))
            else:
                remarks.append(f"it stays {drain}")
        return [CalendarRun(now, entry.id, due, run_result, next_run, "; ".join(remarks)), *acts]

    async def finish_run(self, entry: CalendarEntry) -> None:
        """Do the run of an entry that has begun, and record the result."""
        due, run_result = entry.running, RunResult.DONE
        assert due is not None
        run = EntryRun(entry.id, due)
        slow = asyncio.get_running_loop().call_later(SLOW_AFTER, self._note_slow, entry, due)
        try:
            if isinstance(entry.act, BackUpDatabase):
                database, act = database_at(self._host.settings.database_url), entry.act
                cause = await self._outside.backups.write(
                    run,
                    lambda: write_backup(database, Path(act.folder), entry.name, due, act.copies),
                )
            elif isinstance(entry.act, ActivatePolicy):
                cause = await self._outside.policies.put_in_force(
                    run, entry.act.file, entry.name, due + entry.grace
                )
            else:
                async with self._pruning:
                    cause = await self._prune()
        except PolicyRunSkipped as error:
            run_result, cause = RunResult.SKIPPED, str(error)
        except (StoreError, StorageFailed, PolicyNotActivated) as error:
            run_result, cause = RunResult.FAILED, str(error)
        finally:
            slow.cancel()
        await self._host.apply_events(
            CalendarRun(time.time(), entry.id, due, run_result, cause=cause)
        )
        self._outside.forget(run)

    def _note_slow(self, entry: CalendarEntry, due: float) -> None:
        """Record, once for a run, that it has not ended for long."""
        record = AuditRecord(
            time=time.time(),
            kind=AuditKind.CALENDAR_SLOW,
            cause=f"{entry.describe()}: not done after {SLOW_AFTER:.0f} s; later runs wait for it",
            details={"entry": entry.name, "due": due},
        )
        self._host.note_condition(record, f"calendar {entry.name}", f"slow {due:.0f}")


def _runs_of_rule(entry: CalendarEntry) -> tuple[float, ...]:
    """Return the last runs that its present rule has, too."""
    rule = recurrence_of(entry.rule, entry.zone)
    return tuple(moment for moment in entry.last_runs if rule.next_after(moment - 1.0) == moment)


def _find_conflicts(
    entries: Iterable[CalendarEntry], reservations: Sequence[Reservation]
) -> dict[str, str]:
    """Return by name of an entry which reservations lose licences that they were promised."""
    licences = {name for reservation in reservations for name in reservation.licences}
    until = max(reservation.until for reservation in reservations)
    limits = limits_of(entries, licences, until)
    return {limit.name: describe_conflict(limit, reservations) for limit in limits}


def _with_conflict(event: CoreEvent, conflicts: Mapping[str, str]) -> CoreEvent:
    """Add the conflict with reservations to the record of an entry, if it has a conflict."""
    if isinstance(event, CalendarEntrySet) and (conflict := conflicts.get(event.entry.name)):
        return structs.replace(event, cause=f"{event.cause}; {conflict}")
    return event


_TERMS = ("act", "rule", "zone", "grace")  # keys of an entry in the site's file


def _terms(entry: CalendarEntry | CalendarSettings) -> tuple[object, ...]:
    return tuple(getattr(entry, name) for name in _TERMS)
