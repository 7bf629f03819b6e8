"""What happens to a task and to its attempts: the only place where a state changes. Pure.

An event goes through the one table (`transitions`); what follows from the new state is done here,
so that indexes, loads, leases and gates agree whatever happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from metasched.core.cluster_view import ClusterView
from metasched.core.events import Revoke, Withdraw
from metasched.core.gates import Gates
from metasched.core.leasing import Leasing
from metasched.core.state import Books
from metasched.core.tasks import BACK, Attempt, Intent, Past, Task
from metasched.core.transitions import BEGUN, FINAL, LIVE, UNSTARTED, Event, advance, reported
from metasched.model.dependencies import Fate, Prospect
from metasched.model.job import MANAGER_REASON, Job, Reason, State
from metasched.model.listing import Claim, Row

PURSUE_AGAIN = 60.0  # seconds after which a wish that shows no effect is told to the manager again
LATER_START = 5.0  # seconds by which a start must differ to be another; managers round their times

# What each event compares with: a look into an enum is a call on Python 3.11, four times as long
_QUEUED: Final = State.QUEUED
_HELD: Final = State.HELD
_PENDING: Final = State.PENDING
_DUPLICATE: Final = Reason.DUPLICATE
_REQUEUE: Final = Intent.REQUEUE
_KILL: Final = Event.KILL
_WITHDRAW: Final = Event.WITHDRAW


class Attempts:
    """Lets events happen to tasks (`advance`), and rows of managers to their attempts (`row`)."""

    def __init__(self, books: Books, leasing: Leasing, gates: Gates) -> None:
        self._books, self._leasing, self._gates = books, leasing, gates

    # Tasks that come and go

    def open(self, task: Task) -> None:
        """A task is there that has not ended, or that runs again."""
        self._books.tasks[task.place] = task
        of_job = self._books.open.get(task.job.id)
        if of_job is None:
            self._gates.opened(task.job)
            of_job = self._books.open[task.job.id] = {}
        of_job[task.index] = task
        if task.attempt is not None:
            self._books.sent(task, task.attempt)

    def depend(self, job: Job, fates: Iterable[Fate]) -> None:
        """Follow what a job depends on, from the `fates` that its targets had by now."""
        fates = tuple(fates)
        self._gates.depend(job, fates)
        for id in {fate.target.job for fate in fates}:
            for task in self._books.tasks_of(id):
                self._gates.happened(task)

    def wait(self, task: Task) -> None:
        """It waits with us: let it stand before its gate."""
        self.despair(task, self._gates.queued(task, self._books.now))

    def despair(self, task: Task, prospect: Prospect) -> None:
        """Cancel a task whose dependency can never come, if its owner wants that."""
        if prospect is Prospect.NEVER and task.job.kill_on_invalid_dep:
            self.advance(task, Event.CANCEL, self._gates.told(task, self._books.now))

    def reopen(self, task: Task, last: int, cause: str) -> None:
        """Let an ended task wait again, as if no cluster had ever refused it."""
        task.ended, task.attempt, task.target, task.held = None, None, None, False
        task.forgiven, task.refused = task.attempts, set()
        task.reason = ""
        for sending, past in task.past.items():
            if past.began and not past.requeued:
                past.requeued = True
                self._books.out.past[(*task.place, sending)] = past
        self._books.ended.pop(task.place, None)
        self.open(task)
        id = task.job.id
        if last > self._books.last_sending.get(id, 0):
            self._books.last_sending[id] = last
        self.advance(task, Event.REQUEUE, cause)

    # The one table

    def advance(self, task: Task, event: Event, cause: str) -> None:
        """Let `event` happen to a task, and what follows from that."""
        books, gates, attempt, before = self._books, self._gates, task.attempt, task.state
        step = advance(before, event, task)
        after = step.task
        if attempt is not None and step.attempt is not None:
            left, joined = before in UNSTARTED, after in UNSTARTED
            if left and not joined:
                books.count(task, attempt, before, -1)
            attempt.state = step.attempt
            if joined and not left:
                books.count(task, attempt, after, +1)
        if task.reason and task.reason != _DUPLICATE:
            task.reason = ""
        if after is _HELD:
            task.reason = task.reason or Reason.HELD
        task.state = after
        books.record(task, event, before, cause)
        if before is _QUEUED:
            self._leasing.leave(task)
        if after in LIVE:
            if self._leasing.wanted(task):
                self._leasing.must_hold(task)
            gates.happened(task)
            gates.sent(task)
            return
        if attempt is not None:
            self._close(task, attempt)
        if after in FINAL:
            task.ended = attempt.ended if attempt is not None else books.now
            books.remember(task)
            gates.happened(task)
            last = self._end(task)
            if attempt is not None and attempt.intent is _REQUEUE:
                self.reopen(task, last, "requeued as asked")
            return
        gates.happened(task)
        if after is _HELD:
            gates.gone(task, books.now)
        elif attempt is not None and attempt.intent is Intent.CANCEL:
            self.advance(task, Event.CANCEL, "cancelled as asked")
        elif attempt is not None and attempt.rival in task.past:
            assert attempt.rival is not None
            self.adopt(task, attempt.rival, "it goes before the one that left")
        elif task.held:
            self.advance(task, Event.HOLD, "held as asked")
        else:
            self.wait(task)

    def _end(self, task: Task) -> int:
        """A task has ended; with the last one its job is over. The last sending of the job."""
        books, id = self._books, task.job.id
        self._gates.gone(task, books.now)
        del books.tasks[task.place]
        of_job = books.open[id]
        del of_job[task.index]
        last = books.last_sending.get(id, 0)
        if not of_job:
            del books.open[id]
            books.last_sending.pop(id, None)
            self._gates.closed(task.job)
        return last

    def _close(self, task: Task, attempt: Attempt) -> None:
        """An attempt has ended; the task goes on without it, or has ended too."""
        if attempt.ended is None:
            attempt.ended = self._books.now
        self._books.out.closed.append((task, attempt))
        requeued = attempt.begun and attempt.intent is _REQUEUE
        task.past[attempt.sending] = Past(
            attempt.cluster, attempt.begun, attempt.fence, attempt.revoked, requeued
        )
        view = self._books.views.get(attempt.cluster)
        tried = attempt.tried is not None or attempt.accepted is not None
        if view is not None and tried and not (attempt.revoked or attempt.refused):
            self.revoke(view, [task])  # its manager may bring it back
        self._books.unsent(task, attempt)
        if view is not None:
            view.drop(task)
        if task.state is _QUEUED:
            task.attempt, task.target = None, attempt.target
            if task.target is not None:
                task.moves += 1
                self._leasing.pass_on(task)
                return
        self._leasing.give_back(task, task.state, attempt)

    # What managers tell

    def row(self, task: Task, row: Row) -> None:
        """What a manager lists of a live attempt.

        While its claim is being revoked that may be a payload which only finds its claim taken.
        """
        attempt = task.live
        if attempt.revoking:
            self._books.views[attempt.cluster].withheld[task.place] = row
            return
        if _restarted(attempt, row):
            self._restart(task, row)
            attempt = task.live
        attempt.seen, attempt.given_up, attempt.tried = True, False, None
        attempt.native_id = row.native_id
        # what waits to begin again has no start of its own yet
        if row.state is State.PENDING:
            attempt.started = None
        elif row.started is not None:
            attempt.started = row.started
        attempt.begun |= row.started is not None
        self._leasing.expect(task)
        attempt.ended = row.ended
        attempt.exit_code, attempt.signal = row.exit_code, row.signal
        attempt.word, attempt.node = row.word, row.node
        attempt.cpu_seconds, attempt.max_memory = row.cpu_seconds, row.max_memory
        self._books.store(task)
        event = reported(attempt.state, row.state)
        moving = attempt.intent in BACK
        if event is _KILL and moving and row.started is None:
            event = _WITHDRAW
        if event is _KILL and attempt.intent is Intent.EXPIRE:
            event, attempt.word = Event.EXPIRE, "its reservation ended"
        if event is _WITHDRAW:
            self.advance(task, event, f"gone unstarted, for the {attempt.intent}")
        elif event is not None:
            self.advance(task, event, attempt.word)
        elif attempt.state is _PENDING and row.word and task.reason != _DUPLICATE:
            task.reason = MANAGER_REASON + row.word
        if moving and task.attempt is attempt and attempt.begun:
            if attempt.intent is Intent.RECALL and attempt.state in BEGUN:
                self._books.note(task, "it had begun before it could be taken back")
            if attempt.rival is not None:
                self.duplicate(task, attempt.rival)
            attempt.intent = attempt.target = attempt.asked = attempt.rival = None
            task.held = False
            self._books.store(task)
        self.pursue(task)

    def _restart(self, task: Task, row: Row) -> None:
        """Open the attempt that the manager has begun by itself; the last one ended with that."""
        last = task.live
        before = last.state
        self._books.count(task, last, before, -1)
        last.state = State.NODE_FAIL
        last.ended = last.ended or self._books.now
        last.word = last.word or row.word
        self._books.out.closed.append((task, last))
        task.attempts += 1
        task.attempt = structs.replace(
            last,
            number=task.attempts,
            state=State.PENDING,
            intent=None if last.intent in BACK else last.intent,
            target=None,
            rival=None,
            asked=None,
            started=None,
            ended=None,
            word="",
            restarts=row.restarts,
        )
        task.state, task.held = advance(before, Event.RESTART, task).task, False
        self._books.count(task, task.attempt, task.state, +1)
        cause = f"the manager restarted it by itself (restart {row.restarts})"
        self._books.record(task, Event.RESTART, before, cause)
        self._gates.happened(task)

    def adopt(self, task: Task, sending: int, cause: str) -> None:
        """Go on with an earlier sending, as a new attempt; the task waits with us.

        If it has not begun it is only taken back: a withdrawal of ours may still be under way.
        """
        past = task.past.pop(sending)
        task.attempts += 1
        task.held &= not past.began
        view = self._books.views.get(past.cluster)
        stray = view.strays.pop((*task.place, sending), None) if view else None
        task.attempt = Attempt(
            *(task.attempts, sending, past.cluster, State.QUEUED, self._books.now),
            accepted=self._books.now,
            begun=past.began,
            fence=past.fence,
            restarts=stray.row.restarts if stray else 0,
        )
        if not past.began:
            task.attempt.intent = Intent.HOLD if task.held else Intent.RECALL
        elif past.requeued:
            task.attempt.intent = Intent.REQUEUE
        self._books.sent(task, task.attempt)
        self.advance(task, Event.ADOPT, cause)
        if view is not None:
            view.add(task)
            if stray is not None:
                self.row(task, stray.row)

    def duplicate(self, task: Task, sending: int) -> None:
        """Two attempts have begun. Both go on; the newer one's end is the task's."""
        task.reason = Reason.DUPLICATE
        for view in self._books.views.values():
            view.end_waiting((*task.place, sending))
        cause = f"DUPLICATE: sending {sending} on {task.past[sending].cluster} has begun, too"
        self._books.note(task, cause)
        self._books.out.warnings.append(f"job {task.name}: {cause}")

    # What managers are told

    def pursue(self, task: Task) -> None:
        """Tell the manager what is wished of a task, once it is certain that it is there."""
        attempt = task.attempt
        if attempt is None or attempt.intent is None or attempt.state not in LIVE:
            return
        if attempt.state is State.DISPATCHING or attempt.cluster not in self._books.views:
            return
        if attempt.asked is not None and self._books.now - attempt.asked < PURSUE_AGAIN:
            return
        attempt.asked = self._books.now
        self._books.store(task)
        unstarted = attempt.intent in BACK
        key = (task.job.id, attempt.sending, unstarted)
        if key not in self._books.withdrawals:
            natives = self._books.withdrawals[key] = {}
            self._books.out.actions.append(
                Withdraw(task.job.id, attempt.sending, attempt.cluster, natives, unstarted)
            )
        self._books.withdrawals[key][task.index] = attempt.native_id

    def want_back(self, task: Task, view: ClusterView, why: str) -> bool:
        """Recall a task, unless it has begun or is wished for otherwise."""
        attempt = task.live
        if attempt.begun or attempt.intent is not None:
            return False
        attempt.intent = Intent.RECALL
        self._books.note(task, f"recalled from {view.name}: {why}")
        if view.up:
            self.pursue(task)
        return True

    def revoke(self, view: ClusterView, tasks: Iterable[Task]) -> None:
        """Keep what has claimed nothing yet from ever beginning, as far as there is a fence."""
        claims = []
        for task in tasks:
            attempt = task.live
            if not attempt.fence or attempt.begun:
                continue
            attempt.revoking = True
            self._books.store(task)
            claims.append(Claim(attempt.fence, self._books.tag(task), task.index))
        if claims:
            self._books.out.actions.append(Revoke(view.name, tuple(claims)))


def _restarted(attempt: Attempt, row: Row) -> bool:
    """Whether the manager has begun the payload anew since we last saw the attempt.

    By its own count, or because what ran waits, or has another start: a controller that
    lost its last seconds no longer counts. It may count while the payload has yet to end:
    then the start is still the one that we know.
    """
    if row.restarts > attempt.restarts:
        return row.state is State.PENDING or row.started != attempt.started
    if attempt.started is None:
        return False
    if row.state is State.PENDING:
        return True
    again = row.started is not None and row.started > attempt.started + LATER_START
    return again and row.state is State.RUNNING
