"""Mails about shares of time limits: no account delays those of another, and nothing piles up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from metasched.core.tasks import Attempt, Task, TaskId
from metasched.daemon.limit_mails import MAILS_AT_ONCE, LimitMails
from metasched.db.outbox import Mail
from metasched.model.job import State
from metasched.model.mail import MailRequest
from metasched.model.mail_types import SHARES_OF_LIMIT
from tests.unit.core_site import job


class Host:
    """Tasks that run, and the mails about them."""

    def __init__(self) -> None:
        self.tasks: dict[TaskId, Task] = {}
        self.mails: list[Mail] = []
        self.core = SimpleNamespace(tasks=self.tasks, is_open=lambda _: True)
        self.ledger = SimpleNamespace(queue_limit_mails=self.mails.extend)
        self.watcher = LimitMails(cast(Any, self), cast(Any, None))

    def start(self, user: str, id: int, now: float, limit: float) -> Task:
        mail = MailRequest(types=tuple(SHARES_OF_LIMIT))
        task = Task(job(id, user=user, mail=mail, time_limit=limit), 0, 0, 0.0)
        task.state = State.RUNNING
        task.attempt = Attempt(1, id, "left", State.RUNNING, now, started=now)
        self.tasks[task.task_id] = task
        self.changed(task)
        return task

    def end(self, task: Task) -> None:
        task.state = State.COMPLETED
        del self.tasks[task.task_id]
        self.changed(task)

    def changed(self, *tasks: Task) -> None:
        outcome = SimpleNamespace(tasks={task.task_id: task for task in tasks})
        self.watcher.check_outcome(cast(Any, outcome))

    def told(self, user: str) -> list[str]:
        return [mail.notice.kind for mail in self.mails if mail.user == user]

    def entries(self) -> int:
        return sum(len(times._heap) for times in self.watcher._due.values())


def test_many_starts_of_an_account_do_not_delay_the_mails_of_another() -> None:
    host = Host()
    host.start("victim", 1, 0.0, 1000.0)
    running: list[Task] = []
    for second in range(1001):
        running += [host.start("ada", 2 + 20 * second + n, second, 60.0) for n in range(20)]
        if second >= 55:
            ended, running = running[:20], running[20:]
            for task in ended:
                host.end(task)
        if second % 10 == 0:
            host.watcher.look(float(second))
            shares = [k for k, at in (("50", 500), ("80", 800), ("90", 900)) if second >= at]
            assert host.told("victim") == [f"job_time_limit_{share}" for share in shares]
    assert len(host.told("ada")) > 1000
    assert host.entries() < 3 * len(running)


def test_users_take_turns() -> None:
    host = Host()
    tasks = [host.start("ada", n, 0.0, 100.0) for n in range(1, 301)]
    tasks += [host.start(user, 1000 + n, 1.0, 100.0) for n, user in enumerate("bcd")]
    host.watcher.look(55.0)
    assert len(host.mails) == MAILS_AT_ONCE
    assert all(len(host.told(user)) == 1 for user in "bcd")
    for _ in range(5):
        host.watcher.look(55.0)
    assert len(host.told("ada")) == 300
    for task in tasks:
        host.end(task)
    assert host.watcher._due == {}


def test_tasks_that_end_long_before_a_share_leave_nothing() -> None:
    host = Host()
    host.start("ada", 1, 0.0, 1e7)
    for n in range(2, 2000):
        host.end(host.start("ada", n, 0.0, 1e7))
    assert host.entries() < 100


def test_a_task_that_changes_often_is_watched_once() -> None:
    host = Host()
    task = host.start("ada", 1, 0.0, 1e6)
    for n in range(1000):
        task.job = job(1, user="ada", mail=task.job.mail, time_limit=1000.0 + n % 2)
        host.changed(task, task)
    assert host.entries() < 100
    host.watcher.look(501.0)
    assert host.told("ada") == ["job_time_limit_50"]
