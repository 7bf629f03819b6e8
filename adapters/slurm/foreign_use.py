"""The use of a Slurm cluster by all jobs, from slurmdbd.

`sacct --truncate` cuts each job to the window of the query. So windows that follow each other add
up to the whole use: a job counts while it runs, and each of its requeued runs counts. slurmdbd
subtracts suspended time. Comments and command lines are not queried: users control their length.
"""

from __future__ import annotations

import calendar
import os
import re
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from metasched.adapters.launcher_client import user_name_of
from metasched.adapters.slurm.listing import ControllerInfo
from metasched.adapters.slurm.records import parse_int, split_records
from metasched.model.adapter_errors import Unreachable
from metasched.model.foreign_use import UseAnswer, UseQuery, UseSum

USE_FIELDS = ("jobid", "uid", "cputimeraw", "submit", "end", "user", "account")
_MAX_RECORDS = 20_000  # of an answer; the next window is shorter after more of them
_MIN_SPAN = 60.0  # seconds of the shortest window
# seconds after which a message to slurmdbd is taken to have arrived, while some always wait
_MESSAGE_DELAY = 3600.0
# seconds after which slurmdbd has the starts of jobs: slurmctld reports them every 5 s
_START_DELAY = 10.0
_RECOVERY = 3.0  # times `settle`: until a slurmdbd that was started has the starts before it
_MAX_LEAD = 3600.0  # most seconds that a cursor may lead: the controller's clock was set back


class UseRecords(NamedTuple):
    """The answer of sacct for a window."""

    records: list[list[str]]  # USE_FIELDS of each job that ran in it
    unreadable: str  # start of the first text that is no record


class Slurmdbd(NamedTuple):
    """The output of `sacctmgr show configuration`."""

    boot: float  # epoch seconds of its clock
    user: str  # its SlurmUser
    hides_jobs: bool  # it shows jobs to their owners and to operators only


class UserLevels(Protocol):
    """The command that lists the rights of users."""

    def admin_level(self, user: str) -> str:
        """Return the AdminLevel of a user, such as `Operator`."""


class UseSource(UserLevels, Protocol):
    """The commands that the query needs."""

    def controller(self) -> ControllerInfo: ...

    def unsent_messages(self) -> int:
        """Return the number of messages to slurmdbd that the controller has queued."""

    def use_between(self, begin: int, end: int) -> UseRecords:
        """Return the jobs that ran between two epoch seconds, each cut to this window."""

    def slurmdbd(self) -> Slurmdbd: ...


def is_restricted(user: str, slurmdbd: Slurmdbd, source: UserLevels) -> bool:
    """Return whether slurmdbd answers a user with the user's own jobs only."""
    if not slurmdbd.hides_jobs or user in ("root", slurmdbd.user):
        return False
    return source.admin_level(user) not in ("Operator", "Administrator")


class SlurmForeignUse:
    """Reads the use window by window. The cursor is the end of a window by the controller's clock.

    A window ends some seconds ago: what happened before is in slurmdbd, and `settle` seconds after
    a dispatch metasched knows the id of its job.
    """

    def __init__(self, source: UseSource, settle: float) -> None:
        self._source, self._settle = source, settle
        self._span = 0.0  # seconds of the next window; 0: as long as the query allows

    def query(self, query: UseQuery) -> UseAnswer:
        """Return the use of the next window; see `Adapter.query_foreign_use`."""
        controller = self._source.controller()
        if not controller.slurmdbd:
            return UseAnswer(cursor=query.cursor)
        skew = time.time() - controller.now  # local time minus the controller's
        slurmdbd = self._source.slurmdbd()
        self._check_privacy(slurmdbd)
        lag = self._settle + _START_DELAY
        recovers = abs(controller.now - slurmdbd.boot) < _RECOVERY * self._settle
        if recovers or self._source.unsent_messages():
            lag = _MESSAGE_DELAY
        latest = int(controller.now - lag)
        begin = max(_parse_cursor(query.cursor), int(query.since - skew))
        if begin > controller.now + _MAX_LEAD:
            begin = latest
        span = min(self._span or query.max_span, max(query.max_span, _MIN_SPAN))
        end = min(begin + max(int(span), 1), latest)
        if end <= begin:
            return UseAnswer(cursor=str(begin), until=begin + skew)
        try:
            use_records = self._source.use_between(begin, end)
        except Unreachable:
            self._span = max(span / 2, _MIN_SPAN)
            raise
        too_many = len(use_records.records) > _MAX_RECORDS
        self._span = max(span / 2, _MIN_SPAN) if too_many else 2 * span
        total = sum_records(use_records, query, skew, user_name_of)
        return UseAnswer(
            rows=total.rows,
            cursor=str(end),
            until=end + skew,
            more=end < latest,
            set_aside=total.set_aside,
            defect=total.defect,
        )

    def _check_privacy(self, slurmdbd: Slurmdbd) -> None:
        """Raise Unreachable if slurmdbd would answer with the jobs of this account only."""
        user = user_name_of(os.geteuid())
        if is_restricted(user, slurmdbd, self._source):
            raise Unreachable(
                f"PrivateData of slurmdbd hides other users' jobs from {user}; run `sacctmgr "
                f"modify user {user} set adminlevel=operator`"
            )


def _parse_cursor(cursor: str) -> int:
    return int(cursor) if cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18 else 0


def sum_records(
    use_records: UseRecords, query: UseQuery, skew: float, name_of: Callable[[int], str]
) -> UseSum:
    """Sum up the records of jobs that are not of metasched; `name_of` maps a user id to a name.

    `skew` is the local time minus the controller's, in seconds.
    """
    total, names = UseSum(), dict[str, str]()
    if use_records.unreadable:
        total.reject(f"{use_records.unreadable!r} is no record")
    for native_id, uid, seconds, submit, end, user, account in use_records.records:
        try:
            submitted, until = parse_int(submit) + skew, parse_int(end) + skew
            amount = float(parse_int(seconds))
            if uid not in names:
                name = name_of(parse_int(uid))
                names[uid] = user if user and name == uid else name
        except ValueError:
            total.reject(f"job {native_id[:40]!r}: {[uid, seconds, submit, end]!r}"[:200])
            continue
        if not query.is_own(native_id, submitted):
            total.add(names[uid], account, amount, until)
    return total


def parse_use(output: str, delimiter: str) -> UseRecords:
    """Parse the output of `sacct --parsable` with USE_FIELDS. Raises ValueError."""
    return UseRecords(*split_records(output, delimiter, len(USE_FIELDS)))


def parse_slurmdbd(output: str) -> Slurmdbd:
    """Parse the output of `sacctmgr show configuration`, with the time in UTC."""
    config = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", output, re.MULTILINE))
    if not {"BOOT_TIME", "SlurmUser", "PrivateData"} <= config.keys():
        raise ValueError("no BOOT_TIME, SlurmUser or PrivateData")
    return Slurmdbd(
        boot=calendar.timegm(time.strptime(config["BOOT_TIME"], "%Y-%m-%dT%H:%M:%S")),
        user=config["SlurmUser"].partition("(")[0],
        hides_jobs="jobs" in config["PrivateData"].split(","),
    )
