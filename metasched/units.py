"""Words for durations, moments, memory, counts and generic resources, as users write them."""

# Imported by every `metasched submit`: nothing slow (typing, datetime, re) at the top.
from __future__ import annotations

from metasched.errors import Unreadable as Unreadable
from metasched.errors import shown as shown

TYPE_CHECKING = False  # as that of typing
if TYPE_CHECKING:
    from datetime import datetime

MOST = 2**31 - 1  # of anything that is counted or lasts (68 years in seconds)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_COLONS = (1, 60, 3600, 86400)  # seconds, minutes, hours, days
_KIBIBYTES = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}
_MULTIPLES = {"K": 1024, "M": 1024**2, "G": 1024**3}
_NAMING = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_LONGEST = 20  # characters of a number that can make sense
_SENSIBLE = "write one within 68 years"
_HOURS = {"midnight": 0, "noon": 12, "teatime": 16}


def _digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def parse_count(text: str, least: int = 1) -> int:
    """A whole number from `least` to 2^31 - 1. Unreadable if it is none."""
    if not _digits(text) or len(text) > 10 or not least <= int(text) <= MOST:
        raise Unreadable(f"{shown(text)} is no number from {least} to {MOST}", "write one")
    return int(text)


def parse_duration(text: str, bare: float = 1) -> float:
    """Seconds, more than 0 and less than 2^31, of a word as `90s`, `1h30m`, `1:30:00`, `2-12`.

    `bare` is what a number alone counts, in seconds. With colons and a dash it is sbatch's
    `minutes:seconds`, `hours:minutes:seconds`, `days-hours[:minutes[:seconds]]`.
    Unreadable if it is none of these.
    """
    seconds = None if len(text) > 2 * _LONGEST else _duration(text.strip(), bare)
    if seconds is None:
        raise Unreadable(
            f"{shown(text)} is no duration", "write it as 90s, 10m, 1h30m, 1:30:00 or 2-00:00:00"
        )
    if not 0 < seconds <= MOST:
        raise Unreadable(f"{shown(text)} is no sensible duration", "write from 1s to 24855d")
    return seconds


def _duration(text: str, bare: float) -> float | None:
    if _digits(text):
        return float(text) * bare
    days, dash, clock = text.rpartition("-")
    if dash or ":" in text:
        parts = ([days] if dash else []) + clock.split(":")
        if len(parts) > (4 if dash else 3) or not all(map(_digits, parts)):
            return None
        biggest = 3 if dash else len(parts) - 1
        units = _COLONS[biggest::-1]
        return float(sum(int(n) * unit for n, unit in zip(parts, units, strict=False)))
    total, number, smaller = 0.0, "", float("inf")
    for letter in text:
        unit = _SECONDS.get(letter.lower())
        if unit is None:
            number += letter
            continue
        whole, _, fraction = number.partition(".")
        if not _digits(whole + fraction) or unit >= smaller:  # each unit once, the largest first
            return None
        total, number, smaller = total + float(number) * unit, "", unit
    return None if number or not text else total


def parse_moment(text: str, now: float, *, past: bool = False) -> float:
    """Epoch seconds of a word: ISO 8601 (local without a zone), `+2h`, `now+1hour`, `17:30`.

    A time of day, or `midnight`, `noon`, `teatime`, is the next one, with `past` the last one;
    `today` and `tomorrow` are the day at this time. `past` also takes a bare duration, as long
    ago. Unreadable if it is none of these, more than 68 years from `now`, or a local time that the
    clock skips or shows twice as it is changed.
    """
    moment = _moment(text.strip(), now, past)
    if moment is None:
        forms = "2h, 17:30 or 2030-01-31T17:30" if past else "+2h, 17:30 or 2030-01-31T17:30"
        raise Unreadable(f"{shown(text)} is no time", f"write it as {forms}")
    if abs(moment - now) > MOST:
        raise Unreadable(f"{shown(text)} is no sensible time", _SENSIBLE)
    return moment


def _moment(text: str, now: float, past: bool) -> float | None:
    from datetime import datetime, timedelta

    word = text.lower()
    if word in ("now", "today"):
        return now
    if word.startswith(("now+", "+")):
        return now + _ahead(word.partition("+")[2].strip())
    if past and ":" not in word and "-" not in word and len(word) <= _LONGEST:
        ago = _duration(word, 1)
        if ago is not None:
            return now - ago
    today = datetime.fromtimestamp(now)
    if word == "tomorrow":
        return _epoch(today + timedelta(days=1))
    clock = _clock(word)
    if clock is not None:
        hour, minute, second = clock
        moment = today.replace(hour=hour, minute=minute, second=second, microsecond=0, fold=0)
        if past and moment.timestamp() > now:
            moment -= timedelta(days=1)
        elif not past and moment.timestamp() <= now:
            moment += timedelta(days=1)
        return _epoch(moment)
    if not text[:4].isdecimal():
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return _epoch(moment)


def _epoch(moment: datetime) -> float:
    """Epoch seconds of a moment, without a zone on the local clock, which must tell which it is."""
    try:
        first, second = (moment.replace(fold=fold).timestamp() for fold in (0, 1))
    except (OverflowError, ValueError):
        raise Unreadable(f"{moment.isoformat(' ')} is no sensible time", _SENSIBLE) from None
    if first != second:
        which = "comes twice" if first < second else "is skipped"
        ways = [moment.fromtimestamp(side).astimezone().isoformat() for side in (first, second)]
        told = f"{moment.isoformat(' ')} {which} as the clock is changed"
        raise Unreadable(told, f"write {' or '.join(ways)}")
    return first


def _ahead(word: str) -> float:
    """Seconds of what follows `now+`: a duration, or sbatch's number and name of a unit."""
    number = word.rstrip("abcdefghijklmnopqrstuvwxyz ")
    name = word[len(number) :].strip()
    if name.removesuffix("s") in ("second", "minute", "hour", "day", "week"):
        word = number + name[0]
    return parse_duration(word)


def _clock(word: str) -> tuple[int, int, int] | None:
    """Hour, minute and second of a time of day (`17:30`, `5:30pm`, `noon`), if it is one."""
    if word in _HOURS:
        return _HOURS[word], 0, 0
    half = word[-2:] if word.endswith(("am", "pm")) else ""
    parts = word.removesuffix(half).strip().split(":")
    if not (2 <= len(parts) <= 3 and all(_digits(p) and len(p) <= 2 for p in parts)):
        return None
    hour, minute, second = (int(p) for p in (*parts, "0")[:3])
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    return hour, minute, second


def iso(moment: float | None) -> str | None:
    """A time (epoch seconds) as ISO 8601 in UTC, as everything outside sees it."""
    if moment is None:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def parse_memory(text: str) -> int:
    """MiB of `4G`, `500M`, `2T`, `4GB`, or of a bare number; kilobytes are rounded up.

    Unreadable if it is none, is nothing, or is 2^31 MiB or more.
    """
    word = text.strip().upper()
    word = word.removesuffix("IB") if word.endswith("IB") else word.removesuffix("B")
    unit = _KIBIBYTES.get(word[-1:])
    number = word if unit is None else word[:-1]
    if not _digits(number) or len(number) > _LONGEST:
        raise Unreadable(f"{shown(text)} is no amount of memory", "write it as 4G, 500M or 2T")
    amount = -(-int(number) * (unit or _KIBIBYTES["M"]) // 1024)
    if amount == 0:
        raise Unreadable("no memory at all", "write how much is needed, as 4G")
    if amount > MOST:
        raise Unreadable(f"{shown(text)} is no sensible amount of memory", "write it as 4G")
    return amount


def parse_names(text: str) -> tuple[str, ...]:
    """The names of a comma list, each once. Unreadable if one is empty."""
    names = [word.strip() for word in text.split(",")]
    if not all(names):
        raise Unreadable(f"an empty name in {shown(text)}", "write NAME or NAME,NAME")
    return tuple(dict.fromkeys(names))


def parse_licences(text: str) -> dict[str, int]:
    """How many of each licence: `matlab`, `matlab:2`, comma lists.

    Unreadable if a part is malformed, is nothing, or names what another one has named.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, colon, count = part.strip().partition(":")
        if not name or (colon and not count):
            raise Unreadable(f"{shown(part.strip() or text)} is no licence", "write NAME or NAME:N")
        if name in found:
            raise Unreadable(f"licence {shown(name)} is there twice", "write NAME:N once")
        found[name] = parse_count(count) if colon else 1
    return found


def parse_gres(text: str) -> dict[str, int]:
    """How many of each generic resource: `gpu`, `gpu:2`, `gpu:a100:2`, comma lists; by its name.

    The name keeps the type: "gpu:a100". Unreadable if a part is malformed.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        words = part.strip().removeprefix("gres/").split(":")
        if words == ["none"]:
            continue
        count = 1
        if len(words) > 1 and words[-1][:1].isdecimal():
            last = words.pop().upper()
            multiple = _MULTIPLES.get(last[-1:])
            count = parse_count(last if multiple is None else last[:-1]) * (multiple or 1)
        if len(words) > 2 or not all(w[:1].isalnum() and _NAMING.issuperset(w) for w in words):
            raise Unreadable(f"{shown(part)} is no resource", "write it as gpu:2 or gpu:a100:2")
        name = ":".join(words)
        found[name] = found.get(name, 0) + count
        if found[name] > MOST:
            raise Unreadable(f"{shown(text)} is too much", f"write at most {MOST}")
    return found
