"""Attempts that a complete listing lacks: proved absent, looked for, or fenced off. Pure."""

from __future__ import annotations

from metasched.core.cluster_view import ClusterView
from metasched.core.events import Look, Revoked, Seen, Traced
from metasched.core.stale_attempts import Comebacks
from metasched.core.state import Books
from metasched.core.task_state_machine import Attempts
from metasched.core.tasks import BACK, Task
from metasched.core.transitions import Event
from metasched.model.job import State
from metasched.model.listing import Missing
from metasched.model.tags import parse_tag

LOOK_AGAIN = (5.0, 600.0)  # seconds until accounting is asked again: first, at the most


class Absences:
    """Decides what has become of an attempt that is not there."""

    def __init__(self, books: Books, attempts: Attempts, comebacks: Comebacks) -> None:
        self._books, self._attempts, self._comebacks = books, attempts, comebacks

    def missing(self, task: Task, seen: Seen) -> None:
        """A complete listing lacks a live attempt: gone for certain, or nobody knows.

        What begins is listed for as long as the listing proves absence. So what was there
        unstarted within that span, and is not there now, never began: a manager may drop such
        tasks without a record (Slurm: tasks of an array).
        """
        attempt = task.live
        if attempt.accepted is None and attempt.native_id is None:
            if attempt.tried is None or attempt.tried > seen.until:
                return  # not tried yet, or a late command of ours may still arrive
            if seen.since <= attempt.sent:
                cause = "a complete listing proves that it never arrived"
                self._attempts.advance(task, Event.ABSENT, cause)
                return
        elif not attempt.begun:
            begun, there = attempt.sent, attempt.accepted or attempt.sent
            if attempt.listed is not None:
                begun = there = attempt.listed
            if seen.since <= begun and there <= seen.until:
                self._gone(task)
                return
        if not attempt.given_up:
            attempt.given_up, attempt.looks, attempt.look_at = True, 0, self._books.now
            if (view := self._books.view_of(task)) is not None:
                view.uneasy[task.place] = task
        if attempt.state is not State.UNKNOWN:
            cause = "the manager lists it no more and nothing tells how it ended"
            self._attempts.advance(task, Event.SILENCE, cause)

    def _gone(self, task: Task) -> None:
        """A manager that had the attempt has it no more, and it certainly never began.

        Either somebody cancelled it, or the manager started anew without it; then it is sent
        again.
        """
        attempt = task.live
        there = attempt.listed or attempt.accepted or attempt.sent
        if there < self._books.views[attempt.cluster].up_since:
            cause = "its manager lost it when it started anew; it certainly never began"
            self._attempts.advance(task, Event.ABSENT, cause)
            return
        event = Event.WITHDRAW if attempt.intent in BACK else Event.KILL
        cause = "gone from the manager; it certainly never began"
        self._attempts.advance(task, event, cause)

    def look(self, view: ClusterView) -> None:
        """Ask the accounting of a cluster's manager for what its listings lack."""
        now = self._books.now
        due = [task for task in view.uneasy.values() if task.live.look_due(now)]
        if not due:
            return
        missing, unclaimed = [], []
        records = bool(view.facts is not None and view.facts.records)
        for task in due:
            attempt = task.live
            first, most = LOOK_AGAIN
            attempt.look_at = now + min(first * 2.0**attempt.looks, most)
            attempt.looks += 1
            if not records or attempt.looks > 1:  # accounting may tell more
                unclaimed.append(task)
            tag = self._books.tag(task)
            missing.append(
                Missing(tag, task.index, attempt.native_id, attempt.sent, attempt.accepted)
            )
        if records:
            self._books.out.actions.append(Look(view.name, tuple(missing)))
        self._attempts.revoke(view, unclaimed)

    def traced(self, event: Traced) -> None:
        """What accounting knows of attempts that are missing still."""
        for row in event.rows:
            task = self._books.of(row.tag, row.task)
            if task is not None and task.live.given_up:
                self._books.note(task, "found in the manager's accounting")
                self._attempts.row(task, row)
        for tag, index in event.unstarted:
            task = self._books.of(tag, index)
            if task is None or not task.live.given_up:
                continue
            if task.live.native_id is None:
                cause = "accounting proves that it never arrived"
                self._attempts.advance(task, Event.ABSENT, cause)
            else:
                self._gone(task)

    def revoked(self, event: Revoked) -> None:
        """Claims have been revoked: the tasks can be sent again. Or they were made before."""
        for tag, index in event.tasks:
            if (task := self._books.of(tag, index)) is not None:
                task.live.revoking, task.live.revoked = False, True
                self._books.views[task.live.cluster].withheld.pop(task.place, None)
                cause = "its claim is revoked: it can never begin"
                self._attempts.advance(task, Event.ABSENT, cause)
            elif (sending := parse_tag(tag, self._books.instance)) is not None:
                past = self._books.past(sending[0], index).get(sending[1])
                if past is not None:
                    past.revoked = True
                    self._books.out.past[sending[0], index, sending[1]] = past
        for tag, index in event.begun:
            if (task := self._books.of(tag, index)) is not None:
                task.live.revoking, task.live.begun = False, True
                self._books.note(task, "it has begun: its claim is made")
                row = self._books.views[task.live.cluster].withheld.pop(task.place, None)
                if row is not None:
                    self._attempts.row(task, row)
            elif (sending := parse_tag(tag, self._books.instance)) is not None:
                newer = self._books.tasks.get((sending[0], index))
                if newer is not None and sending[1] in newer.past:
                    self._comebacks.began(newer, sending[1], live=False)
