"""Mails about running jobs that have used 50, 80 or 90% of their time limits.

Nothing of this is stored before it is due: the times follow from starts and limits, which may
change. The database remembers which were stored, so a restart repeats none. What became due while
no daemon ran is sent late, but not after `LATEST`.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
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
MAILS_AT_ONCE = 100  # stored in a look; users take turns, and the others follow in the next
TASKS_AT_ONCE = 1000  # looked at in a look: of most there may be nothing to mail
SPARE = 64  # entries of a heap that may be void without regard to its tasks


class MailTimes:
    """Tasks of a user by the time at which the next mail about each is due, in epoch seconds.

    Its size follows the number of tasks: entries of ended tasks do not stay until they are due.
    """

    def __init__(self) -> None:
        self._due: dict[TaskId, float] = {}
        self._heap: list[tuple[float, TaskId]] = []  # an entry that differs from `_due` is void

    def __len__(self) -> int:
        return len(self._due)

    def set(self, task_id: TaskId, due: float) -> None:
        """Set or change the time of a task."""
        if self._due.get(task_id) != due:
            self._due[task_id] = due
            heapq.heappush(self._heap, (due, task_id))
            self._drop_void()

    def remove(self, task_id: TaskId) -> None:
        """Forget a task; it may be unknown."""
        if self._due.pop(task_id, None) is not None:
            self._drop_void()

    def is_due(self, now: float) -> bool:
        """Return whether a task is due."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return bool(self._heap) and self._heap[0][0] <= now

    def take_first(self) -> TaskId:
        """Remove the task that is due first and return it; `is_due` was True."""
        task_id = heapq.heappop(self._heap)[1]
        del self._due[task_id]
        return task_id

    def _drop_void(self) -> None:
        if len(self._heap) > 2 * len(self._due) + SPARE:
            self._heap = [(due, task_id) for task_id, due in self._due.items()]
            heapq.heapify(self._heap)


class LimitMails:
    """Watches running tasks whose owners want such mails."""

    def __init__(self, host: SchedulerHost, commit: Callable[[], Awaitable[None]]) -> None:
        """`commit` waits until the open group of the ledger is stored."""
        self._host, self._commit = host, commit
        self._due: dict[str, MailTimes] = {}  # by user, who had a turn last comes last
        # (start, percent) by task; of an array with a common mail for all tasks, by (job, -1)
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
        """Watch those of the tasks about which there may be such a mail; forget the others."""
        for task in tasks:
            if task.job.mail is None:
                continue
            user, due = task.job.user, self._next_due(task)
            if due is not None:
                self._due.setdefault(user, MailTimes()).set(task.task_id, due)
            elif (times := self._due.get(user)) is not None:
                times.remove(task.task_id)
                if not times:
                    del self._due[user]

    async def run(self) -> None:
        """Store mails until cancelled. StorageFailed ends the service."""
        while True:
            if self.look(time.time()):
                await self._commit()
            await asyncio.sleep(INTERVAL)

    def look(self, now: float) -> bool:
        """Add the mails that are due to the open group of the ledger; return whether any are.

        Users with mails that are due take turns of a task each.
        """
        mails: list[Mail] = []
        waiting = deque(user for user, times in self._due.items() if times.is_due(now))
        for _ in range(TASKS_AT_ONCE):
            if not waiting or len(mails) >= MAILS_AT_ONCE:
                break
            user = waiting.popleft()
            times = self._due.pop(user)
            task = self._host.core.tasks.get(times.take_first())
            if times:
                self._due[user] = times
            if task is not None:
                mails += self._mails_due(task, now)
                self.watch([task])
            if user in self._due and self._due[user].is_due(now):
                waiting.append(user)
        if mails:
            self._host.ledger.queue_limit_mails(mails)
        return bool(mails)

    def _mails_due(self, task: Task, now: float) -> Iterator[Mail]:
        """Yield the mails about a task that are due; they and late mails count as sent."""
        for due, started, percent in list(self._shares(task)):
            if due <= now:
                self._sent.setdefault(_subject(task), set()).add((started, percent))
                if now - due <= LATEST:
                    yield _mail(task, percent, now)

    def _next_due(self, task: Task) -> float | None:
        return min((due for due, _, _ in self._shares(task)), default=None)

    def _shares(self, task: Task) -> Iterator[tuple[float, float, int]]:
        """Yield due time, start and percent of each mail about a task that was not sent.

        The start is 0.0 for an array with a common mail for all tasks.
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
