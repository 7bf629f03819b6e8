"""Runs of calendar entries that lower totals of licences, beyond the next: for reservations.

Reservations are made weeks ahead; the core knows the next run of an entry only. Times are seconds
since the epoch, durations seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from functools import lru_cache

from metasched.model.calendar import CalendarEntry, CalendarLimit, LimitLicence
from metasched.model.reservation import Reservation
from metasched.model.units import iso
from metasched.times.recurrence import parse_recurrence

MAX_RUNS = 400  # computed runs of an entry: more than a year of a daily entry


def limits_of(
    entries: Iterable[CalendarEntry], licences: Collection[str], until: float
) -> tuple[CalendarLimit, ...]:
    """Return when entries lower the totals of these licences, from their next runs to `until`.

    After the last run that is computed (`MAX_RUNS`) the total counts as lowered for ever. Takes up
    to a tenth of a second for a rule that is new: not for the thread of the scheduler.
    """
    limits = []
    for entry in entries:
        act = entry.act
        if isinstance(act, LimitLicence) and act.licence in licences and entry.next_run is not None:
            starts = _runs(entry.rule, entry.zone, entry.next_run)
            is_cut = len(starts) > MAX_RUNS
            following = (*starts[1:MAX_RUNS], math.inf)
            spans = [
                (start, min(start + act.duration, after))
                for start, after in zip(starts, following, strict=False)
            ]
            if is_cut:
                spans[-1] = (spans[-1][0], math.inf)
            within = tuple((start, min(end, until)) for start, end in spans if start < until)
            limits.append(CalendarLimit(entry.id, entry.name, act.licence, act.total, within))
    return tuple(limits)


def describe_conflict(limit: CalendarLimit, reservations: Iterable[Reservation]) -> str:
    """Return which open reservations have more tokens than there are meanwhile; "": none have."""
    holders = [r for r in reservations if r.licences.get(limit.licence, 0)]
    for start, end in limit.spans:
        affected = [r for r in holders if r.start < end and start < r.until]
        for moment in sorted(max(r.start, start) for r in affected):
            present = [r for r in affected if r.start <= moment < r.until]
            promised = sum(r.licences[limit.licence] for r in present)
            if promised > limit.total:
                ids = ", ".join(str(r.id) for r in present[:5])
                noun = "reservation" if len(present) == 1 else "reservations"
                return f"{noun} {ids} had the promise of {promised} then, at {iso(moment)}"
    return ""


@lru_cache(maxsize=64)
def _runs(rule: str, zone: str, first: float) -> tuple[float, ...]:
    """Return the nominal times of a run and of up to `MAX_RUNS` after it."""
    recurrence, times = parse_recurrence(rule, zone), [first]
    while len(times) <= MAX_RUNS and (after := recurrence.next_after(times[-1])) is not None:
        times.append(after)
    return tuple(times)
