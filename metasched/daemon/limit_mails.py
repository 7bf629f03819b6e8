"""Mails about running jobs that have used 50, 80 or 90% of their time limits.

Nothing of this is stored before it is due: the times follow from starts and limits, which may
change. The outbox knows which mails it has, so a restart repeats none. What became due while no
daemon ran is sent late, but not after `LATEST`.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator

from metasched.core.events import Outcome
from metasched.core.notifications import limit_notice, reports_tasks
from metasched.core.tasks import Task, TaskId
from metasched.daemon.host import SchedulerHost
from metasched.db.outbox import Mail
from metasched.model.job import State
from metasched.model.mail_types import SHARES_OF_LIMIT

INTERVAL = 10.0  # seconds between looks
LATEST = 3600.0  # seconds since it was due
MOST_AT_ONCE = 100  # tasks of a look; the others follow in the next


class LimitMails:
    """Watches running tasks whose owners want such mails."""

    def __init__(self, host: SchedulerHost, commit: Callable[[], Awaitable[None]]) -> None:
        """`commit` waits until the open group of the ledger is stored."""
        self._host, self._commit = host, commit
        self._due: list[tuple[float, TaskId]] = []  # heap; an entry may be out of date
        # (start, percent) by task; of an array that has one mail for all tasks, by (job, -1)
        self._sent: dict[TaskId, set[tuple[float, int]]] = {}
        self.watch(host.core.tasks.values())

    def check_outcome(self, outcome: Outcome) -> None:
        """Watch tasks that run, or whose limits have changed; forget the others."""
        self.watch(outcome.tasks.values())
        for task in outcome.tasks.values() if self._sent else ():
            if not _runs(task):
                is_over = reports_tasks(task.job) or not self._host.core.is_open(task.job.id)
                if is_over:
                    self._sent.pop(_subject(task), None)

    def watch(self, tasks: Iterable[Task]) -> None:
        """Watch those of the tasks about which there may be such a mail."""
        for task in tasks:
            if task.job.mail is not None and (due := self._next_due(task)) is not None:
                heapq.heappush(self._due, (due, task.task_id))

    async def run(self) -> None:
        """Store mails until cancelled. StorageFailed ends the service."""
        while True:
            if self.look(time.time()):
                await self._commit()
            await asyncio.sleep(INTERVAL)

    def look(self, now: float) -> bool:
        """Add the mails that are due to the open group of the ledger; return whether any are."""
        mails = []
        for _ in range(MOST_AT_ONCE):
            if not self._due or self._due[0][0] > now:
                break
            task_id = heapq.heappop(self._due)[1]
            task = self._host.core.tasks.get(task_id)
            if task is None or not _runs(task):
                continue
            for due, started, percent in list(self._shares(task)):
                if due <= now:
                    self._sent.setdefault(_subject(task), set()).add((started, percent))
                    if now - due <= LATEST:
                        mails.append(_mail(task, percent, now))
            self.watch([task])
        if mails:
            self._host.ledger.queue_limit_mails(mails)
        return bool(mails)

    def _next_due(self, task: Task) -> float | None:
        return min((due for due, _, _ in self._shares(task)), default=None)

    def _shares(self, task: Task) -> Iterator[tuple[float, float, int]]:
        """Yield due time, start and percent of each mail about a task that was not sent.

        The start is 0.0 for an array that has one mail for all tasks.
        """
        mail, limit = task.job.mail, task.job.time_limit
        if mail is None or limit is None or not _runs(task):
            return
        begin = task.live_attempt.started
        assert begin is not None
        started = begin if reports_tasks(task.job) else 0.0
        sent = self._sent.get(_subject(task), ())
        for name, percent in SHARES_OF_LIMIT.items():
            if name in mail.types and (started, percent) not in sent:
                yield begin + limit * percent / 100, started, percent


def _subject(task: Task) -> TaskId:
    return task.task_id if reports_tasks(task.job) else (task.job.id, -1)


def _runs(task: Task) -> bool:
    return (
        task.state is State.RUNNING
        and task.attempt is not None
        and task.attempt.started is not None
    )


def _mail(task: Task, percent: int, now: float) -> Mail:
    mail = task.job.mail
    assert mail is not None
    return Mail(task.job.user, mail.user or task.job.user, limit_notice(task, percent, now))
