"""Times and durations as the options of Slurm's commands write them."""

from __future__ import annotations

import re
import time

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_NAMED_HOURS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
_NOW = r"now\s*(?:([+-])\s*([0-9]{1,10})\s*(second|minute|hour|day|week)?s?)?"
_CLOCK = r"([0-9][0-9]?):([0-9][0-9])(?::([0-9][0-9]))?\s*([ap]m)?"
_ISO_DATE = r"([0-9]{4})-([0-9][0-9]?)-([0-9][0-9]?)"
_DATE = r"([0-9][0-9]?)[./]?([0-9][0-9]?)(?:[./]?([0-9][0-9]))?"
_TIME_LIMIT = r"(?:([0-9]{1,8})-)?([0-9]{1,8})(?::([0-9]{1,8}))?(?::([0-9]{1,8}))?"
_UNLIMITED = ("-1", "infinite", "unlimited")


def parse_time_limit(text: str) -> int | None:
    """Return the seconds of `minutes`, `minutes:seconds`, `days-hours` and so on; 0: unlimited.

    None if it is no time limit. Seconds count as a whole minute.
    """
    if text.lower() in _UNLIMITED:
        return 0
    match = re.fullmatch(_TIME_LIMIT, text)
    if match is None:
        return None
    days, *clock = match.groups()
    parts = [int(part) for part in clock if part is not None]
    if days is not None:  # hours, minutes, seconds
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        total = int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    elif len(parts) == 3:
        total = parts[0] * 3600 + parts[1] * 60 + parts[2]
    else:
        total = parts[0] * 60 + sum(parts[1:])
    return -(-total // 60) * 60


def parse_time(text: str, now: float) -> float | None:
    """Return the epoch seconds of a time such as `now+1hour`, `16:00` or `2030-01-31T17:30`.

    None if it is none. As in Slurm, times are local, and a time of day is the next occurrence.
    `now` is in epoch seconds.
    """
    if text[:3].lower() == "uts" and text[3:].isdecimal() and len(text) < 16:
        return float(text[3:])
    if text[:3].lower() == "now":
        match = re.fullmatch(_NOW, text.strip(), re.I)
        if match is None:
            return None
        sign, count, unit = match.groups()
        seconds = int(count or 0) * _UNITS[(unit or "second").lower()]
        return now - seconds if sign == "-" else now + seconds
    today = time.localtime(now)
    day: tuple[int, int, int] | None = None
    clock: tuple[int, int, int] | None = None
    rest = text
    next_year = False  # whether a date without a year may be one of the next year
    while rest := re.sub(r"^(?:[ \t-]|T(?=[0-9]))+", "", rest):
        word = rest.lower()
        name = next((n for n in (*_NAMED_HOURS, "today", "tomorrow") if word.startswith(n)), None)
        if name == "today":
            day = today[:3]
        elif name == "tomorrow":
            day = time.localtime(now + 86400)[:3]
        elif name is not None:
            clock = _NAMED_HOURS[name], 0, 0
        if name is not None:
            rest = rest[len(name) :]
        elif match := re.match(_CLOCK, rest, re.I):
            clock = _clock(match)
            rest = rest[match.end() :]
            if clock is None:
                return None
        elif match := re.match(_ISO_DATE, rest):
            day = int(match[1]), int(match[2]), int(match[3])
            rest = rest[match.end() :]
        elif match := re.match(_DATE, rest):
            day = (2000 + int(match[3]) if match[3] else today[0]), int(match[1]), int(match[2])
            next_year = not match[3]
            rest = rest[match.end() :]
        else:
            return None
    if day is None and clock is None:
        return None
    if day is None:
        day = today[:3]
        if clock is not None and clock[:2] <= today[3:5]:
            day = time.localtime(now + 86400)[:3]
    if not (1 <= day[1] <= 12 and 1 <= day[2] <= 31):
        return None
    moment = _epoch_seconds(day, clock or (0, 0, 0))
    if next_year and moment is not None and moment <= now:
        return _epoch_seconds((day[0] + 1, *day[1:]), clock or (0, 0, 0))
    return moment


def _clock(match: re.Match[str]) -> tuple[int, int, int] | None:
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (match[4].lower() == "pm")
    return (hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


def _epoch_seconds(day: tuple[int, ...], clock: tuple[int, int, int]) -> float | None:
    try:
        return time.mktime((day[0], day[1], day[2], *clock, 0, 0, -1))
    except (OverflowError, ValueError):
        return None
