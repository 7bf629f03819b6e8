"""Parses durations, times, memory, counts and generic resources as users write them."""

# Every `metasched submit` imports this module: no slow import (typing, datetime, re) at the top.
from __future__ import annotations

from metasched.errors import ParseError as ParseError
from metasched.errors import quote_for_error as quote_for_error

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from datetime import datetime
    from typing import overload
else:

    def overload(function):
        """Do nothing, as that of typing."""
        return function


MAX_LICENCE_CHOICES = 4  # alternatives of licences; a task waits for each of them
MAX_NUMBER = 2**31 - 1  # limit of counts, and of durations in seconds (68 years)

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_CLOCK_UNITS = (1, 60, 3600, 86400)  # seconds, minutes, hours, days
_KIBIBYTES = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}
_MULTIPLES = {"K": 1024, "M": 1024**2, "G": 1024**3}
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_MAX_CHARACTERS = 20  # of a plausible number
_MOMENT_FIX = "write one within 68 years"
_NAMED_HOURS = {"midnight": 0, "noon": 12, "teatime": 16}


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def parse_count(text: str, minimum: int = 1) -> int:
    """Parse a whole number from `minimum` to 2^31 - 1. ParseError for any other text."""
    if not _is_digits(text) or len(text) > 10 or not minimum <= int(text) <= MAX_NUMBER:
        raise ParseError(
            f"{quote_for_error(text)} is no number from {minimum} to {MAX_NUMBER}", "write one"
        )
    return int(text)


def parse_duration(text: str, bare_unit: float = 1) -> float:
    """Parse a duration such as `90s`, `1h30m`, `1:30:00` or `2-12`. Return its seconds.

    The result is more than 0 and less than 2^31. `bare_unit` are the seconds of a unit of a bare
    number. Colons and a dash are read as by sbatch: `minutes:seconds`, `hours:minutes:seconds`,
    `days-hours[:minutes[:seconds]]`. ParseError for any other text.
    """
    too_long = len(text) > 2 * _MAX_CHARACTERS
    seconds = None if too_long else _duration_seconds(text.strip(), bare_unit)
    if seconds is None:
        raise ParseError(
            f"{quote_for_error(text)} is no duration",
            "write it as 90s, 10m, 1h30m, 1:30:00 or 2-00:00:00",
        )
    if not 0 < seconds <= MAX_NUMBER:
        raise ParseError(
            f"{quote_for_error(text)} is no sensible duration", "write from 1s to 24855d"
        )
    return seconds


def _duration_seconds(text: str, bare_unit: float) -> float | None:
    if _is_digits(text):
        return float(text) * bare_unit
    days, separator, clock = text.rpartition("-")
    if separator or ":" in text:
        parts = ([days] if separator else []) + clock.split(":")
        if len(parts) > (4 if separator else 3) or not all(map(_is_digits, parts)):
            return None
        largest_unit = 3 if separator else len(parts) - 1
        units = _CLOCK_UNITS[largest_unit::-1]
        return float(sum(int(part) * unit for part, unit in zip(parts, units)))
    total, number, previous_unit = 0.0, "", float("inf")
    for character in text:
        unit = _UNIT_SECONDS.get(character.lower())
        if unit is None:
            number += character
            continue
        whole, _, fraction = number.partition(".")
        if not _is_digits(whole + fraction) or unit >= previous_unit:
            return None  # each unit may occur once, the largest first
        total, number, previous_unit = total + float(number) * unit, "", unit
    return None if number or not text else total


def parse_moment(text: str, now: float, *, past: bool = False) -> float:
    """Parse a time: ISO 8601 (local without a zone), `+2h`, `now+1hour`, `17:30`, `tomorrow`.

    Return epoch seconds. A time of day, `midnight`, `noon` or `teatime` is the next occurrence,
    with `past` the last. `today` and `tomorrow` are the same time of day as now. With `past` a bare
    duration is a time before now. ParseError for any other text, for a time more than 68 years from
    `now`, and for a local time that is skipped or repeated by a clock change.
    """
    moment = _moment(text.strip(), now, past)
    if moment is None:
        forms = "2h, 17:30 or 2030-01-31T17:30" if past else "+2h, 17:30 or 2030-01-31T17:30"
        raise ParseError(f"{quote_for_error(text)} is no time", f"write it as {forms}")
    if abs(moment - now) > MAX_NUMBER:
        raise ParseError(f"{quote_for_error(text)} is no sensible time", _MOMENT_FIX)
    return moment


def parse_last_day(text: str, now: float) -> float:
    """Parse the end of a series as `parse_moment` does; a date includes its whole day."""
    moment = parse_moment(text, now)
    return moment + 86399.0 if len(text.strip()) == len("2030-01-31") and "-" in text else moment


def _moment(text: str, now: float, past: bool) -> float | None:
    from datetime import datetime, timedelta

    lowered = text.lower()
    if lowered in ("now", "today"):
        return now
    if lowered.startswith(("now+", "+")):
        return now + _offset_seconds(lowered.partition("+")[2].strip())
    if past and ":" not in lowered and "-" not in lowered and len(lowered) <= _MAX_CHARACTERS:
        ago = _duration_seconds(lowered, 1)
        if ago is not None:
            return now - ago
    today = datetime.fromtimestamp(now)
    if lowered == "tomorrow":
        return _epoch_seconds(today + timedelta(days=1))
    clock = _time_of_day(lowered)
    if clock is not None:
        hour, minute, second = clock
        moment = today.replace(hour=hour, minute=minute, second=second, microsecond=0, fold=0)
        if past and moment.timestamp() > now:
            moment -= timedelta(days=1)
        elif not past and moment.timestamp() <= now:
            moment += timedelta(days=1)
        return _epoch_seconds(moment)
    if not text[:4].isdecimal():
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return _epoch_seconds(moment)


def _epoch_seconds(moment: datetime) -> float:
    """Return epoch seconds; a time without a zone is local. ParseError if it is ambiguous."""
    try:
        first, second = (moment.replace(fold=fold).timestamp() for fold in (0, 1))
    except (OverflowError, ValueError):
        raise ParseError(f"{moment.isoformat(' ')} is no sensible time", _MOMENT_FIX) from None
    if first != second:
        problem = "comes twice" if first < second else "is skipped"
        alternatives = [
            moment.fromtimestamp(instant).astimezone().isoformat() for instant in (first, second)
        ]
        message = f"{moment.isoformat(' ')} {problem} as the clock is changed"
        raise ParseError(message, f"write {' or '.join(alternatives)}")
    return first


def _offset_seconds(text: str) -> float:
    """Parse the text after `now+`: a duration, or a number with the name of a unit as in sbatch."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    name = text[len(number) :].strip()
    if name.removesuffix("s") in ("second", "minute", "hour", "day", "week"):
        text = number + name[0]
    return parse_duration(text)


def _time_of_day(text: str) -> tuple[int, int, int] | None:
    """Parse a time of day (`17:30`, `5:30pm`, `noon`). Return hour, minute, second, or None."""
    if text in _NAMED_HOURS:
        return _NAMED_HOURS[text], 0, 0
    am_pm = text[-2:] if text.endswith(("am", "pm")) else ""
    parts = text.removesuffix(am_pm).strip().split(":")
    if not (2 <= len(parts) <= 3 and all(_is_digits(part) and len(part) <= 2 for part in parts)):
        return None
    hour, minute, second = (int(part) for part in (*parts, "0")[:3])
    if am_pm:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if am_pm == "pm" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    return hour, minute, second


@overload
def iso(moment: float) -> str: ...
@overload
def iso(moment: None) -> None: ...  # noqa: F811 - an overload
@overload
def iso(moment: float | None) -> str | None: ...  # noqa: F811 - an overload


def iso(moment: float | None) -> str | None:  # noqa: F811 - that of the overloads
    """Format epoch seconds as ISO 8601 in UTC, the external format of times."""
    if moment is None:
        return None
    from datetime import datetime, timezone

    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="milliseconds")


def parse_memory(text: str) -> int:
    """Parse memory such as `4G`, `500M`, `2T`, `4GB`, or a bare number of MiB. Return MiB.

    Kilobytes are rounded up. ParseError for any other text, for 0 and for 2^31 MiB or more.
    """
    size = text.strip().upper()
    size = size.removesuffix("IB") if size.endswith("IB") else size.removesuffix("B")
    unit = _KIBIBYTES.get(size[-1:])
    number = size if unit is None else size[:-1]
    if not _is_digits(number) or len(number) > _MAX_CHARACTERS:
        raise ParseError(
            f"{quote_for_error(text)} is no amount of memory", "write it as 4G, 500M or 2T"
        )
    amount = -(-int(number) * (unit or _KIBIBYTES["M"]) // 1024)
    if amount == 0:
        raise ParseError("no memory at all", "write how much is needed, as 4G")
    if amount > MAX_NUMBER:
        raise ParseError(
            f"{quote_for_error(text)} is no sensible amount of memory", "write it as 4G"
        )
    return amount


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a comma list; return each name once. ParseError for an empty name."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ParseError(f"an empty name in {quote_for_error(text)}", "write NAME or NAME,NAME")
    return tuple(dict.fromkeys(names))


def parse_licences(text: str) -> dict[str, int]:
    """Parse a comma list of licences, `matlab` or `matlab:2`. Return counts by name.

    ParseError for a malformed, empty or repeated item.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, colon, count = part.strip().partition(":")
        if not name or (colon and not count):
            raise ParseError(
                f"{quote_for_error(part.strip() or text)} is no licence", "write NAME or NAME:N"
            )
        if name in counts:
            raise ParseError(f"licence {quote_for_error(name)} is there twice", "write NAME:N once")
        counts[name] = parse_count(count) if colon else 1
    return counts


def parse_licence_choices(text: str) -> list[dict[str, int]]:
    """Parse a comma list of licences that are all needed, or alternatives: `matlab:2|octave`.

    Return the counts by name of each alternative. ParseError also for both in a request, as Slurm.
    """
    if "|" not in text:
        return [parse_licences(text)]
    if "," in text:
        raise ParseError(
            f"both , (all of them) and | (one of them) in licences {quote_for_error(text)}",
            "write one of the two",
        )
    choices = [parse_licences(part) for part in text.split("|")]
    if len(choices) > MAX_LICENCE_CHOICES:
        raise ParseError(
            f"{len(choices)} alternatives of licences", f"write at most {MAX_LICENCE_CHOICES}"
        )
    for number, choice in enumerate(choices):
        if choice in choices[:number]:
            name = quote_for_error(next(iter(choice)))
            raise ParseError(f"licence {name} is there twice", "write each alternative once")
    return choices


def parse_gres(text: str) -> dict[str, int]:
    """Parse a comma list of generic resources, `gpu`, `gpu:2` or `gpu:a100:2`. Return counts.

    The key includes the type: "gpu:a100". ParseError for a malformed item.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        fields = part.strip().removeprefix("gres/").split(":")
        if fields == ["none"]:
            continue
        count = 1
        if len(fields) > 1 and fields[-1][:1].isdecimal():
            last = fields.pop().upper()
            multiplier = _MULTIPLES.get(last[-1:])
            count = parse_count(last if multiplier is None else last[:-1]) * (multiplier or 1)
        if len(fields) > 2 or not all(
            field[:1].isalnum() and _NAME_CHARACTERS.issuperset(field) for field in fields
        ):
            raise ParseError(
                f"{quote_for_error(part)} is no resource", "write it as gpu:2 or gpu:a100:2"
            )
        name = ":".join(fields)
        counts[name] = counts.get(name, 0) + count
        if counts[name] > MAX_NUMBER:
            raise ParseError(f"{quote_for_error(text)} is too much", f"write at most {MAX_NUMBER}")
    return counts
