"""Changes of the remainders of arrays: each costs the same for 10 and for 100,000 tasks. Pure.

A remainder is made at the submission of a large array. Its tasks leave it singly: `SchedulingGates`
takes the next head, lowest index first, and a request that names some of them splits these off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metasched.core.array_remainder import (
    MAX_RUNS,
    MIN_MEAN_RUN,
    REMAINDER_MINIMUM,
    IndexRun,
    Remainder,
    range_of,
    run_length,
    runs_of,
)
from metasched.core.events import UserRequested
from metasched.core.gates import SchedulingGates
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import HELD_AFTER_BACKUP
from metasched.core.tasks import Task
from metasched.core.transitions import TaskEvent
from metasched.core.usage_limits import UsageLimits
from metasched.model.job import Job, Reason, State


class Remainders:
    """Applies events to remainders."""

    def __init__(
        self,
        state: SchedulerState,
        gates: SchedulingGates,
        limits: UsageLimits,
        minimum: int = REMAINDER_MINIMUM,
    ) -> None:
        """`minimum`: number of tasks from which on an array has a remainder."""
        self._state, self._gates, self._limits = state, gates, limits
        self._minimum, self._min_mean_run = minimum, min(MIN_MEAN_RUN, minimum)

    def add_array(self, job: Job, priority: int, now: float) -> bool:
        """Queue or hold the tasks of a new job; return False if it is to have no remainder.

        That is a small array, a job with many runs of indices, or a dependent job, whose tasks may
        wait for different tasks.
        """
        if job.array is None or job.dependency is not None or len(job.indices) < self._minimum:
            return False
        runs = list(_runs_of_array(job))
        if len(runs) > MAX_RUNS:
            return False
        state = self._state
        remainder = Remainder(job, runs, priority, state.queue_key(job, priority))
        if job.held:
            remainder.held, remainder.reason = True, Reason.HELD
        state.add_remainder(remainder)
        # the first task is always a single one: each job has a row of its tasks
        single = state.split(remainder, [remainder.first]) if job.held else []
        single += self._queue(remainder, now)
        for task in single:
            state.record_change(task, None, None, "submitted")
        state.record_runs(remainder, remainder.runs, None, None, "submitted")
        return True

    def _queue(self, remainder: Remainder, now: float) -> list[Task]:
        """Put the first task of a queued remainder behind its gate as the head of the rest.

        Tasks that take slots of the array go before it. Return all of them.
        """
        single: list[Task] = []
        while remainder.runs and not remainder.held:
            (task,) = self._state.split(remainder, [remainder.first])
            self._gates.enqueue(task, now)
            single.append(task)
            if not self._gates.is_followed(task):
                self._gates.set_head(task)
                break
        return single

    def apply_to_runs(self, event: UserRequested) -> None:
        """Apply a request to the tasks of a remainder, or split off those that it names."""
        remainder = self._state.remainders.get(event.job)
        if remainder is None or event.action not in ("cancel", "hold", "release"):
            return
        by_user = f"by {event.by}" if event.by else ""
        runs = list(remainder.runs)
        if event.indices is not None and not event.with_remainder:
            indices = sorted(set(event.indices))
            named = [index for part in remainder.members(indices) for index in part]
            if len(named) < len(remainder):
                runs = list(runs_of(named))
                if event.action != "cancel" or len(named) < self._min_mean_run * len(runs):
                    if event.action == "cancel" or remainder.held is (event.action == "release"):
                        self._split(remainder, named, event.time)
                    return
        if event.action == "cancel":
            self.cancel(remainder, runs, f"cancelled {by_user}")
        elif event.action == "hold" and not remainder.held:
            self.hold(remainder, f"held {by_user}")
        elif event.action == "release" and remainder.held:
            self._release(remainder, f"released {by_user}", event.time)

    def _split(self, remainder: Remainder, indices: Sequence[int], now: float) -> None:
        """Make tasks of a remainder single tasks, behind their gates."""
        for task in self._state.split(remainder, indices):
            if task.state is State.QUEUED:
                self._gates.enqueue(task, now)

    def cancel(self, remainder: Remainder, runs: Sequence[IndexRun], cause: str) -> None:
        """Cancel tasks of a remainder."""
        state, job = self._state, remainder.job
        before = remainder.state
        state.record_runs(remainder, runs, TaskEvent.CANCEL, before, cause, State.CANCELLED)
        state.cancel_in_remainder(remainder, runs)
        if len(remainder.runs) > MAX_RUNS:
            self._split(remainder, [], state.now)
        if self._limits.enabled:
            self._limits.remove_queued(job, sum(map(run_length, runs)))
        for run in runs:
            self._gates.dependencies.end_unstarted(job.id, range_of(run), state.now)
        if job.id not in state.remainders:
            self._gates.remove_head(job.id)
        if not state.is_open(job.id):
            self._gates.remove_job(job)

    def hold(self, remainder: Remainder, cause: str) -> None:
        """Hold a queued remainder."""
        remainder.held, remainder.reason = True, Reason.HELD
        runs, state = remainder.runs, self._state
        state.record_runs(remainder, runs, TaskEvent.HOLD, State.QUEUED, cause)
        self._gates.remove_head(remainder.job.id)
        self._state.store_remainder(remainder)

    def _release(self, remainder: Remainder, cause: str, now: float) -> None:
        """Queue a held remainder."""
        remainder.held, remainder.reason = False, ""
        runs, state = remainder.runs, self._state
        state.record_runs(remainder, runs, TaskEvent.RELEASE, State.HELD, cause)
        self._gates.choose_head(remainder.job, now)

    def modify(self, job: Job, priority: int, cause: str) -> Job | None:
        """Replace the job of its remainder. Return the former job, None without a remainder."""
        remainder = self._state.remainders.get(job.id)
        if remainder is None:
            return None
        previous, remainder.job, remainder.priority = remainder.job, job, priority
        remainder.classified_priority = priority
        remainder.queue_key = self._state.queue_key(job, priority)
        if self._limits.enabled:
            self._limits.replace_queued(previous, job, len(remainder))
        self._state.record_runs(remainder, remainder.runs, None, remainder.state, cause)
        self._state.store_remainder(remainder)
        return previous

    def restart(self, remainders: Iterable[Remainder], restored: bool, now: float) -> None:
        """Put remainders behind their gates again at a start of the daemon.

        `restored`: the first start on a restored backup, which holds what is queued.
        """
        for remainder in remainders:
            remainder.priority = min(remainder.classified_priority, self._state.policy.max_priority)
            remainder.queue_key = self._state.queue_key(remainder.job, remainder.priority)
            if restored and not remainder.held:
                self.hold(remainder, HELD_AFTER_BACKUP)
            self._queue(remainder, now)


def _runs_of_array(job: Job) -> Iterable[IndexRun]:
    array = job.parsed_array
    assert array is not None, job
    first, last = array.indices[0], array.indices[-1]
    if len(array.indices) == (last - first) // array.step + 1:
        return [(first, last, array.step)]
    return runs_of(array.indices)
