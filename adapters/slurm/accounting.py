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
from metasched.adapters.slurm.listing import Controller, joined
from metasched.model.listing import Missing, Trace

_BLOCK = 2**16  # bytes; where the search for the first line in question ends
_LATE = 600.0  # seconds by which a job's end may be told too early (suspended, node lost)


class Answers(Protocol):
    """What accounting asks the cluster's commands."""

    def controller(self) -> Controller: ...

    def sacct(self, *filters: str) -> list[records.Record]:
        """Every record of every try that the filters choose."""

    def unsent(self) -> int:
        """How many messages to slurmdbd the controller still holds back."""

    def purged(self) -> float | None:
        """The age in seconds at which slurmdbd may have thrown a record away; None: never."""


class Accounting:
    """The accounting of one cluster; jobs are those of `user`, or of who owns what is missing."""

    def __init__(self, answers: Answers, tag_field: str, user: int | None) -> None:
        self._answers, self._tag_field, self._user = answers, tag_field, user

    def kind(self, controller: Controller, submit_lines: bool) -> str:
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
            by = "id and time of submission" if self._tag_field == "comment" else self._tag_field
            return f"jobcomp/filetxt, by {by}"
        return ""

    def trace(self, missing: Sequence[Missing]) -> Trace:
        """See `Adapter.trace`.

        Proof that a task never began: the controller has been up since before it was sent, has
        told accounting all it had to tell, and accounting reaches back so far and lacks it.
        """
        users = self._owners(missing)
        missing = list(users)
        if not missing:
            return Trace()
        controller = self._answers.controller()
        skew = time.time() - controller.now
        if controller.slurmdbd:
            # asked first: what the controller tells later is new
            complete, age = self._answers.unsent() == 0, self._answers.purged()
            found = self._of_slurmdbd(missing, skew, users.values())
            reaches = 0.0 if age is None else time.time() - age
        elif controller.completions:
            complete = True
            found, reaches = self._of_file(controller.completions, missing, skew)
        else:
            return Trace()
        found = [record for record in found if record.user in users.values()]
        since = max(controller.boot + 1 + skew, reaches)
        last: dict[Missing, records.Record | None] = {}
        for user in set(users.values()):  # others may forge a mark
            own = [one for one in missing if users[one] == user]
            last |= records.newest((r for r in found if r.user == user), own, skew)
        unmarked = [r.submit + skew for r in found if r.mark is None]
        return Trace(
            rows=tuple(
                structs.replace(row, owner=one.user)
                for one, record in last.items()
                if record and (row := record.row(one))
            ),
            unstarted=tuple(
                (one.tag, one.task)
                for one, record in last.items()
                if complete
                and record is None
                and one.sent >= since
                and (one.native_id is not None or all(when < one.sent - 1 for when in unmarked))
            ),
        )

    def _owners(self, missing: Iterable[Missing]) -> dict[Missing, str]:
        """The user id of each; without those whose owner has no account any more."""
        found = {}
        for one in missing:
            with suppress(Refused):
                found[one] = str(uid_of(one.user) if self._user is None else self._user)
        return found

    def _of_slurmdbd(
        self, missing: Sequence[Missing], skew: float, users: Iterable[str]
    ) -> list[records.Record]:
        found = []
        ids = sorted({one.native_id for one in missing if one.native_id is not None})
        for some in joined(ids):
            found += self._answers.sacct(f"--jobs={some}")
        unnamed = [one.sent for one in missing if one.native_id is None]
        if unnamed:
            begin = time.gmtime(min(unnamed) - skew - 2)
            found += self._answers.sacct(
                f"--user={','.join(sorted(set(users)))}",
                f"--starttime={time.strftime('%Y-%m-%dT%H:%M:%S', begin)}",
            )
        return found

    def _of_file(
        self, path: str, missing: Collection[Missing], skew: float
    ) -> tuple[list[records.Record], float]:
        """The records that may be those of the missing, and since when the file tells all."""
        oldest = min(one.sent for one in missing) - skew
        try:
            with open(path, "rb") as file:
                first = records.ended_at(_text(file.readline()))
                file.seek(_first_after(file, oldest - _LATE))
                found = [
                    record
                    for line in file
                    if (record := records.completion(_text(line), self._tag_field))
                ]
        except OSError:
            return [], time.time()
        reaches = time.time() if first is None else first + skew + _LATE
        return found, reaches


def _first_after(file: IO[bytes], moment: float) -> int:
    """Where the lines begin that end at `moment` or later, not much later; O(log size).

    Lines are in the order in which jobs ended.
    """
    low, high = 0, os.fstat(file.fileno()).st_size
    while high - low > _BLOCK:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        ended = records.ended_at(_text(file.readline()))
        if ended is not None and ended >= moment:
            high = middle
        else:
            low = middle
    file.seek(low)
    if low:
        file.readline()
    return file.tell()


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
