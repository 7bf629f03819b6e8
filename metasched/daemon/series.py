"""Series of reservations: makes them, and reserves each occurrence some weeks before its start.

One event decides an occurrence, and takes the series on to the next one (`core.calendar`). So a
crash between two steps neither loses an occurrence nor reserves it twice. An occurrence that is
not free, or exceeds the quota of its owner, is skipped: its owner finds that among the events.
While no cluster answers it is tried again until its start.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
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
    CalendarEntry,
    Reserve,
    RunResult,
)
from metasched.model.reservation import OPEN_STATES
from metasched.recurrence import Recurrence, parse_recurrence
from metasched.units import MAX_NUMBER, iso

RETRY_PAUSE = 60.0  # seconds until an occurrence is tried again that no cluster could take
MIN_LEAD = 60.0  # seconds before its start at which an occurrence is reserved at the latest


@dataclass(frozen=True, kw_only=True)
class SeriesTerms:
    """What a user requests; field names as in the body of POST /series."""

    every: str  # the rule
    until: float  # epoch seconds; no occurrence starts later
    duration: float  # seconds
    least: int  # processors (nodes if `by_node`)
    most: int
    zone: str | None = None  # of the rule; None: the site's
    by_node: bool = False
    clusters: tuple[str, ...] = ()  # to choose from; empty: all
    let_run: float | None = None  # seconds that jobs may run past the end; None: the quota's
    licences: Mapping[str, int] = field(default_factory=dict)
    dry_run: bool = False
    user: str | None = None  # the owner; None: the caller
    mail: str = ""  # address for notices
    users: tuple[str, ...] = ()  # accounts that share each occurrence
    groups: tuple[str, ...] = ()  # their members do, as of the time when it is reserved

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
    )
    # what holds for each occurrence is refused now
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
        made_by=by,
        made=now,
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

    ApiError if there is none or are too many, or if one begins before another is over, `length`
    seconds after its start.
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
    )


class SeriesPlanner:
    """Reserves the occurrences of all series when they are due, one after another."""

    def __init__(self, host: ReservationHost) -> None:
        self._host = host
        self._changed = asyncio.Event()
        self._retry_at: dict[int, float] = {}  # monotonic seconds, by series
        self._obstacles: dict[int, str] = {}  # why an occurrence is tried again, by series

    def wake(self) -> None:
        """Look at the series again, which have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Reserve until cancelled. StorageFailed if an event cannot be stored."""
        while True:
            self._changed.clear()
            await self._close_finished()
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
        return sorted(ready, key=lambda entry: (entry.due, entry.id))

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

    async def _reserve_next(self, entry: CalendarEntry) -> None:
        """Reserve the next occurrence of a series, or record that it is skipped."""
        now, start = time.time(), entry.next_run
        assert start is not None
        assert isinstance(entry.act, Reserve)
        rule = recurrence_of(entry.rule, entry.zone)
        if start <= now:
            last = rule.last_until(start, min(now, entry.until or now))
            count = rule.count(start, last, MAX_COUNTED)
            cause = self._obstacles.pop(entry.id, "its start has passed")
            skipped = CalendarRun(
                now,
                entry.id,
                start,
                RunResult.SKIPPED,
                _following(entry, rule, last),
                cause,
                last=last if count > 1 else None,
                count=count,
            )
            await self._host.apply_events(skipped)
            return
        following = _following(entry, rule, start)
        try:
            event = await survey_and_check(
                self._host,
                entry.owner,
                _terms_of(entry.act, start),
                self._host.ledger.next_reservation,
                entry.id,
            )
        except ApiError as error:
            if self._host.core.calendar.entries.get(entry.id) is not entry:
                return
            if error.status == 503 or isinstance(error, NoClusterNow):
                self._retry_at[entry.id] = time.monotonic() + RETRY_PAUSE
                self._obstacles[entry.id] = str(error)
                return
            cause = str(error)
            await self._host.apply_events(
                CalendarRun(time.time(), entry.id, start, RunResult.SKIPPED, following, cause)
            )
            return
        self._obstacles.pop(entry.id, None)
        if self._host.core.calendar.entries.get(entry.id) is entry:  # not cancelled meanwhile
            await self._host.apply_events(
                structs.replace(event, by=entry.made_by, series=entry.id, next_occurrence=following)
            )


def _following(entry: CalendarEntry, rule: Recurrence, start: float) -> float | None:
    """Return the occurrence after a time; None: there is none any more."""
    following = rule.next_after(start)
    if following is None or (entry.until is not None and following > entry.until):
        return None
    return following
