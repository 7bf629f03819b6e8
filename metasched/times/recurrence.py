"""Recurring times: `mon-fri 08:00` or a text of cron, in a time zone, by APScheduler's trigger.

Only the class of the trigger is used, to compute times: no scheduler, no thread, no pickle. Times
are epoch seconds. The local time stays the same when the clock is changed:
- a local time that is skipped is as many minutes after the change as it would have been (02:30
  becomes 03:30);
- of a local time that comes twice, the first counts, unless the rule is for every hour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

from metasched.errors import ParseError, quote_for_error

MAX_RULE_LENGTH = 200  # characters
MAX_ZONE_LENGTH = 64  # characters
YEARS_AHEAD = 8  # a rule without a time within these never comes again (29 February: eight years)
MAX_GAPS = 400  # runs whose distances are checked: more than a year of daily runs
_YEAR = 367 * 86400.0  # seconds
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CRON_DAYS = ("sun", *_DAYS)  # cron counts from Sunday, which is also 7; APScheduler from Monday
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_FIELD = re.compile(r"[0-9a-z*,/-]+", re.ASCII)
_FIX = 'write "mon-fri 08:00", or five fields of cron as "0 8 * * mon-fri"'


@dataclass(frozen=True)
class Recurrence:
    """A rule in a zone. The fields are those of cron, in the notation of APScheduler."""

    minute: str
    hour: str
    day: str
    month: str
    weekday: str
    zone: ZoneInfo

    def next_after(self, moment: float) -> float | None:
        """Return the first time after a moment; None: there is none within `YEARS_AHEAD`."""
        start = datetime.fromtimestamp(int(moment) + 1, self.zone)
        years = f"{start.year}-{start.year + YEARS_AHEAD}"
        trigger = CronTrigger(
            years, self.month, self.day, "*", self.weekday, self.hour, self.minute,
            "0", timezone=self.zone,
        )  # fmt: skip
        while (fire_time := trigger.get_next_fire_time(None, start)) is not None:
            # the seconds that a clock change skips belong to the time before it
            moment = fire_time.astimezone(UTC).timestamp()
            if fire_time.fold == 0 or self.hour.startswith("*"):
                return float(moment)
            start = datetime.fromtimestamp(int(moment) + 1, self.zone)
        return None

    def longest_gap(self, lasts: float) -> float | None:
        """Return the most seconds between a run that lasts for `lasts` seconds and the next.

        None: unknown, since the next `MAX_GAPS` runs take less than a year, or there are fewer.
        """
        begin = moment = datetime(2024, 1, 1, tzinfo=self.zone).timestamp()
        gaps = list[float]()
        for _ in range(MAX_GAPS):
            following = self.next_after(moment)
            if following is None:
                return None
            gaps.append(following - moment - lasts)
            moment = following
        return None if moment - begin < _YEAR else max(*gaps[1:], 0.0)

    def last_until(self, first: float, moment: float) -> float:
        """Return the last time up to `moment`; `first` is one of them."""
        # the next time after any moment before the last time is not above `moment`
        low, high = int(first) - 1, int(moment)
        while high - low > 1:
            middle = (low + high) // 2
            later = self.next_after(middle)
            low, high = (middle, high) if later is not None and later <= moment else (low, middle)
        last = self.next_after(low)
        return first if last is None or last > moment else last

    def count(self, first: float, last: float, most: int) -> int:
        """Return the number of times from `first`, itself a time, to `last`; `most` at the most."""
        count, time = 0, first
        while time <= last and count < most:
            count += 1
            later = self.next_after(time)
            if later is None:
                break
            time = later
        return count


def parse_recurrence(text: str, zone: str) -> Recurrence:
    """Parse a rule. ParseError if it is none, never comes, or if there is no such zone."""
    zone_info = find_zone(zone)
    if len(text) > MAX_RULE_LENGTH:
        raise ParseError(
            f"a rule of {len(text)} characters, at most {MAX_RULE_LENGTH} are read", _FIX
        )
    terms = text.lower().split()
    if len(terms) in (1, 2) and (clock := _TIME.fullmatch(terms[-1])) is not None:
        days = terms[0] if len(terms) == 2 else "*"
        weekday = "*" if days == "daily" else _weekdays(days, text)
        fields = (str(int(clock[2])), str(int(clock[1])), "*", "*", weekday)
    elif len(terms) == 5 and all(map(_FIELD.fullmatch, terms)):
        minute, hour, day, month, weekday = terms
        if "*" not in (day, weekday):
            raise ParseError(
                f"day of month and day of week, {quote_for_error(text)}", "write two rules"
            )
        fields = (minute, hour, day, month, _weekdays(weekday, text))
    else:
        raise ParseError(f"{quote_for_error(text)} is no rule", _FIX)
    rule = Recurrence(*fields, zone_info)
    try:
        CronTrigger(None, fields[3], fields[2], "*", fields[4], fields[1], fields[0], timezone=UTC)
    except (ValueError, KeyError):  # its messages name the fields of the library
        raise ParseError(f"{quote_for_error(text)} is no rule", _FIX) from None
    return rule


def _weekdays(text: str, rule: str) -> str:
    """Return a list of days of the week, or "*", in the notation of APScheduler."""
    if text == "*":
        return "*"
    days: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            begin, end = _weekday(first), _weekday(last if dash else first)
        except ValueError:
            raise ParseError(
                f"{quote_for_error(part)} is no day of the week, {quote_for_error(rule)}",
                f"write {', '.join(_DAYS)}, or a range as mon-fri",
            ) from None
        days += islice(_DAYS * 2, begin, end + (1 if begin <= end else len(_DAYS) + 1))
    return ",".join(day for day in _DAYS if day in days)


def _weekday(text: str) -> int:
    """Return the index of a day in `_DAYS`; ValueError if it is none."""
    if text.isascii() and text.isdecimal() and int(text) < len(_CRON_DAYS):
        text = _CRON_DAYS[int(text)]
    return _DAYS.index(text[:3] if text in _LONG_DAYS else text)


_LONG_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def find_zone(name: str) -> ZoneInfo:
    """Return a time zone by its name in the IANA database. ParseError if there is none."""
    try:
        if len(name) <= MAX_ZONE_LENGTH:
            return ZoneInfo(name)
    except (OSError, ValueError, LookupError):  # also a folder, or a path outside of the database
        pass
    raise ParseError(
        f"{quote_for_error(name)} is no time zone", 'write a name such as "Europe/Berlin" or "UTC"'
    )


def host_zone() -> str:
    """Return the name of this host's time zone; "UTC" if it has none."""
    from tzlocal import get_localzone_name

    try:
        return find_zone(get_localzone_name() or "UTC").key
    except (LookupError, OSError, ValueError):  # also ParseError: a zone without a file
        return "UTC"
