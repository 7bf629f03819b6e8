"""Gates that hold a queued task before placement. Pure.

In this order: its dependencies (`dependency_tracker`), its begin time, the limit of its array. The
limit counts ready and dispatched tasks over all clusters. No event costs a scan of all tasks: a
released slot admits the next task of its array.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import TypeVar

from metasched.core.alternatives import Alternatives, owner_id
from metasched.core.array_remainder import Remainder, RemainderPart, range_of, runs_of
from metasched.core.dependency_status import DependencyStatus
from metasched.core.dependency_tracker import DependencyTracker
from metasched.core.ineligible_tasks import IneligibleTasks
from metasched.core.state import SchedulerState
from metasched.core.task_groups import GroupOwner, QueuesOfGroups, SortKey, owner_of
from metasched.core.tasks import StateChange, Task, TaskId
from metasched.core.transitions import FINAL, LIVE, QUEUED_OR_HELD, TaskEvent
from metasched.core.usage_limits import ScopeUse, UsageLimits
from metasched.core.user_turns import ShareRanking, UserTurns
from metasched.model.job import Job, Reason, State

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_GATE_REASONS = frozenset({Reason.DEPENDENCY, Reason.BEGIN_TIME, Reason.LIMIT_ARRAY})
_ALL_TASKS = -1  # index in `_timers`: all blocked tasks of a job
NEXT_STEP = 0.0  # time in `_timers`: due at the next step
# Tasks. A step must not block the daemon for long, and fills dispatches of 200 tasks
MAX_RELEASED_PER_STEP = 400


class SchedulingGates:
    """Queued tasks by the gate that holds them; ready tasks wait for a cluster only."""

    def __init__(self, state: SchedulerState, limits: UsageLimits) -> None:
        self._state, self._limits = state, limits
        self.dependencies = DependencyTracker()
        self.alternatives = Alternatives()  # of ready tasks, which wait by stand-ins
        # examined at each recheck: ready tasks without alternatives, and stand-ins of the others
        self._ready: dict[TaskId, Task] = {}
        self.ineligible = IneligibleTasks(limits, state)  # the others of these
        self._released = 0  # number of tasks in this step
        self._followers = 0  # number of others that followed heads of remainders in this step
        self.changed_tasks: list[Task] = []  # in this step: tasks with a new reason
        self._newly_ready: dict[TaskId, Task] = {}
        self.recheck_requested = False  # since the last `take_newly_ready`
        self._takes_groups_only = False  # whether this pass has but tasks of `ineligible`
        self._delayed: dict[TaskId, Task] = {}  # until their begin time, or a later step
        # by user: a heap of (time, job, index)
        self._timers: dict[str, list[tuple[float, int, int]]] = {}
        self._first_timers: list[tuple[float, str]] = []  # heap: the first of each user, and more
        self._release_turns = UserTurns()
        self.dispatch_turns = UserTurns()  # used by `Placement`; new after each start, too
        # by job
        self._dependency_timers: dict[int, float] = {}  # latest timer for its dependencies
        self._slots: dict[int, set[int]] = {}  # indices of tasks that count for its limit
        self._waiting_for_slot: dict[int, dict[int, Task]] = {}
        self._next_indices: dict[int, list[int]] = {}  # heaps: all of `_waiting_for_slot`, and more
        self._blocked: dict[int, dict[int, Task]] = {}  # by unmet dependencies
        self._never_satisfied: dict[int, set[int]] = {}  # of the blocked tasks
        # the queued task that stands for the remainder of its array, by job: index. It is behind a
        # gate, in a group of `ineligible`, or to be examined in this step
        self._heads: dict[int, int] = {}
        # of remainders, by job: a new reason and its cause that are not in their stories yet
        self.reasons_to_record: dict[int, tuple[Reason, str]] = {}
        self._filling = False  # whether free slots are being filled

    def begin_step(self) -> None:
        """Begin a step."""
        self._released, self._followers, self.changed_tasks = 0, 0, []

    def update_gates(self, change: StateChange, now: float, job_is_open: bool) -> str:
        """Update progress, slots and the queue after a task's change of state.

        Returns why the task has to be cancelled, or an empty string.
        """
        task, after = change.task, change.after
        self.dependencies.update_progress(task)
        if after in LIVE:
            if change.before not in LIVE:
                self._leave_group(task)
                self.remove(task)
            # the slots exceed the limit if a manager lists a lost attempt again
            self.take_slot_again(task)
        elif after in FINAL or after is State.HELD:
            was_ready = task.task_id in self._ready or task.task_id in self.alternatives
            if change.before in QUEUED_OR_HELD:
                self._leave_group(task)
                self.remove(task)
            self.release_slot(task, now)
            if not job_is_open:
                self.remove_job(task.job)
            elif self.is_head(task):
                if was_ready:  # all that it stood for have passed the gates
                    self._release_successor(task)
                else:
                    self.choose_head(task.job, now)
        elif change.follow_up is None:
            if change.event is TaskEvent.REQUEUE:
                self.dependencies.add_job(task.job)
            return self.cancel_cause(task, self.enqueue(task, now), now)
        return ""

    def cancel_cause(self, task: Task, status: DependencyStatus, now: float) -> str:
        """Return why a queued task has to be cancelled, or an empty string.

        Its owner asked for that in case its dependency can never be met.
        """
        if status is DependencyStatus.NEVER_SATISFIED and task.job.kill_on_invalid_dep:
            return self.dependencies.describe(task, now)
        return ""

    def rebuild(self, tasks: Sequence[Task], shares: ShareRanking | None) -> None:
        """Forget all queued tasks, which the caller enqueues again; `tasks` are all open tasks.

        `shares`: see `UserTurns`. Portions of a step go by turns in any case.
        """
        self._ready, self._newly_ready, self._delayed = {}, {}, {}
        self.alternatives = Alternatives()
        self._timers, self._first_timers = {}, []
        self._release_turns, self.dispatch_turns = UserTurns(), UserTurns(shares)
        self.ineligible = IneligibleTasks(self._limits, self._state)
        self._slots, self._waiting_for_slot, self._next_indices = {}, {}, {}
        self._blocked, self._never_satisfied = {}, {}
        self._dependency_timers, self._heads, self.reasons_to_record = {}, {}, {}
        self.dependencies.rebuild(tasks, self._state.remainders)
        for task in tasks:
            has_slot = task.attempt is not None and not task.attempt.lease_expired
            if has_slot and _limit(task.job) is not None:
                self._slots.setdefault(task.job.id, set()).add(task.index)

    def enqueue(self, task: Task, now: float) -> DependencyStatus:
        """Put a queued task behind its gate and set its reason. Return its dependency's status.

        A task that was dispatched before depends on nothing any more.
        """
        previous_reason = task.reason
        status = self._choose_gate(task, now)
        if self.is_head(task):
            self._update_head(task, now)
        if task.reason and task.reason != previous_reason:  # without a reason it will be placed
            self.changed_tasks.append(task)
        return status

    def _choose_gate(self, task: Task, now: float) -> DependencyStatus:
        job = task.job
        job_id, index = task_id = task.task_id
        status = DependencyStatus.SATISFIED
        if job.dependency is not None and not task.attempts:
            status, due = self.dependencies.status_and_due(job, index, now)
            if status is not DependencyStatus.SATISFIED:
                task.reason = Reason.DEPENDENCY
                self._blocked.setdefault(job_id, {})[index] = task
                self._slots.get(job_id, set()).discard(index)
                if status is DependencyStatus.NEVER_SATISFIED:
                    self._never_satisfied.setdefault(job_id, set()).add(index)
                if due is not None and self._dependency_timers.get(job_id) != due:
                    self._dependency_timers[job_id] = due
                    self._set_timer(job.user, due, job_id, _ALL_TASKS)
                return status
        if job.begin is not None and job.begin > now:
            task.reason = Reason.BEGIN_TIME
            self._delayed[task_id] = task
            self._set_timer(job.user, job.begin, job_id, index)
        elif job.array is not None and not self._take_slot(task):
            self._await_slot(task)
        else:
            if task.reason in _GATE_REASONS:
                task.reason = ""
            if self._released < MAX_RELEASED_PER_STEP:
                self._released += 1
                self._newly_ready |= self._make_ready(task)
            else:
                self._delayed[task_id] = task
                self._set_timer(job.user, NEXT_STEP, job_id, index)
        return status

    def _make_ready(self, task: Task) -> dict[TaskId, Task]:
        """Let a task wait for a cluster only. Return what to examine by id: it or its stand-ins."""
        if not task.job.licence_choices:
            candidates = {task.task_id: task}
        else:
            stand_ins = self.alternatives.open(task)
            candidates = {stand_in.task_id: stand_in for stand_in in stand_ins}
        self._ready |= candidates
        return candidates

    def remove_job(self, job: Job) -> None:
        """Remove a job whose last task has ended."""
        self.dependencies.remove_job(job)
        self._slots.pop(job.id, None)
        self._next_indices.pop(job.id, None)
        self._dependency_timers.pop(job.id, None)

    # Remainders of arrays

    def is_followed(self, task: Task) -> bool:
        """Return whether a queued task has a slot of its array, so that another has to be the head.

        Slots make tasks single, unless they are more than a step releases.
        """
        limit = _limit(task.job)
        if limit is None or limit > MAX_RELEASED_PER_STEP:
            return False
        return task.index in self._slots.get(task.job.id, ())

    def set_head(self, task: Task) -> None:
        """Let a queued task stand for the remainder of its array, if any."""
        remainder = self._state.remainders.get(task.job.id)
        if remainder is not None:
            self._heads[task.job.id], remainder.reason = task.index, task.reason

    def remove_head(self, job_id: int) -> None:
        """Let no task stand for a remainder: it is held or has no task any more."""
        self._heads.pop(job_id, None)

    def choose_head(self, job: Job, now: float) -> None:
        """Let the first task of a queued remainder stand for the rest."""
        head = self._split_head(job)
        if head is None:
            return
        waited_for_slot = head.reason == Reason.LIMIT_ARRAY
        if _limit(job) is None or not (waited_for_slot or self._may_take_slot(head, now)):
            self.enqueue(head, now)
            return
        self._await_slot(head)
        self.copy_reason(head)
        if not self._filling:
            self._fill_slots(job.id, now)

    def _may_take_slot(self, task: Task, now: float) -> bool:
        """Return whether an undispatched task has passed the gates before that of slots."""
        job = task.job
        if job.begin is not None and job.begin > now:
            return False
        if job.dependency is None:
            return True
        status, _ = self.dependencies.status_and_due(job, task.index, now)
        return status is DependencyStatus.SATISFIED

    def _split_head(self, job: Job) -> Task | None:
        """Make the first task of a queued remainder its head; None if there is no such task."""
        remainder = self._state.remainders.get(job.id)
        if remainder is None or remainder.held:
            self.remove_head(job.id)
            return None
        (head,) = self._state.split(remainder, [remainder.first])
        self._heads[job.id] = head.index
        return head

    def _leave_group(self, head: Task) -> None:
        """Let the first task of a remainder take the place of its head in a group, if it has any.

        The caller removes the head.
        """
        if not self.is_head(head) or head.task_id not in self.ineligible:
            return
        successor = self._split_head(head.job)
        if successor is not None and self._may_follow(successor):
            self.ineligible.join(successor, head.task_id)

    def is_head(self, task: Task) -> bool:
        """Return whether a task stands for the remainder of its array."""
        return bool(self._heads) and self._heads.get(task.job.id) == task.index

    def _update_head(self, head: Task, now: float) -> None:
        """Choose another head if this head is followed; else the remainder waits as it does."""
        if self.is_followed(head):
            self.choose_head(head.job, now)
        else:
            self.copy_reason(head)

    def copy_reason(self, task: Task) -> Remainder | None:
        """Give a remainder the reason of its head `task`. Return it if the reason has changed."""
        if not self.is_head(task):
            return None
        remainder = self._state.remainders.get(task.job.id)
        if remainder is None or remainder.reason == task.reason:
            return None
        remainder.reason = task.reason
        self._state.store_remainder(remainder)
        return remainder

    def _released_tasks(self, head: Task) -> Iterator[tuple[SortKey, Task]]:
        """Yield the ready head of a remainder, then its tasks until a task stays queued.

        The caller has handled each before it asks for the next. A task that is set aside, or that
        waits for licences or processors, waits for all that follow.
        """
        job_id = head.job.id
        while head.task_id in self._ready:
            self._newly_ready.pop(head.task_id, None)
            yield (head.queue_key, *head.task_id), head
            if self.is_head(head):
                if head.attempt is None:
                    return
                self.successors_of(head)
            index = self._heads.get(job_id)
            if index is None:
                return
            head = self._state.tasks[job_id, index]

    def successors_of(self, head: Task) -> dict[TaskId, Task]:
        """Let the next task of a dispatched head's remainder be placed in this pass, if it may.

        Return the tasks to examine by id: the task or its stand-ins. The limit of a step has a
        count of its own here: users compete for places by turns.
        """
        successor = self._split_head(head.job) if self.is_head(head) else None
        if successor is None or not self._may_follow(successor):
            return {}
        return self._make_ready(successor)

    def _release_successor(self, head: Task) -> None:
        """Let the next task of a remainder wait as its former head did: for licences, processors.

        It is examined in the next pass.
        """
        self._newly_ready |= self.successors_of(head)

    def _may_follow(self, head: Task) -> bool:
        """Return whether a new head may be placed in this pass, without wait for a slot or step."""
        if not self._take_slot(head):
            self._await_slot(head)
            self.copy_reason(head)
            return False
        if self._followers < MAX_RELEASED_PER_STEP - 1:  # with the first a full portion
            self._followers += 1
            return True
        self._delayed[head.task_id] = head
        self._set_timer(head.job.user, NEXT_STEP, head.job.id, head.index)
        return False

    # Slots of arrays

    def take_slot_again(self, task: Task) -> None:
        """Count a task that may run for the limit of its array, even above it."""
        if task.job.array is not None and _limit(task.job) is not None:
            self._slots.setdefault(task.job.id, set()).add(task.index)

    def remove(self, task: Task) -> None:
        """Remove a task from its gate; it keeps its slot."""
        task_id = task.task_id
        for stand_in in self.alternatives.close(task_id):
            self.remove(stand_in)
        if self._ready.pop(task_id, None) is not None:
            self._newly_ready.pop(task_id, None)
        elif self.ineligible.remove(task_id):
            return
        elif self._delayed or self._waiting_for_slot or self._blocked:
            job_id, index = task_id
            self._delayed.pop(task_id, None)
            _pop_item(self._waiting_for_slot, job_id, index)
            if _pop_item(self._blocked, job_id, index) is not None:
                self._clear_never_satisfied(job_id, index)

    def release_slot(self, task: Task, now: float) -> None:
        """Pass the slot of a task that cannot run now to the next task."""
        slots = self._slots.get(task.job.id)
        if slots is not None and task.index in slots:
            slots.discard(task.index)
            self._fill_slots(task.job.id, now)

    def _await_slot(self, task: Task) -> None:
        job_id, index = task.task_id
        task.reason = Reason.LIMIT_ARRAY
        self._waiting_for_slot.setdefault(job_id, {})[index] = task
        heapq.heappush(self._next_indices.setdefault(job_id, []), index)

    def _take_slot(self, task: Task) -> bool:
        limit = _limit(task.job)
        if limit is None:
            return True
        slots = self._slots.setdefault(task.job.id, set())
        if task.index not in slots and len(slots) >= limit:
            return False
        slots.add(task.index)
        return True

    def _fill_slots(self, job_id: int, now: float) -> None:
        """Admit the next tasks of an array to its free slots."""
        indices = self._next_indices.get(job_id, [])
        self._filling = True
        while indices and (waiting := self._waiting_for_slot.get(job_id)):
            task = waiting.get(indices[0])
            if task is not None and not self._take_slot(task):
                break
            index = heapq.heappop(indices)
            if task is not None:
                _pop_item(self._waiting_for_slot, job_id, index)
                self.enqueue(task, now)
        self._filling = False

    # Time and dependencies

    def _set_timer(self, user: str, time: float, job_id: int, index: int) -> None:
        timers = self._timers.setdefault(user, [])
        heapq.heappush(timers, (time, job_id, index))
        if timers[0] == (time, job_id, index):
            heapq.heappush(self._first_timers, (time, user))

    @property
    def next_due(self) -> float | None:
        """Time of the next timer (epoch seconds), or None."""
        if self.ineligible.has_unfinished_work:
            return NEXT_STEP
        while self._first_timers:
            time, user = self._first_timers[0]
            timers = self._timers.get(user)
            if timers and timers[0][0] == time:
                return time
            heapq.heappop(self._first_timers)
        return None

    def pass_time(self, now: float, age: float) -> None:
        """Release tasks whose timers have expired, up to the limit of a step; users take turns.

        `age`: see `UserTurns.in_turns`.
        """
        if self._released >= MAX_RELEASED_PER_STEP:
            return
        users = {}
        while self._first_timers and self._first_timers[0][0] <= now:
            _, user = heapq.heappop(self._first_timers)
            if user in self._timers:
                users[user] = self._expired_tasks(user, now)
        if not users:
            return
        if len(users) == 1:
            ((user, expired_tasks),) = users.items()
        else:
            expired_tasks = self._release_turns.in_turns(
                users.values(), now, age, lambda task: task.task_id not in self._delayed
            )
        for task in expired_tasks:
            if self._released < MAX_RELEASED_PER_STEP:
                heapq.heappop(self._timers[task.job.user])
                del self._delayed[task.task_id]
                self.enqueue(task, now)
        for user in users:
            if timers := self._timers[user]:
                heapq.heappush(self._first_timers, (timers[0][0], user))
            else:
                del self._timers[user]

    def _expired_tasks(self, user: str, now: float) -> Iterator[Task]:
        """Yield the task of the user's first timer, which the caller removes; then of the next.

        Ends at the limit of a step.
        """
        timers = self._timers[user]
        while timers and timers[0][0] <= now and self._released < MAX_RELEASED_PER_STEP:
            _, job_id, index = timers[0]
            if (task := self._delayed.get((job_id, index))) is not None:
                yield task
                continue
            heapq.heappop(timers)
            if index == _ALL_TASKS:
                self._dependency_timers.pop(job_id, None)
                self._recheck_tasks(job_id, list(self._blocked.get(job_id, ())), now)

    @property
    def settled(self) -> bool:
        """Whether no task has become ready and no dependency needs a check."""
        return not (self._newly_ready or self.dependencies.changed)

    def resolve_dependencies(self, now: float) -> Iterator[tuple[Task | RemainderPart, str]]:
        """Release tasks whose dependencies are met. Yield (tasks, cause) if they can never be met.

        Continues until the caller's reactions cause no further changes.
        """
        while self.dependencies.changed:
            for job, concerns_all, counterparts in self.dependencies.take_changes():
                remainder = self._state.remainders.get(job.id)
                if remainder is not None and not remainder.held and counterparts:
                    yield from self._recheck_paired(remainder, sorted(counterparts), now)
                if blocked := self._blocked.get(job.id):
                    indices = (
                        list(blocked) if concerns_all else sorted(blocked.keys() & counterparts)
                    )
                    yield from self._recheck_tasks(job.id, indices, now)

    def _recheck_tasks(
        self, job_id: int, indices: Iterable[int], now: float
    ) -> list[tuple[Task, str]]:
        """Enqueue blocked tasks again. Return (task, cause) if newly never satisfied."""
        newly_unsatisfiable = []
        for index in indices:
            task = _pop_item(self._blocked, job_id, index)
            if task is None:
                continue
            reported = self._clear_never_satisfied(job_id, index)
            if self.enqueue(task, now) is DependencyStatus.NEVER_SATISFIED and not reported:
                newly_unsatisfiable.append((task, self.dependencies.describe(task, now)))
        return newly_unsatisfiable

    def _recheck_paired(
        self, remainder: Remainder, indices: Sequence[int], now: float
    ) -> Iterator[tuple[RemainderPart, str]]:
        """Enqueue tasks of a remainder whose counterparts, of these indices, have succeeded.

        The others wait as a range. Yield (tasks, cause) if they newly can never be met.
        """
        job = remainder.job
        met, never_met = self.sort_paired(remainder, indices)
        reported = self._never_satisfied.pop(job.id, set())
        if remaining := reported.difference(indices).union(never_met):
            self._never_satisfied[job.id] = remaining
        if newly := [index for index in never_met if index not in reported]:
            task = self._state.find_task((job.id, newly[0]))
            assert task is not None, newly
            cause = self.dependencies.describe(task, now)
            yield RemainderPart(remainder, list(runs_of(newly))), cause
        for task in self._state.split(remainder, met) if met else ():
            self.enqueue(task, now)

    def sort_paired(
        self, remainder: Remainder, indices: Sequence[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """Return the tasks of a remainder whose dependencies are met, and those that never will be.

        Each task depends on its counterpart in an array. `indices` are ascending, None: all.
        """
        succeeded, failed = self.dependencies.ended_counterparts(remainder.job)
        if indices is None:
            indices = sorted(succeeded | failed)
        met, never_met = list[int](), list[int]()
        for part in remainder.members(indices):
            met += [index for index in part if index in succeeded]
            never_met += [index for index in part if index in failed]
        return met, never_met

    def _clear_never_satisfied(self, job_id: int, index: int) -> bool:
        """Forget that a task's dependency can never be met. Return whether it was so."""
        never_satisfied = self._never_satisfied.get(job_id, set())
        was_never_satisfied = index in never_satisfied
        never_satisfied.discard(index)
        if was_never_satisfied and not never_satisfied:
            del self._never_satisfied[job_id]
        return was_never_satisfied

    # Tasks that wait for a cluster only

    @property
    def has_ready(self) -> bool:
        """Whether any task waits for a cluster only."""
        return bool(self._ready or self.ineligible)

    @property
    def ready_count(self) -> int:
        """Tasks and stand-ins that wait for a cluster, licences or a limit only."""
        return len(self._ready) + len(self.ineligible)

    def queued_group(self, task_id: TaskId) -> int | None:
        """Return the number of the group of a task that waits without a cluster, if any."""
        return self.ineligible.group_id(task_id)

    def preview_order(self, now: float, age: float) -> Iterator[TaskId]:
        """Yield the tasks that wait for a cluster or licences in the order of their turns.

        Nothing changes. A task with alternatives is yielded once. O(n log n) before the first.
        """
        queues: dict[GroupOwner, list[Task]] = {}
        for task in chain(self._ready.values(), self.ineligible.unlimited_tasks()):
            if task.attempt is None:
                queues.setdefault(owner_of(task), []).append(task)
        for queue in queues.values():
            queue.sort(key=lambda task: (task.queue_key, *task.task_id))
        turns, seen = self.dispatch_turns.copy(), set[TaskId]()
        followers = dict[int, Iterator[int]]()  # by job: indices of the remainder of its head
        queues_in_turns = [self._with_remainders(queue) for queue in queues.values()]
        for task in turns.in_turns(queues_in_turns, now, age, lambda task: True):
            task_id = owner_id(task.task_id)
            if task_id not in seen:
                seen.add(task_id)
                yield task_id
            elif (remainder := self._state.remainders.get(task_id[0])) is not None:
                indices = followers.get(task_id[0])
                if indices is None:
                    indices = chain.from_iterable(map(range_of, remainder.runs))
                    followers[task_id[0]] = indices
                if (index := next(indices, None)) is not None:
                    yield task_id[0], index

    def _with_remainders(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield tasks; the head of a remainder once more for each task that it stands for."""
        for task in tasks:
            yield task
            remainder = self._state.remainders.get(task.job.id)  # its last task may be the head
            if remainder is not None and self.is_head(task):
                yield from repeat(task, len(remainder))

    def request_recheck(self) -> None:
        """Let the next pass examine all ready tasks: something changed for all of them."""
        self.recheck_requested = True

    def take_candidates(self) -> tuple[list[Task], QueuesOfGroups]:
        """Return the tasks to be examined now: those of no group, and those of groups in order.

        The former became ready since the last call; after `request_recheck`, they are all.
        """
        every = self.recheck_requested
        tasks = list((self._ready if every else self._newly_ready).values())
        self._newly_ready, self.recheck_requested = {}, False
        of_groups = self.ineligible.take_rechecked(every)
        self._takes_groups_only = not (tasks or self.ineligible.lines.has_candidates)
        queues: list[tuple[GroupOwner, Iterator[tuple[SortKey, Task]]]] = []
        if self.ineligible.lines.has_candidates:
            queues += self.ineligible.lines.take_candidates().items()
        if self._heads and (heads := [task for task in tasks if self.is_head(task)]):
            tasks = [task for task in tasks if not self.is_head(task)]
            queues += [(owner_of(head), self._released_tasks(head)) for head in heads]
        for owner, queue in queues:
            of_groups[owner] = heapq.merge(of_groups.get(owner, ()), queue, key=itemgetter(0))
        return tasks, of_groups

    @property
    def exhausted(self) -> bool:
        """Whether none of the candidates that are left may start in this pass."""
        return self._takes_groups_only and self.ineligible.exhausted

    def set_aside(
        self,
        task: Task,
        requirements: Hashable,
        verdict: str | None,
        limit: ScopeUse | None = None,
        awaited: Sequence[str] = (),
    ) -> None:
        """Group a ready task that cannot be dispatched, see `IneligibleTasks.add`."""
        self._ready.pop(task.task_id, None)
        self._newly_ready.pop(task.task_id, None)
        self.ineligible.add(task, requirements, verdict, limit, awaited)

    def request_step(self) -> None:
        """Request another step at once: this step has done its part."""
        self._set_timer("", NEXT_STEP, 0, 0)

    def mark_eligible(self, task: Task) -> None:
        """Take a ready task out of its group: some cluster accepts it, but it waits for licences.

        Under late binding it may wait for processors. The head of a remainder still waits for all.
        """
        if self.ineligible.remove(task.task_id):
            self._ready[task.task_id] = task


def _pop_item(by_key: dict[K, dict[int, V]], key: K, index: int) -> V | None:
    """Remove and return an item; remove an emptied key, too."""
    items = by_key.get(key, {})
    item = items.pop(index, None)
    if item is not None and not items:
        del by_key[key]
    return item


def _limit(job: Job) -> int | None:
    if job.array is None or job.parsed_array is None:
        return None
    return job.parsed_array.limit
