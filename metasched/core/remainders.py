"""Changes of the remainders of arrays: each costs the same for 10 and for 100,000 tasks. Pure.

A remainder is made at the submission of a large array. Its tasks leave it singly: `SchedulingGates`
takes the next head, lowest index first, and a request that names some of them splits these off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from metasched.core.array_remainder import (
    MAX_RUNS,
    MIN_MEAN_RUN,
    REMAINDER_MINIMUM,
    IndexRun,
    Remainder,
    RemainderPart,
    range_of,
    run_length,
    runs_of,
)
from metasched.core.dependency_status import DependencyStatus
from metasched.core.events import UserRequested
from metasched.core.gates import SchedulingGates
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import HELD_AFTER_BACKUP, TaskStateMachine
from metasched.core.tasks import StateChange, Task
from metasched.core.transitions import TaskEvent
from metasched.core.usage_limits import UsageLimits
from metasched.model.job import Job, Reason, State

_Enqueued = list[tuple[Task, DependencyStatus]]  # single tasks, each with its dependency's status


class Remainders:
    """Applies events to remainders."""

    def __init__(
        self,
        state: SchedulerState,
        state_machine: TaskStateMachine,
        gates: SchedulingGates,
        limits: UsageLimits,
        minimum: int = REMAINDER_MINIMUM,
    ) -> None:
        """`minimum`: number of tasks from which on an array has a remainder."""
        self._state, self._state_machine = state, state_machine
        self._gates, self._limits = gates, limits
        self._minimum, self._min_mean_run = minimum, min(MIN_MEAN_RUN, minimum)

    def takes(self, job: Job) -> bool:
        """Return whether a new job is to have a remainder.

        A small array has none. Neither has an array whose tasks wait each for its counterpart in
        another array, and for something else.
        """
        if job.array is None or len(job.indices) < self._minimum:
            return False
        return self._gates.dependencies.may_be_range(job)

    def add_array(self, job: Job, priority: int, now: float) -> Iterator[StateChange]:
        """Queue or hold the tasks of a new job that is to have a remainder."""
        state, dependencies = self._state, self._gates.dependencies
        runs = list(_runs_of_array(job))
        remainder = Remainder(job, runs, priority, state.queue_key(job, priority))
        if job.held:
            remainder.held, remainder.reason = True, Reason.HELD
        state.add_remainder(remainder)
        # the first task is never in a run: each job has a row of its tasks
        if job.held:
            first = state.split(remainder, [remainder.first])
            for task in first + state.split(remainder, []):
                state.record_change(task, None, None, "submitted")
            state.record_runs(remainder, remainder.runs, None, None, "submitted")
            return
        single = self._queue(remainder, now, with_first=True)
        for task, status in single:
            state.record_change(task, None, None, self._submission(task, status, now))
        never_met: list[int] = []
        if dependencies.is_paired(job):
            _, never_met = self._gates.sort_paired(remainder)
            if never_met:
                story = self._submission_at(remainder, never_met[0], now)
                state.record_runs(remainder, runs_of(never_met), None, None, story)
        waiting = Remainder(job, list(remainder.runs), priority, 0.0)
        waiting.remove(never_met)
        if waiting.runs:
            story = self._submission_at(remainder, waiting.first, now)
            state.record_runs(remainder, waiting.runs, None, None, story)
        yield from self._cancel_never_met(remainder, single, now)

    def _submission_at(self, remainder: Remainder, index: int, now: float) -> str:
        """Return the first line of the story of a task in a remainder."""
        job, task = remainder.job, self._state.find_task((remainder.job.id, index))
        status = DependencyStatus.SATISFIED
        if job.dependency is not None:
            status, _ = self._gates.dependencies.status_and_due(job, index, now)
        assert task is not None, (job.id, index)
        return self._submission(task, status, now)

    def _submission(self, task: Task, status: DependencyStatus, now: float) -> str:
        if status is DependencyStatus.SATISFIED:
            return "submitted"
        return f"submitted; {self._gates.dependencies.describe(task, now)}"

    def _queue(self, remainder: Remainder, now: float, with_first: bool) -> _Enqueued:
        """Put the first task of a queued remainder behind its gate as the head of the rest.

        Tasks that take slots of the array go before it, and so do tasks of its shortest runs if
        there are too many. Tasks that wait for counterparts have no head. Return all single tasks,
        `with_first` including the first.
        """
        state, gates = self._state, self._gates
        single: _Enqueued = []

        def enqueue(tasks: Iterable[Task]) -> None:
            single.extend((task, gates.enqueue(task, now)) for task in tasks)

        if gates.dependencies.is_paired(remainder.job):
            remainder.reason = Reason.DEPENDENCY
            met, _ = gates.sort_paired(remainder)
            first = [remainder.first] if with_first and remainder.first not in met else []
            enqueue(state.split(remainder, first + met))
            return single
        of_short_runs = state.split(remainder, [])
        while remainder.runs and not remainder.held:
            (task,) = state.split(remainder, [remainder.first])
            enqueue(other for other in of_short_runs if other.index < task.index)
            of_short_runs = [other for other in of_short_runs if other.index > task.index]
            enqueue([task])
            if not gates.is_followed(task):
                gates.set_head(task)
                break
        enqueue(of_short_runs)
        return single

    # Dependencies that can never be met

    def report_never_met(
        self, never_met: Iterable[tuple[Task | RemainderPart, str]]
    ) -> Iterator[StateChange]:
        """Record dependencies that can never be met; cancel tasks whose owners asked for that."""
        for tasks, cause in never_met:
            if isinstance(tasks, RemainderPart):
                yield from self._report_never_met(*tasks, cause)
                continue
            remainder = self._state.remainders.get(tasks.job.id)
            if remainder is not None and self._gates.is_head(tasks):
                yield from self._report_never_met(remainder, remainder.runs, cause)
            yield from self._state_machine.report_never_met(tasks, cause)

    def _report_never_met(
        self, remainder: Remainder, runs: Sequence[IndexRun], cause: str
    ) -> Iterator[StateChange]:
        self._state.record_runs(remainder, runs, None, State.QUEUED, cause)
        if remainder.job.kill_on_invalid_dep:
            yield from self._cancel_runs(remainder, runs, cause)

    def _cancel_runs(
        self, remainder: Remainder, runs: Sequence[IndexRun], cause: str
    ) -> Iterator[StateChange]:
        """Cancel tasks of a remainder, singly if their runs are short."""
        if runs == remainder.runs or sum(map(run_length, runs)) >= self._min_mean_run * len(runs):
            self.cancel(remainder, runs, cause)
            return
        named = [index for run in runs for index in range_of(run)]
        self._split(remainder, named, self._state.now)
        for task in self._state.tasks_of(remainder.job.id, named):
            yield self._state_machine.apply(task, TaskEvent.CANCEL, cause)

    def cancel_queued(self, task: Task, cause: str) -> Iterator[StateChange]:
        """Cancel a queued task, and with a head its remainder."""
        remainder = self._state.remainders.get(task.job.id)
        if remainder is not None and self._gates.is_head(task):
            self.cancel(remainder, remainder.runs, cause)
        yield self._state_machine.apply(task, TaskEvent.CANCEL, cause)

    def _cancel_never_met(
        self, remainder: Remainder, single: _Enqueued, now: float
    ) -> Iterator[StateChange]:
        """Cancel tasks just enqueued whose owner asked for that if they can never be met."""
        gates, job = self._gates, remainder.job
        if job.kill_on_invalid_dep and gates.dependencies.is_paired(job):
            _, never_met = gates.sort_paired(remainder)
            if never_met and (task := self._state.find_task((job.id, never_met[0]))) is not None:
                cause = gates.dependencies.describe(task, now)
                yield from self._cancel_runs(remainder, list(runs_of(never_met)), cause)
        for task, status in single:
            if cause := gates.cancel_cause(task, status, now):
                yield from self.cancel_queued(task, cause)

    # Requests

    def apply_to_runs(self, event: UserRequested) -> Iterator[StateChange]:
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
        elif event.action == "hold" and remainder.reason != Reason.HELD:
            remainder.reason = Reason.HELD
            self._state.record_runs(remainder, runs, None, State.HELD, f"held {by_user}, too")
            self._state.store_remainder(remainder)
        elif event.action == "release" and remainder.held:
            cause, first = f"released {by_user}", remainder.first
            for task in self._state.tasks_of(event.job, event.indices):
                if task.index < first and task.state is State.HELD:  # slots go by index
                    task.held = False
                    yield self._state_machine.apply(task, TaskEvent.RELEASE, cause)
            yield from self.release_all(remainder, cause, event.time)

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

    def hold(self, remainder: Remainder, cause: str, reason: str = Reason.HELD) -> None:
        """Hold a queued remainder."""
        remainder.held, remainder.reason = True, reason
        runs, state = remainder.runs, self._state
        state.record_runs(remainder, runs, TaskEvent.HOLD, State.QUEUED, cause)
        self._gates.remove_head(remainder.job.id)
        self._state.store_remainder(remainder)

    def release_all(self, remainder: Remainder, cause: str, now: float) -> Iterator[StateChange]:
        """Queue a held remainder."""
        remainder.held, remainder.reason = False, ""
        runs, state = remainder.runs, self._state
        state.record_runs(remainder, runs, TaskEvent.RELEASE, State.HELD, cause)
        yield from self._cancel_never_met(remainder, self._queue(remainder, now, False), now)

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

    def restart(
        self, remainders: Iterable[Remainder], restored: bool, now: float
    ) -> Iterator[StateChange]:
        """Put remainders behind their gates again at a start of the daemon.

        `restored`: the first start on a restored backup, which holds all queued tasks.
        """
        for remainder in remainders:
            remainder.priority = min(remainder.classified_priority, self._state.policy.max_priority)
            remainder.queue_key = self._state.queue_key(remainder.job, remainder.priority)
            if restored and not remainder.held:
                self.hold(remainder, HELD_AFTER_BACKUP)
            if not remainder.held:
                yield from self._cancel_never_met(
                    remainder, self._queue(remainder, now, False), now
                )


def _runs_of_array(job: Job) -> Iterable[IndexRun]:
    array = job.parsed_array
    assert array is not None, job
    first, last = array.indices[0], array.indices[-1]
    if len(array.indices) == (last - first) // array.step + 1:
        return [(first, last, array.step)]
    return runs_of(array.indices)
