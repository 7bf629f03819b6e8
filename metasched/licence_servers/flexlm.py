"""FlexLM (FlexNet Publisher): runs `lmutil lmstat -a` and parses its output.

The parser follows the public description of lmstat's output. lmutil is proprietary, so no test
runs it. Lines that cannot be parsed are reported and count nothing: a truncated header leaves its
feature out, and an unreadable user line belongs to no job of metasched. Errors therefore lead to
fewer free tokens, never to more.
"""

from __future__ import annotations

import os
import re
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from metasched.licence_servers.base import (
    Feature,
    LicenceServer,
    LicenceServerError,
    LicenceUse,
    Trouble,
    UsageReport,
)
from metasched.licence_servers.process import query_command

MAX_TROUBLES = 20  # listed singly
_MAX_LINE = 4096  # characters of a plausible line
_DAY = 86400.0

_STATUS = "License Manager status on "
_SECTION = re.compile(r" *License server status: *(\S.*)")
_SERVER = re.compile(r" *(\S+): license server (UP|DOWN)\b")
_COUNTED = re.compile(
    r"\(Total of ([0-9]{1,9}) licenses? issued; +Total of ([0-9]{1,9}) licenses? in use\)$"
)
_UNCOUNTED = re.compile(r"\(uncounted, node-?locked\)$", re.IGNORECASE)
_ERROR = re.compile(r"\(-[0-9]+,[0-9]+")  # a FlexLM error number
_ISSUE = re.compile(r' *"[^"]*" v\S*, vendor: ')
_EXPIRY = re.compile(r", expiry: ([^,]*)")
_RESERVED = re.compile(r" +([0-9]{1,9}) RESERVATIONs? for \S")
_QUEUED = re.compile(r" *,? *queued for ([0-9]{1,9}) licenses?\b")
_STARTED = re.compile(r", start ([^,(]*)(?:, *([0-9]{1,9}) licenses?\b)?")
# `(linger: 86400)`, or `(linger: 0 / 86400)` by some vendor daemons
_LINGER = re.compile(r"\(linger: ([0-9]{1,10})(?: */ *([0-9]{1,10}))?\b")
_MOMENT = re.compile(
    r"(?:(\w{2,12})\.? )?([0-9]{1,2})/([0-9]{1,2})(?:/([0-9]{4}))? ([0-9]{1,2}):([0-9]{2})"
)
_DATE = re.compile(r"([0-9]{1,2})-([a-z]{3})-([0-9]{1,4})", re.IGNORECASE)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


@dataclass(frozen=True)
class FlexlmOptions:
    """Options of a FlexLM server: `servers` is the argument of lmstat -c, `27000@lic1` or a file.

    Independent servers are separated by colons, the three of a redundant set by commas.
    """

    servers: str
    lmutil: str = "lmutil"

    def __post_init__(self) -> None:
        if not self.servers.strip() or self.servers.startswith("-"):
            raise ValueError(f'servers is {self.servers!r}; write "port@host" or a licence file')
        if os.sep in self.lmutil and not os.path.isabs(self.lmutil):
            raise ValueError(f"lmutil is {self.lmutil!r}; write an absolute path, or a bare name")


class FlexlmServer(LicenceServer):
    """A FlexLM server, or a list of them."""

    Options: ClassVar[type[Any]] = FlexlmOptions

    def query(self) -> str:
        """Run lmstat. It exits with 0 even if no server answered: only its output counts."""
        command = [self.options.lmutil, "lmstat", "-a", "-c", self.options.servers]
        completed = query_command(command, self.timeout)
        return completed.stdout or completed.stderr

    @staticmethod
    def parse(output: str, now: float) -> UsageReport:
        return parse_lmstat(output, now)


@dataclass
class _FeatureBlock:
    """The `Users of` block of a feature."""

    name: str
    issued: int | None
    used: int
    uses: list[LicenceUse] = field(default_factory=list)
    reserved: int = 0
    queued: int = 0
    issues: int = 0
    expired: int = 0


def parse_lmstat(output: str, now: float) -> UsageReport:
    """Parse the output of `lmstat -a`. LicenceServerError, with the line, if it has no feature.

    Times are in UTC, since lmutil runs with that zone. `now` is in epoch seconds; a start without
    a year is the last such day. Blocks of a feature from several servers or vendor daemons are
    added up. A server that is listed twice counts once.
    """
    return _LmstatParser(now).parse(output)


class _LmstatParser:
    def __init__(self, now: float) -> None:
        self._now = now
        self._observed: float | None = None
        self._blocks: list[_FeatureBlock] = []
        self._block: _FeatureBlock | None = None  # owner of the following lines
        self._troubles: list[Trouble] = []
        self._sections: set[str] = set()
        self._is_repeated = False  # the server of this section was listed before
        self._output_part = ""  # "servers", "daemons", "usage"

    def parse(self, output: str) -> UsageReport:
        for number, line in enumerate(output.splitlines(), 1):
            if len(line) > _MAX_LINE:
                self._block = None
                self._add_trouble(number, f"a line of {len(line)} characters")
            elif line.strip():
                self._parse_line(number, line.expandtabs(1).rstrip())
        if not self._blocks:
            first = next(iter(self._troubles), None)
            raise LicenceServerError(str(first) if first else "this is not the output of lmstat -a")
        features = tuple(self._features())
        omitted = len(self._troubles) - MAX_TROUBLES
        troubles = self._troubles[:MAX_TROUBLES]
        if omitted > 0:
            troubles.append(Trouble(0, f"and {omitted} more lines"))
        return UsageReport(features, tuple(troubles), self._observed)

    def _parse_line(self, number: int, line: str) -> None:
        if line.startswith("Users of "):
            self._output_part = "usage"
            self._parse_header(number, line)
        elif _STATUS in line:
            moment = line.partition(_STATUS)[2].strip()
            self._observed = self._parse_moment(moment)
            if self._observed is None:
                self._add_trouble(number, f"no time: {moment[:60]!r}")
        elif match := _SECTION.match(line):
            self._parse_section(number, match[1])
        elif line.startswith(("Error getting status", "lmgrd is not running")):
            self._block = None
            self._add_trouble(number, line)
        elif line.startswith("Vendor daemon status"):
            self._output_part = "daemons"
        elif line.startswith("Feature usage info"):
            self._output_part = "usage"
        elif self._output_part in ("servers", "daemons"):
            self._parse_state(number, line)
        elif self._block is not None:
            self._parse_detail(number, line, self._block)

    def _parse_section(self, number: int, server_list: str) -> None:
        """Begin the section of some servers; a server listed before repeats it."""
        names = {name.strip().casefold() for name in server_list.split(",")}
        self._output_part, self._block = "servers", None
        self._is_repeated = not names.isdisjoint(self._sections)
        self._sections |= names
        if self._is_repeated:
            self._add_trouble(number, f"{server_list} is listed twice; ignoring the second section")

    def _parse_state(self, number: int, line: str) -> None:
        """Report a server or vendor daemon that is down: its features are missing or invalid."""
        match = _SERVER.match(line)
        is_down = match is not None and match[2] == "DOWN"
        if self._output_part == "daemons":
            is_down = ": " in line and not line.partition(": ")[2].lstrip().startswith("UP")
        if is_down or (match is None and _ERROR.search(line)):
            self._add_trouble(number, line.strip())

    def _parse_header(self, number: int, line: str) -> None:
        name, colon, count_text = line.removeprefix("Users of ").partition(":")
        name, count_text, self._block = name.strip(), count_text.strip(), None
        if self._is_repeated:
            return
        block: _FeatureBlock | None = None
        if match := _COUNTED.match(count_text):
            block = _FeatureBlock(name, int(match[1]), int(match[2]))
        elif _UNCOUNTED.match(count_text):
            block = _FeatureBlock(name, None, 0)
        if block is None or not name or not colon:
            reason = count_text[:200] or "no counts"
            self._add_trouble(number, f"feature {name[:60]!r}: {reason}")
            return
        self._block = block
        self._blocks.append(block)

    def _parse_detail(self, number: int, line: str, block: _FeatureBlock) -> None:
        if match := _RESERVED.match(line):
            block.reserved += int(match[1])
        elif _ISSUE.match(line):
            block.issues += 1
            block.expired += self._is_expired(number, line)
        elif " (v" in line or ", start " in line:
            self._parse_use(number, line, block)

    def _is_expired(self, number: int, line: str) -> bool:
        match = _EXPIRY.search(line)
        if match is None or match[1].startswith("permanent"):
            return False
        date = _DATE.fullmatch(match[1].strip())
        if date is None or date[2].lower() not in _MONTHS:
            self._add_trouble(number, f"no date: {match[1][:60]!r}")
            return False
        if int(date[3]) == 0:
            return False  # 1-jan-0 never expires
        expiry = _epoch(int(date[3]), _MONTHS.index(date[2].lower()) + 1, int(date[1]), 0, 0)
        if expiry is None or self._now < expiry + _DAY:
            return False
        self._add_trouble(number, f"expired on {match[1].strip()}: {line.strip()[:100]}")
        return True

    def _parse_use(self, number: int, line: str, block: _FeatureBlock) -> None:
        """Parse `user host display (version) (server/port handle), start ...`, or `queued for`."""
        names, _, rest = line.partition(" (v")
        _, _, rest = rest.partition(") (")
        _, bracket, rest = rest.partition(")")
        user, host, *_ = (*names.split(), "", "")
        if match := _QUEUED.match(rest):
            block.queued += int(match[1])
            return
        match = _STARTED.match(rest)
        since = self._parse_moment(match[1].strip()) if match else None
        count = int(match[2] or 1) if match else 0
        is_plausible = since is not None and since <= self._now + _DAY
        if not (bracket and is_plausible and host and count):
            self._add_trouble(number, f"no user of a licence: {line.strip()[:200]!r}")
            return
        linger = _LINGER.search(rest)
        seconds = max(float(number or 0) for number in linger.groups()) if linger else None
        # a user name with a space matches no job: managers know no such account
        block.uses.append(LicenceUse(user, host, count, since, seconds))

    def _parse_moment(self, text: str) -> float | None:
        """Return the epoch seconds of `Fri 5/29 12:46` or `Fri 5/29/2026 12:46`, or None.

        Without a year it is the last such day on that weekday. A time up to a day ahead is
        accepted, since the server may be in another time zone.
        """
        match = _MOMENT.fullmatch(text)
        if match is None:
            return None
        month, day, hour, minute = (int(match[group]) for group in (2, 3, 5, 6))
        if match[4]:
            return _epoch(int(match[4]), month, day, hour, minute)
        moments = list(self._past_moments(month, day, hour, minute))
        weekday = (match[1] or "")[:3].lower()
        if weekday in _WEEKDAYS:
            moments = [moment for moment in moments if _weekday(moment) == _WEEKDAYS.index(weekday)]
        return moments[0] if moments else None

    def _past_moments(self, month: int, day: int, hour: int, minute: int) -> Iterator[float]:
        """Yield this date in each of the last twelve years, latest first (29 February is rare)."""
        this_year = 1970 + int(self._now // (365.2425 * _DAY))
        for year in range(this_year + 1, this_year - 12, -1):
            moment = _epoch(year, month, day, hour, minute)
            if moment is not None and moment <= self._now + _DAY:
                yield moment

    def _features(self) -> Iterator[Feature]:
        """Add up the blocks of each feature. Expired licences issue no tokens."""
        blocks: dict[str, list[_FeatureBlock]] = {}
        for block in self._blocks:
            blocks.setdefault(block.name, []).append(block)
        for name, feature_blocks in blocks.items():
            uses = tuple(use for block in feature_blocks for use in block.uses)
            counted = [block for block in feature_blocks if block.issued is not None]
            issued = sum(
                0 if block.issues and block.expired == block.issues else block.issued or 0
                for block in counted
            )
            uncounted_uses = (
                use.count for block in feature_blocks if block.issued is None for use in block.uses
            )
            try:
                yield Feature(
                    name=name,
                    issued=issued if len(counted) == len(feature_blocks) else None,
                    used=sum(block.used for block in counted) + sum(uncounted_uses),
                    uses=uses,
                    reserved=sum(block.reserved for block in feature_blocks),
                    queued=sum(block.queued for block in feature_blocks),
                )
            except ValueError as error:
                self._add_trouble(0, f"{error}; ignoring this licence")

    def _add_trouble(self, line: int, text: str) -> None:
        self._troubles.append(Trouble(line, text))


def _epoch(year: int, month: int, day: int, hour: int, minute: int) -> float | None:
    """Return the epoch seconds of a time in UTC; None for an impossible date."""
    if not (1970 <= year <= 9999 and 1 <= month <= 12 and hour < 24 and minute < 60):
        return None
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days_in_month = (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
    return float(timegm((year, month, day, hour, minute, 0))) if 1 <= day <= days_in_month else None


def _weekday(moment: float) -> int:
    return int(moment // _DAY + 3) % 7  # the epoch began on a Thursday
