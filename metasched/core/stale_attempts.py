"""Attempts that come back: a manager lists what had been given up, or had ended. Pure."""

from __future__ import annotations

from metasched.core.cluster_view import ClusterView, Stray
from metasched.core.events import Withdraw
from metasched.core.state import Books
from metasched.core.task_state_machine import PURSUE_AGAIN, Attempts
from metasched.core.tasks import Change, Intent, Task
from metasched.core.transitions import LIVE
from metasched.model.job import Reason, State
from metasched.model.listing import Row


class Comebacks:
    """Decides which attempt of a task goes on, and has the others ended.

    A manager that lost its last seconds brings back what was cancelled; an operator may have
    called lost what was not. One that waits is withdrawn; one that began goes before a newer one
    that has not; two that began are both left alone, and told.
    """

    def __init__(self, books: Books, attempts: Attempts) -> None:
        self._books, self._attempts = books, attempts

    def listed(self, view: ClusterView, job: int, sending: int, row: Row) -> None:
        """A manager lists an attempt that is nobody's live one."""
        key = (job, row.task, sending)
        known = view.strays.pop(key, None)
        began = row.started is not None or row.state in (State.RUNNING, State.SUSPENDED)
        if not began and row.state is not State.PENDING:
            return
        stray = known or Stray(row)
        stray.row = row
        past = self._books.past(job, row.task).get(sending)
        task = self._books.tasks.get((job, row.task))
        if past is None:
            if row.state in LIVE:
                self._books.out.warnings.append(
                    f"{view.name} lists {row.tag}, and nobody knows why"
                )
            return
        if past.revoked:
            if not began:  # else it has found its claim taken
                stray.wish = True
                view.strays[key] = stray
            return
        if task is None:
            self._after_end(view, key, stray, began)
            return
        view.strays[key] = stray
        if began:
            self.began(task, sending, row.state in LIVE)
            if task.attempt is not None and task.attempt.begun:
                view.end_waiting(key)
        elif task.attempt is None:
            self._attempts.adopt(task, sending, "it was given up, and is there after all")
        elif stray.wish is None:
            stray.wish = True
            cause = f"sending {sending} on {past.cluster} is back: it is withdrawn"
            self._books.note(task, cause)

    def began(self, task: Task, sending: int, live: bool) -> None:
        """An earlier sending of a task has begun, which was not known, or is not over (`live`).

        What an operator called lost may have been known to have begun; what had ended its
        manager may begin anew.
        """
        past, attempt = task.past[sending], task.attempt
        news, past.began = not past.began, True
        if news:
            self._books.out.past[(*task.place, sending)] = past
        elif not live:
            return
        where = f"sending {sending} on {past.cluster} is back"
        if attempt is None:
            self._attempts.adopt(task, sending, "it was given up, and is there after all")
        elif attempt.intent is Intent.CANCEL:
            if self.end(task):
                self._books.note(task, f"{where}: it is cancelled")
        elif attempt.begun and past.requeued:
            if self.end(task, sending):
                self._books.note(task, f"{where}: it was requeued, and is ended again")
        elif not attempt.begun:
            if attempt.intent is Intent.YIELD:
                return
            attempt.intent, attempt.rival = Intent.YIELD, sending
            attempt.target = attempt.asked = None
            self._books.note(task, f"{where} and has begun: it goes before")
            self._attempts.pursue(task)
        elif news or task.reason != Reason.DUPLICATE:
            self._attempts.duplicate(task, sending)

    def end(self, task: Task, only: int | None = None) -> bool:
        """Wish for the end of whatever is back of a task, or of one sending; was any wish new?"""
        back = [
            stray
            for view in self._books.views.values()
            for (job, index, sending), stray in view.strays.items()
            if (job, index) == task.place and only in (None, sending) and stray.wish is not False
        ]
        for stray in back:
            stray.wish, stray.asked = False, 0.0
        return bool(back)

    def _after_end(
        self, view: ClusterView, key: tuple[int, int, int], stray: Stray, began: bool
    ) -> None:
        """An attempt of a task that has ended is listed as live, or as having begun."""
        job, index, sending = key
        ended, live = self._books.ended[job, index], stray.row.state in LIVE
        past = ended.past[sending]
        if past.began and not live:
            return
        where = f"sending {sending} on {view.name}"
        view.strays[key] = stray
        if stray.row.state is State.PENDING:
            wish, cause = not began, f"{where} is back: it is withdrawn"
        elif live and ended.state is State.CANCELLED:
            wish, cause = False, f"{where} is back: it is cancelled again"
        elif live and past.requeued:
            wish, cause = False, f"{where} is back: it was requeued, and is ended again"
        elif past.began:
            return
        else:
            wish, cause = None, f"DUPLICATE: {where} has begun, too"
            past.began = True
            self._books.out.past[key] = past
            self._books.out.warnings.append(f"job {job}: {cause}")
        if wish is not None and wish == stray.wish:
            return
        stray.wish, stray.asked = wish, 0.0
        self._books.out.changes.append(
            Change(
                *(job, index, ended.attempt, None, ended.state, ended.state),
                *(view.name, "", cause),
            )
        )

    def chase(self, view: ClusterView) -> None:
        """Ask for the ends of those that must not go on, again if that shows no effect."""
        now = self._books.now
        for (job, index, sending), stray in view.strays.items():
            if stray.wish is None or (stray.asked and now - stray.asked < PURSUE_AGAIN):
                continue
            stray.asked = now
            natives: dict[int, str | None] = {index: stray.row.native_id}
            self._books.out.actions.append(Withdraw(job, sending, view.name, natives, stray.wish))
