"""Refusals that a second look has shown: strikes against a job, and clusters that refuse. Pure.

A program that ended with words that prove nothing leaves an attempt without an answer. If a listing
then proves it absent, these words are the refusal, but whose fault it is stays open. So it is a
strike against the job there: it is tried again after 1 and after 10 minutes, and after three
strikes no more. The same words to jobs of two owners, or to ten jobs of one, without an acceptance
in between, are the cluster's: it is closed for all, or for that owner, and strikes do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metasched.core.cluster_view import ClusterView
from metasched.core.gates import SchedulingGates
from metasched.core.placement import Placement
from metasched.core.remainders import Remainders
from metasched.core.state import SchedulerState
from metasched.core.strikes import Strike
from metasched.core.task_state_machine import TaskStateMachine
from metasched.core.tasks import Attempt, StateChange, Task
from metasched.core.transitions import TaskEvent
from metasched.model.job import MANAGER_REASON, State
from metasched.model.refusal_scope import JobSet

JOBS_OF_OWNER = 10  # refused alike, which close a cluster for their owner
MAX_SENTENCES = 20  # to an owner, whose refusals are counted; he cannot displace those to others
# Ends of a dispatch without an answer that do not show that the manager has accepted it
_NOT_ACCEPTED = frozenset(
    {TaskEvent.REFUSE, TaskEvent.ABSENT, TaskEvent.SILENCE, TaskEvent.WITHDRAW}
)


class Refusals:
    """Counts refusals without proof, by the changes that they cause."""

    def __init__(
        self,
        state: SchedulerState,
        state_machine: TaskStateMachine,
        gates: SchedulingGates,
        placement: Placement,
        remainders: Remainders,
    ) -> None:
        self._state, self._state_machine = state, state_machine
        self._gates, self._placement, self._remainders = gates, placement, remainders

    def apply_change(self, change: StateChange) -> Iterator[StateChange]:
        """Count a refusal without proof, or an acceptance, of an attempt without an answer."""
        task, attempt = change.task, change.attempt
        view = None if attempt is None else self._state.views.get(attempt.cluster)
        if attempt is None or view is None:
            return
        if change.event is TaskEvent.REFUSE:
            if attempt.sentence and not attempt.rejected:
                yield from self._record_refusal(task, attempt, attempt.sentence, view)
        elif change.event is TaskEvent.ACCEPT or (
            change.before is State.DISPATCHING and change.event not in _NOT_ACCEPTED
        ):
            self._record_acceptance(task, view)

    def _record_acceptance(self, task: Task, view: ClusterView) -> None:
        view.refusal_runs.clear()
        if view.refusing or not view.has_accepted:  # it may have refused before the start
            view.has_accepted, self._state.outcome.refusing[view.name] = True, ""
        if view.refused_owners.pop(task.job.user, ""):
            view.scope_limits.accept(task.job)
        had_strikes = self._state.strikes.forget(task.job.id, view.name)
        if view.mark_open() or had_strikes:
            self._gates.request_recheck()

    def _record_refusal(
        self, task: Task, attempt: Attempt, sentence: str, view: ClusterView
    ) -> Iterator[StateChange]:
        job, now = task.job, self._state.now
        strike = self._state.strikes.find(job.id, view.name) or Strike(job.id, view.name)
        if attempt.dispatched <= strike.time:
            return  # another task of that dispatch, or of one that was decided before
        strike.sentence, strike.time = sentence, now
        run = view.refusal_runs[sentence] = view.refusal_runs.pop(sentence, {})
        run.setdefault(job.user, set()).add(job.id)
        to_owner = [words for words, of_words in view.refusal_runs.items() if job.user in of_words]
        for forgotten in to_owner[:-MAX_SENTENCES]:
            del view.refusal_runs[forgotten][job.user]
            if not view.refusal_runs[forgotten]:
                del view.refusal_runs[forgotten]
        closes_all = view.refusing or len(run) > 1
        closes_owner = job.user in view.refused_owners or len(run[job.user]) >= JOBS_OF_OWNER
        if closes_all or closes_owner:
            strike.add_uncounted()
            if closes_all:
                # what was under way when others closed the cluster was no try of it
                if not view.refusing or attempt.dispatched > view.full_since:
                    view.mark_full(sentence, now, refusing=True)
                    self._state.outcome.refusing[view.name] = sentence
            else:
                view.refused_owners[job.user] = sentence
                jobs, live_tasks = JobSet(user=job.user), view.live_tasks.values()
                view.scope_limits.refuse(jobs, 1, live_tasks, sentence, now)
        else:
            strike.add()
        self._state.strikes.store(strike, now)
        self._placement.clear_cache()
        if closes_all or closes_owner:
            yield from self._take_back(view, sentence, set().union(*run.values()))

    def _take_back(
        self, view: ClusterView, sentence: str, jobs: Iterable[int]
    ) -> Iterator[StateChange]:
        """Let strikes of a run of equal refusals not count, nor hold their jobs."""
        for job_id in sorted(jobs):
            strike = self._state.strikes.find(job_id, view.name)
            if strike is None or strike.sentence != sentence or not strike.count:
                continue
            was_last, strike.count = strike.is_last, 0
            self._state.strikes.store(strike, self._state.now)
            if was_last:
                yield from self._release(job_id)

    # Jobs that are held

    def hold_refused(self) -> Iterator[StateChange]:
        """Hold the jobs that placement found refused three times wherever they fit."""
        for job_id, sentence in self._placement.take_refused().items():
            reason, cause = MANAGER_REASON + sentence, f"refused three times: {sentence}"
            remainder = self._state.remainders.get(job_id)
            if remainder is not None and not remainder.held:
                self._remainders.hold(remainder, cause, reason)
            for task in self._state.tasks_of(job_id):
                if task.state is State.QUEUED:
                    task.held, task.reason = True, ""
                    change = self._state_machine.apply(task, TaskEvent.HOLD, cause)
                    task.reason = reason
                    yield change

    def _release(self, job_id: int) -> Iterator[StateChange]:
        """Queue what `hold_refused` has held, with the words of any of its clusters."""
        cause = "its cluster refuses other jobs, too"
        reasons = {MANAGER_REASON + words for words in self._state.strikes.sentences(job_id)}
        remainder = self._state.remainders.get(job_id)
        if remainder is not None and remainder.held and remainder.reason in reasons:
            yield from self._remainders.release_all(remainder, cause, self._state.now)
        for task in self._state.tasks_of(job_id):
            if task.state is State.HELD and task.reason in reasons:
                task.held = False
                yield self._state_machine.apply(task, TaskEvent.RELEASE, cause)
