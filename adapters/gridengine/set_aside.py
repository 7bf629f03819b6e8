"""Jobs whose lines in qstat or in the accounting cannot be read, for as long as they may exist."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from metasched.adapters.gridengine.listing import OwnJobs, TaskKey, UnreadableJob
from metasched.model.listing import QuarantinedRow


class SetAsideJobs:
    """Rows by task, each until a job of its task can be read, or until its time is over.

    Listings prove absence only because each job is in one of them or in the accounting. So a row of
    qstat stays until the accounting can report the job's end, a line of the accounting for `keep`
    seconds: it is read once.
    """

    def __init__(self, own_jobs: OwnJobs, keep: float) -> None:
        self._own_jobs, self._keep = own_jobs, keep
        self._rows: dict[TaskKey, tuple[QuarantinedRow, float]] = {}  # with their ends, epoch s

    def __iter__(self) -> Iterator[TaskKey]:
        return iter(self._rows)

    def discard(self, key: TaskKey) -> None:
        """Remove the row of a task whose end is known, if there is one."""
        self._rows.pop(key, None)

    @property
    def rows(self) -> tuple[QuarantinedRow, ...]:
        """The rows of a listing's `quarantined`."""
        return tuple(row for row, _ in self._rows.values())

    def update(
        self,
        in_qstat: Sequence[UnreadableJob],
        in_accounting: Sequence[UnreadableJob],
        readable: Collection[TaskKey],
        listed_at: float,
        lag: float,
    ) -> None:
        """Add the unreadable lines of a poll; drop rows that are over or have a readable job.

        `lag` are the seconds after an end until the accounting has its line.
        """
        by_qstat = self._own_jobs.set_aside(in_qstat)
        by_accounting = self._own_jobs.set_aside(in_accounting)
        for rows, seconds in ((by_accounting, self._keep), (by_qstat, lag)):
            for key, row in rows.items():
                _, previous = self._rows.get(key, (row, 0.0))
                self._rows[key] = (row, max(listed_at + seconds, previous))
        self._rows = {
            key: (row, end)
            for key, (row, end) in self._rows.items()
            if end >= listed_at and key not in readable
        }
