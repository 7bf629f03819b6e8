"""Series of reservations: makes them, and reserves each occurrence some weeks before its start.

A single event decides an occurrence, and takes the series on to the next (`core.calendar`). So a
crash between two steps neither loses an occurrence nor reserves it twice. While no cluster answers
it is tried again until its start.

An occurrence that is not free, or exceeds the quota of its owner, is refused. Then the following
occurrence is tried. If that is granted, the refused occurrences before it are skipped, by a
single event. If there is none to try yet, the refused are tried again rarely, until their start
has passed. The use by an owner in an hour is bounded: all series take turns in a single task, and
each event is a row that operators see.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import structs

from metasched.core.calendar_events import CalendarEntryRemoved, CalendarEntrySet, CalendarRun
from metasched.core.events import CoreEvent
from metasched.core.reservations.events import ReservationCancelled
from metasched.daemon.calendar_runner import MAX_SLEEP, recurrence_of
from metasched.daemon.reservation_requests import (
    NoClusterNow,
    ReservationHost,
    ReservationTerms,
    check_mail,
    check_quota,
    check_request,
    sharing_accounts,
    survey_and_check,
)
from metasched.errors import ApiError, ParseError
from metasched.model.calendar import (
    MAX_COUNTED,
    MAX_OCCURRENCES,
    MAX_PROMISED,
    MAX_SERIES,
    MIN_INTERVAL,
    CalendarEntry,
    Reserve,
    RunResult,
)
from metasched.model.request_texts import Counts, Name, Names, Word
from metasched.model.reservation import OPEN_STATES
from metasched.model.units import MAX_NUMBER, iso
from metasched.times.recurrence import Recurrence, parse_recurrence

RETRY_PAUSE = 60.0  # seconds until an occurrence is tried again that no cluster could take
MIN_LEAD = 60.0  # seconds before its start at which an occurrence is reserved at the latest
REFUSED_PAUSE = 3600.0  # seconds until refused occurrences are tried again
MAX_RUN = 50  # refused occurrences in a row; then they are skipped
BUDGET_PERIOD = 3600.0  # seconds
MAX_REFUSED = 100  # tries of an owner in a period that are refused
MAX_RECORDS = 10  # events about skipped occurrences of an owner in a period


@dataclass(frozen=True, kw_only=True)
class SeriesTerms:
    """A request of a user; field names as in the body of POST /series."""

    every: Word  # the rule
    until: float  # epoch seconds; no occurrence starts later
    duration: float  # seconds
    least: int  # processors (nodes if `by_node`)
    most: int
    zone: Name | None = None  # of the rule; None: the site's
    by_node: bool = False
    clusters: Names = ()  # to choose from; empty: all
    let_run: float | None = None  # seconds that jobs may run past the end; None: the quota's
    licences: Counts = field(default_factory=dict)
    dry_run: bool = False
    user: Name | None = None  # the owner; None: the caller
    mail: Name = ""  # address for notices
    users: Names = ()  # accounts that share each occurrence
    groups: Names = ()  # their members do, as of the time when it is reserved
    accounts: Names = ()  # of accounting; instead, jobs of these alone may run there

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by the API's validation


class Occurrences(NamedTuple):
    """The occurrences of a series."""

    first: float  # epoch seconds
    number: int


async def make_series(
    host: ReservationHost,
    user: str,
    terms: SeriesTerms,
    by: str,
    in_thread: Callable[[Callable[[], Occurrences]], Awaitable[Occurrences]],
) -> tuple[CalendarEntry, int]:
    """Make a series of `user`; return it with the number of its occurrences.

    `by` requested it. `in_thread` calls a function that takes up to 0.2 s. ApiError if the series
    is refused, and then nothing is stored. With `dry_run` nothing is stored either; the id is 0.
    """
    try:
        rule = parse_recurrence(terms.every, terms.zone or host.settings.zone)
    except ParseError as error:
        raise ApiError(422, f"{error.problem}; {error.fix}") from None
    now = time.time()
    if not now < terms.until <= now + MAX_NUMBER:
        problem = "the last day has passed" if terms.until <= now else "the last day is too far"
        raise ApiError(422, f"{problem}, until; give another")
    quota = host.settings.quota_of(user)
    act = Reserve(
        least=terms.least,
        most=terms.most,
        duration=terms.duration,
        by_node=terms.by_node,
        clusters=terms.clusters,
        let_run=terms.let_run,
        licences=terms.licences,
        mail=terms.mail,
        users=terms.users,
        groups=terms.groups,
        accounts=terms.accounts,
    )
    # a problem of each occurrence is refused now
    check_mail(host, user, terms.mail)
    check_request(host, _terms_of(act, math.ceil(now + MIN_LEAD)), quota)
    check_quota(host.core.reservations, user, terms.by_node, terms.most, quota, None)
    await sharing_accounts(user, terms.users, terms.groups, is_known=False)
    let_run = quota.let_run if terms.let_run is None else terms.let_run
    length = terms.duration + let_run
    first, count = await in_thread(lambda: _check_occurrences(rule, now, terms.until, length))
    series = [e for e in host.core.calendar.entries.values() if e.is_series and e.owner == user]
    if len(series) >= MAX_SERIES:
        problem = f"{user} has {len(series)} series, and may have {MAX_SERIES}"
        raise ApiError(403, f"{problem}; cancel another, see `metasched calendar`")
    entry = CalendarEntry(
        id=0 if terms.dry_run else host.ledger.next_reservation(),
        act=act,
        rule=" ".join(terms.every.split()),
        zone=rule.zone.key,
        owner=user,
        requested_by=by,
        created=now,
        grace=0.0,
        lead=max(min(host.settings.series_ahead, quota.horizon - terms.duration), MIN_LEAD),
        until=terms.until,
        next_run=first,
    )
    if not terms.dry_run:
        cause = f"{entry.rule} {entry.zone} until {iso(entry.until)}"
        await host.apply_events(CalendarEntrySet(time.time(), entry, by, cause))
    return entry, count


async def cancel_series(host: ReservationHost, entry: CalendarEntry, by: str) -> None:
    """Cancel a series with those of its reservations that are open."""
    now = time.time()
    events: list[CoreEvent] = [CalendarEntryRemoved(now, entry.id, by, f"cancelled by {by}")]
    events += [
        ReservationCancelled(now, reservation.id, by)
        for reservation in host.core.reservations.by_id.values()
        if reservation.series == entry.id and reservation.state in OPEN_STATES
    ]
    await host.apply_events(*events)


def _check_occurrences(rule: Recurrence, now: float, until: float, length: float) -> Occurrences:
    """Return the occurrences of a rule from now on.

    ApiError if there is none or are too many, or if an occurrence begins before the end of
    another, `length` seconds after its start.
    """
    first = previous = rule.next_after(now)
    if first is None or previous is None or first > until:
        raise ApiError(422, f"no occurrence until {iso(until)}; give a later end, or another rule")
    count = 1
    while (following := rule.next_after(previous)) is not None and following <= until:
        count += 1
        if count > MAX_OCCURRENCES:
            problem = f"more than {MAX_OCCURRENCES} occurrences until {iso(until)}"
            raise ApiError(422, f"{problem}; give an earlier end, or a rule with fewer")
        if following - previous < MIN_INTERVAL:
            problem = f"occurrences are {MIN_INTERVAL:.0f} s apart or more, but {iso(following)}"
            raise ApiError(422, f"{problem} comes after {iso(previous)}; give another rule")
        if following - previous < length:
            problem = f"an occurrence lasts {length:.0f} s, but after {iso(previous)} comes"
            raise ApiError(422, f"{problem} {iso(following)}; ask for a shorter duration")
        previous = following
    return Occurrences(first, count)


def _terms_of(act: Reserve, start: float) -> ReservationTerms:
    """Return the request for an occurrence."""
    return ReservationTerms(
        least=act.least,
        most=act.most,
        shortest=act.duration,
        longest=act.duration,
        ready=start,
        deadline=start + act.duration,
        by_node=act.by_node,
        clusters=act.clusters,
        let_run=act.let_run,
        licences=act.licences,
        mail=act.mail,
        users=act.users,
        groups=act.groups,
        accounts=act.accounts,
    )


class NotReserved(NamedTuple):
    """Occurrences of a series in a row that are not reserved. Times are epoch seconds."""

    first: float
    last: float
    number: int
    cause: str  # why the first is not
    following: float | None  # the occurrence after them; None: there is none


@dataclass
class Budget:
    """What an owner used of a period."""

    end: float  # monotonic seconds
    refused: int = 0  # tries
    records: int = 0

    @property
    def is_spent(self) -> bool:
        return self.refused >= MAX_REFUSED or self.records >= MAX_RECORDS


class SeriesPlanner:
    """Reserves the occurrences of all series when they are due, in turn."""

    def __init__(self, host: ReservationHost) -> None:
        self._host = host
        self._changed = asyncio.Event()
        self._retry_at: dict[int, float] = {}  # monotonic seconds, by series
        self._obstacles: dict[int, str] = {}  # why an occurrence is tried again, by series
        self._refused: dict[int, NotReserved] = {}  # since the place of a series
        self._budgets: dict[str, Budget] = {}  # by owner

    def wake(self) -> None:
        """Look at the series again, which have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Reserve until cancelled. StorageFailed if an event cannot be stored."""
        while True:
            self._changed.clear()
            await self._close_finished()
            self._forget_closed()
            # an occurrence of each series in turn: none waits for all those of another
            for entry in self._due_entries():
                await self._reserve_next(entry)
            if self._due_entries():
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()

    def _series(self) -> list[CalendarEntry]:
        return [e for e in self._host.core.calendar.entries.values() if e.is_series]

    def _due_entries(self) -> list[CalendarEntry]:
        now, monotonic = time.time(), time.monotonic()
        due = [
            entry
            for entry in self._series()
            if entry.due is not None
            and entry.due <= now
            and self._retry_at.get(entry.id, 0.0) <= monotonic
        ]
        if not due:
            return []
        owners = Counter(
            reservation.user
            for reservation in self._host.core.reservations.by_id.values()
            if reservation.series is not None and reservation.state in OPEN_STATES
        )
        for entry in due:
            if owners[entry.owner] >= MAX_PROMISED:
                self._retry_at[entry.id] = monotonic + RETRY_PAUSE
                self._obstacles[entry.id] = (
                    f"{MAX_PROMISED} occurrences of {entry.owner} were reserved already"
                )
        ready = (entry for entry in due if owners[entry.owner] < MAX_PROMISED)
        # those that were never put off come before those that are tried again
        return sorted(
            ready, key=lambda entry: (self._retry_at.get(entry.id, 0.0), entry.due, entry.id)
        )

    def _pause(self) -> float:
        """Return for how many seconds nothing is due."""
        now, monotonic = time.time(), time.monotonic()
        pauses = (
            max((entry.due or math.inf) - now, self._retry_at.get(entry.id, 0.0) - monotonic, 0.0)
            for entry in self._series()
        )
        return min([MAX_SLEEP, *pauses])

    async def _close_finished(self) -> None:
        """Remove the series whose last occurrence is over."""
        finished = [entry for entry in self._series() if entry.next_run is None]
        if not finished:
            return
        reservations = self._host.core.reservations.by_id.values()
        busy = {r.series for r in reservations if r.state in OPEN_STATES}
        now = time.time()
        events = [
            CalendarEntryRemoved(now, entry.id, cause="its last occurrence is over")
            for entry in finished
            if entry.id not in busy
        ]
        if events:
            await self._host.apply_events(*events)

    def _forget_closed(self) -> None:
        """Forget what concerns series that are gone, and periods that are over."""
        entries = self._host.core.calendar.entries
        for by_series in (self._retry_at, self._obstacles, self._refused):
            for id in by_series.keys() - entries.keys():
                del by_series[id]
        now = time.monotonic()
        self._budgets = {owner: b for owner, b in self._budgets.items() if b.end > now}

    def _budget(self, owner: str) -> Budget:
        now = time.monotonic()
        budget = self._budgets.get(owner)
        if budget is None or budget.end <= now:
            budget = self._budgets[owner] = Budget(now + BUDGET_PERIOD)
        return budget

    def _is_current(self, entry: CalendarEntry) -> bool:
        """Return whether a series is as it was, neither cancelled nor gone on meanwhile."""
        return self._host.core.calendar.entries.get(entry.id) is entry

    def _until_due(self, entry: CalendarEntry, act: Reserve, moment: float) -> float:
        """Return for how many seconds an occurrence lies beyond the horizon of its owner.

        A reload may have cut the horizon since the series was made. That refuses no occurrence: it
        is due later.
        """
        horizon = self._host.settings.quota_of(entry.owner).horizon
        return moment - max(horizon - act.duration, MIN_LEAD) - time.time()

    async def _reserve_next(self, entry: CalendarEntry) -> None:
        """Try the next occurrence of a series, or record those whose start has passed."""
        now, start = time.time(), entry.next_run
        assert start is not None
        assert isinstance(entry.act, Reserve)
        budget = self._budget(entry.owner)
        if budget.is_spent:
            self._retry_at[entry.id] = budget.end
            return
        if start <= now:
            await self._skip_passed(entry, start, now)
            return
        run = self._refused.get(entry.id)
        if run is not None and run.first != start:
            run = None
        moment = start if run is None else run.following
        assert moment is not None
        if (pause := self._until_due(entry, entry.act, moment)) > 0.0:
            self._retry_at[entry.id] = time.monotonic() + min(pause, REFUSED_PAUSE)
            self._refused.pop(entry.id, None)
            if run is not None:
                self._obstacles[entry.id] = run.cause
            return
        try:
            following = await asyncio.to_thread(_following, entry, moment)
        except ParseError as error:  # this host has no such zone any more; it may come back
            self._try_later(entry, REFUSED_PAUSE, _describe(error))
            return
        try:
            event = await survey_and_check(
                self._host,
                entry.owner,
                _terms_of(entry.act, moment),
                self._host.ledger.next_reservation,
                entry.id,
            )
            if not self._host.core.reservations.offer_finder.offers(event):
                raise ApiError(403, "that is not free on any cluster")
        except ApiError as error:
            if not self._is_current(entry):
                return
            if error.status == 503 or isinstance(error, NoClusterNow):
                self._try_later(entry, RETRY_PAUSE, str(error))
            else:
                await self._note_refused(entry, run, moment, following, str(error))
            return
        if not self._is_current(entry):
            return
        events: list[CoreEvent] = []
        if run is not None:
            events.append(self._skip(entry, run))
        events.append(
            structs.replace(
                event, by=entry.requested_by, series=entry.id, next_occurrence=following
            )
        )
        self._obstacles.pop(entry.id, None)
        self._retry_at.pop(entry.id, None)
        await self._host.apply_events(*events)

    def _try_later(self, entry: CalendarEntry, pause: float, cause: str) -> None:
        """Try a series again from its place on, `pause` seconds later."""
        self._refused.pop(entry.id, None)
        self._retry_at[entry.id] = time.monotonic() + pause
        self._obstacles[entry.id] = cause

    async def _note_refused(
        self,
        entry: CalendarEntry,
        run: NotReserved | None,
        moment: float,
        following: float | None,
        cause: str,
    ) -> None:
        """Go on after an occurrence that was refused, at `moment`, after those of `run`."""
        self._budget(entry.owner).refused += 1
        if run is None:
            run = NotReserved(moment, moment, 1, cause, following)
        else:
            run = run._replace(last=moment, number=run.number + 1, following=following)
        if run.number >= MAX_RUN:
            await self._host.apply_events(self._skip(entry, run))
        elif following is None or following - entry.lead > time.time():
            self._try_later(entry, REFUSED_PAUSE, run.cause)
        else:
            self._refused[entry.id] = run

    async def _skip_passed(self, entry: CalendarEntry, start: float, now: float) -> None:
        """Skip the occurrences from `start` on whose start has passed."""
        cause = self._obstacles.get(entry.id, "its start has passed")
        if (refused := self._refused.get(entry.id)) is not None and refused.first == start:
            cause = refused.cause
        try:
            run = await asyncio.to_thread(_passed, entry, start, now, cause)
        except ParseError as error:  # so the following time is unknown: this was the last
            run = NotReserved(start, start, 1, _describe(error), None)
        if self._is_current(entry):
            self._obstacles.pop(entry.id, None)
            self._retry_at.pop(entry.id, None)
            await self._host.apply_events(self._skip(entry, run))

    def _skip(self, entry: CalendarEntry, run: NotReserved) -> CalendarRun:
        """Return the event that occurrences are skipped; it counts for the owner."""
        self._refused.pop(entry.id, None)
        self._budget(entry.owner).records += 1
        return CalendarRun(
            time.time(),
            entry.id,
            run.first,
            RunResult.SKIPPED,
            run.following,
            run.cause,
            last=run.last if run.number > 1 else None,
            count=run.number,
        )


def _describe(error: ParseError) -> str:
    return f"{error.problem} on this host; make the series anew if it stays so"


def _passed(entry: CalendarEntry, start: float, now: float, cause: str) -> NotReserved:
    """Return the occurrences from `start` to `now`; the rest as for `_following`."""
    rule = recurrence_of(entry.rule, entry.zone)
    last = rule.last_until(start, min(now, entry.until or now))
    number = rule.count(start, last, MAX_COUNTED)
    return NotReserved(start, last, number, cause, _following(entry, last))


def _following(entry: CalendarEntry, start: float) -> float | None:
    """Return the occurrence after a time; None: there is none any more.

    ParseError: the zone is gone. Slow: call it in a thread.
    """
    following = recurrence_of(entry.rule, entry.zone).next_after(start)
    if following is None or (entry.until is not None and following > entry.until):
        return None
    return following
