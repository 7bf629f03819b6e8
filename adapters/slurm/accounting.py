"""Asks Slurm's accounting what became of jobs that Slurm lists no more.

`sacct` where slurmdbd is, else the file of `JobCompType=jobcomp/filetxt` where it can be read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import IO, Protocol

from msgspec import structs

from metasched.adapters.errors import Refused
from metasched.adapters.launcher_client import uid_of
from metasched.adapters.slurm import accounting_records as records
from metasched.adapters.slurm.listing import ControllerInfo, comma_lists
from metasched.model.listing import AccountingAnswer, MissingTask

_BLOCK_SIZE = 2**16  # bytes; where the search for the first line in question ends
_END_TIME_ERROR = 600.0  # seconds by which a job's end may be told too early (suspended, node lost)


class AccountingSource(Protocol):
    """What accounting asks the cluster's commands."""

    def controller(self) -> ControllerInfo: ...

    def sacct(self, *filters: str) -> list[records.SlurmRecord]:
        """Every record of every try that the filters choose."""

    def unsent_messages(self) -> int:
        """How many messages to slurmdbd the controller still holds back."""

    def purge_age(self) -> float | None:
        """The age in seconds at which slurmdbd may have thrown a record away; None: never."""


class SlurmAccounting:
    """The accounting of one cluster; jobs are those of `user`, or of who owns what is missing."""

    def __init__(self, source: AccountingSource, tag_field: str, user: int | None) -> None:
        self._source, self._tag_field, self._user = source, tag_field, user

    def describe_lookup(self, controller: ControllerInfo, submit_lines: bool) -> str:
        """In words: how an ended job is found there; "" if there is no accounting to ask.

        `submit_lines`: jobs are sent by sbatch, of whose words slurmdbd keeps a copy.
        """
        if controller.slurmdbd:
            if self._tag_field != "comment":
                return f"sacct, by {self._tag_field}"
            if controller.comments:
                return "sacct, by comment"
            return f"sacct, by {'submit line' if submit_lines else 'id and time of submission'}"
        if controller.completions and os.access(controller.completions, os.R_OK):
            key = "id and time of submission" if self._tag_field == "comment" else self._tag_field
            return f"jobcomp/filetxt, by {key}"
        return ""

    def query(self, missing: Sequence[MissingTask]) -> AccountingAnswer:
        """See `Adapter.trace`.

        Proof that a task never began: the controller has been up since before it was sent, has
        told accounting all it had to tell, and accounting reaches back so far and lacks it.
        """
        users = self._owners(missing)
        missing = list(users)
        if not missing:
            return AccountingAnswer()
        controller = self._source.controller()
        clock_skew = time.time() - controller.now
        if controller.slurmdbd:
            # asked first: what the controller tells later is new
            complete, purge_age = self._source.unsent_messages() == 0, self._source.purge_age()
            matches = self._query_slurmdbd(missing, clock_skew, users.values())
            recorded_since = 0.0 if purge_age is None else time.time() - purge_age
        elif controller.completions:
            complete = True
            matches, recorded_since = self._read_completions(
                controller.completions, missing, clock_skew
            )
        else:
            return AccountingAnswer()
        matches = [record for record in matches if record.user in users.values()]
        proven_since = max(controller.boot + 1 + clock_skew, recorded_since)
        latest: dict[MissingTask, records.SlurmRecord | None] = {}
        for user in set(users.values()):  # others may forge a mark
            owned = [task for task in missing if users[task] == user]
            latest |= records.latest_records(
                (r for r in matches if r.user == user), owned, clock_skew
            )
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
                and record is None
                and task.dispatched >= proven_since
                and (
                    task.native_id is not None
                    or all(submitted < task.dispatched - 1 for submitted in unmarked_times)
                )
            ),
        )

    def _owners(self, missing: Iterable[MissingTask]) -> dict[MissingTask, str]:
        """The user id of each; without those whose owner has no account any more."""
        owners = {}
        for task in missing:
            with suppress(Refused):
                owners[task] = str(uid_of(task.user) if self._user is None else self._user)
        return owners

    def _query_slurmdbd(
        self, missing: Sequence[MissingTask], clock_skew: float, users: Iterable[str]
    ) -> list[records.SlurmRecord]:
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
    ) -> tuple[list[records.SlurmRecord], float]:
        """The records that may be those of the missing, and since when the file tells all."""
        oldest = min(task.dispatched for task in missing) - clock_skew
        try:
            with open(path, "rb") as file:
                first_end = records.end_time(_decode(file.readline()))
                file.seek(_find_position(file, oldest - _END_TIME_ERROR))
                matches = [
                    record
                    for line in file
                    if (record := records.parse_completion(_decode(line), self._tag_field))
                ]
        except OSError:
            return [], time.time()
        recorded_since = (
            time.time() if first_end is None else first_end + clock_skew + _END_TIME_ERROR
        )
        return matches, recorded_since


def _find_position(file: IO[bytes], not_before: float) -> int:
    """Where the lines begin that end at `moment` or later, not much later; O(log size).

    Lines are in the order in which jobs ended.
    """
    low, high = 0, os.fstat(file.fileno()).st_size
    while high - low > _BLOCK_SIZE:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        ended = records.end_time(_decode(file.readline()))
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
