"""Queries of Slurm's accounting for jobs that squeue no longer lists.

The source is `sacct` if the cluster has slurmdbd, else the file of `JobCompType=jobcomp/filetxt`
if it is readable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import IO, Protocol

from msgspec import structs

from metasched.adapters.launcher_client import uid_of, user_name_of
from metasched.adapters.slurm.accounting_records import (
    SlurmRecord,
    end_time,
    latest_records,
    parse_completion,
)
from metasched.adapters.slurm.foreign_use import Slurmdbd, UserLevels, is_restricted
from metasched.adapters.slurm.listing import ControllerInfo, comma_lists
from metasched.model.adapter_errors import Refused
from metasched.model.listing import AccountingAnswer, MissingTask

_BLOCK_SIZE = 2**16  # bytes; the search for the first relevant line ends within a block
_END_TIME_ERROR = 600.0  # seconds; a recorded end may be this early (job suspended, node lost)
# seconds after which a new job is certainly among the messages to slurmdbd: a thread of slurmctld
# collects new jobs every 5 s
_RECORD_DELAY = 15.0


class AccountingSource(UserLevels, Protocol):
    """The commands that accounting needs."""

    def controller(self) -> ControllerInfo: ...

    def sacct(self, *filters: str) -> list[SlurmRecord]:
        """Return the records that the filters select, a record for each run of a job."""

    def unsent_messages(self) -> int:
        """Return the number of messages to slurmdbd that the controller has queued."""

    def purge_age(self) -> float | None:
        """Return the age in seconds at which slurmdbd may purge records; None: never."""

    def slurmdbd(self) -> Slurmdbd: ...


class SlurmAccounting:
    """The accounting of a cluster.

    Records count only if their job belongs to `user` (a user id) or, with None, to the owner of
    the missing task. Slurm writes job names into the file of jobcomp/filetxt as they are, line
    breaks included (22.05): a name may contain a perfect line of another user's job. So with many
    owners the file counts only if the site says so.
    """

    def __init__(
        self,
        source: AccountingSource,
        tag_field: str,
        user: int | None,
        trust_completions: bool = False,
    ) -> None:
        self._source, self._tag_field, self._user = source, tag_field, user
        self._uses_completions = trust_completions or user is not None

    def describe_lookup(self, controller: ControllerInfo, submit_lines: bool) -> str:
        """Describe how ended jobs are found; "" if the cluster has no usable accounting.

        With `submit_lines`, jobs are submitted by sbatch: slurmdbd stores its command line.
        """
        if controller.slurmdbd:
            if self._tag_field != "comment":
                return f"sacct, by {self._tag_field}"
            if controller.comments:
                return "sacct, by comment"
            return f"sacct, by {'submit line' if submit_lines else 'id and time of submission'}"
        path = controller.completions if self._uses_completions else None
        if path and os.access(path, os.R_OK):
            key = "id and time of submission" if self._tag_field == "comment" else self._tag_field
            return f"jobcomp/filetxt, by {key}"
        return ""

    def query(self, missing: Sequence[MissingTask]) -> AccountingAnswer:
        """Query accounting for missing tasks; see `Adapter.query_accounting`.

        A task provably never started if the controller has been up since before its dispatch, has
        no unsent messages to slurmdbd, and accounting reaches back to that time without a record.
        It must have been submitted for some seconds, and slurmdbd must not hide the jobs of others.
        A record that cannot be read may be of any task of its user.
        """
        users = self._owners(missing)
        missing = list(users)
        if not missing:
            return AccountingAnswer()
        newest = time.time()
        controller = self._source.controller()
        clock_skew = time.time() - controller.now
        if controller.slurmdbd:
            # before the records: messages that are queued later are about later events
            complete = self._source.unsent_messages() == 0 and not self._is_restricted()
            purge_age = self._source.purge_age()
            newest -= _RECORD_DELAY
            matches = self._query_slurmdbd(missing, clock_skew, users.values())
            recorded_since = 0.0 if purge_age is None else time.time() - purge_age
        elif self._uses_completions and (path := controller.completions):
            complete = True
            matches, recorded_since = self._read_completions(path, missing, clock_skew)
        else:
            return AccountingAnswer()
        doubtful_users = {record.user for record in matches if not record.is_readable}
        matches = [record for record in matches if record.user in users.values()]
        proven_since = max(controller.boot + 1 + clock_skew, recorded_since)
        latest: dict[MissingTask, SlurmRecord | None] = {}
        for user in set(users.values()):  # another user may have forged a mark
            owned = [task for task in missing if users[task] == user]
            own_records = [record for record in matches if record.user == user]
            latest |= latest_records(own_records, owned, clock_skew)
        unmarked_times = [r.submit + clock_skew for r in matches if r.mark is None]
        return AccountingAnswer(
            rows=tuple(
                structs.replace(status, owner=task.user)
                for task, record in latest.items()
                if record and (status := record.job_status(task))
            ),
            never_started=tuple(
                (task.tag, task.task)
                for task, record in latest.items()
                if complete
                and doubtful_users.isdisjoint(("", users[task]))
                and record is None
                and task.dispatched >= proven_since
                and (task.accepted or task.dispatched) <= newest
                and (
                    task.native_id is not None
                    or all(submitted < task.dispatched - 1 for submitted in unmarked_times)
                )
            ),
        )

    def _is_restricted(self) -> bool:
        """Return whether slurmdbd hides the jobs of users from this process, in site mode."""
        if self._user is not None:
            return False
        user = user_name_of(os.geteuid())
        return is_restricted(user, self._source.slurmdbd(), self._source)

    def _owners(self, missing: Iterable[MissingTask]) -> dict[MissingTask, str]:
        """Return the user id of each task's owner, except owners without an account."""
        owners = {}
        for task in missing:
            with suppress(Refused):
                owners[task] = str(uid_of(task.user) if self._user is None else self._user)
        return owners

    def _query_slurmdbd(
        self, missing: Sequence[MissingTask], clock_skew: float, users: Iterable[str]
    ) -> list[SlurmRecord]:
        matches = []
        ids = sorted({task.native_id for task in missing if task.native_id is not None})
        for id_list in comma_lists(ids):
            matches += self._source.sacct(f"--jobs={id_list}")
        dispatch_times = [task.dispatched for task in missing if task.native_id is None]
        if dispatch_times:
            begin = time.gmtime(min(dispatch_times) - clock_skew - 2)
            matches += self._source.sacct(
                f"--user={','.join(sorted(set(users)))}",
                f"--starttime={time.strftime('%Y-%m-%dT%H:%M:%S', begin)}",
            )
        return matches

    def _read_completions(
        self, path: str, missing: Collection[MissingTask], clock_skew: float
    ) -> tuple[list[SlurmRecord], float]:
        """Return records that may match, and the time since which the file is complete."""
        oldest = min(task.dispatched for task in missing) - clock_skew
        try:
            with open(path, "rb") as file:
                first_end = end_time(_decode(file.readline()))
                file.seek(_find_position(file, oldest - _END_TIME_ERROR))
                matches = [
                    record
                    for line in file
                    if (record := parse_completion(_decode(line), self._tag_field))
                ]
        except OSError:
            return [], time.time()
        if first_end is None:
            return matches, time.time()
        return matches, first_end + clock_skew + _END_TIME_ERROR


def _find_position(file: IO[bytes], not_before: float) -> int:
    """Return the position of a line at most a block before the first end at `not_before`.

    Lines are in the order of the ends of jobs. Binary search, O(log size).
    """
    low, high = 0, os.fstat(file.fileno()).st_size
    while high - low > _BLOCK_SIZE:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        ended = end_time(_decode(file.readline()))
        if ended is not None and ended >= not_before:
            high = middle
        else:
            low = middle
    file.seek(low)
    if low:
        file.readline()
    return file.tell()


def _decode(line: bytes) -> str:
    return line.decode(errors="replace")
