"""The site's limits, and their use by users, groups, accounts, classes and all together. Pure.

A task counts for each scope that it belongs to. Admission limits are checked before a submission,
dispatch limits before each dispatch. Uses change with the states of tasks. A use may exceed its
maximum if a limit was lowered, or if a task was there already; then nothing new is let in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from metasched.core.array_remainder import Remainder
from metasched.core.state import SchedulerState
from metasched.core.tasks import StateChange, Task, TaskId
from metasched.core.transitions import FINAL, LIVE, QUEUED_OR_HELD, TaskEvent
from metasched.model.job import Job, Reason
from metasched.model.limits import (
    ADMISSION,
    LimitChange,
    LimitScope,
    LimitSettings,
    LimitUse,
    ScopeKind,
    describe_resource,
    dispatch_demand,
)

MAX_CACHED_OWNERS = 10_000  # users with account, groups and class
_WHILE_LIVE = "dispatched"  # the resource that a task takes even if its manager has forgotten it


@dataclass(eq=False, slots=True)
class ScopeUse:
    """The use by the tasks of a scope."""

    scope: LimitScope
    maxima: dict[str, int]  # by resource
    used: dict[str, int]  # by resource, the same keys
    dispatch_resources: tuple[str, ...]  # those that dispatches take
    awaited: bool = False  # whether tasks wait for a release

    def lacking(self, job: Job) -> str | None:
        """Return a resource that is too scarce to dispatch a task, or None."""
        for resource in self.dispatch_resources:
            demand = dispatch_demand(resource, job)
            if demand and self.used[resource] + demand > self.maxima[resource]:
                return resource
        return None


class Shortage(NamedTuple):
    """The limit that bars a task for now."""

    use: ScopeUse
    resource: str
    demand: int

    @property
    def reason(self) -> Reason:
        """`limit_user` for the limit of a user, `limit_class` for a shared limit."""
        of_user = self.use.scope.kind is ScopeKind.USER
        return Reason.LIMIT_USER if of_user else Reason.LIMIT_CLASS

    @property
    def text(self) -> str:
        used, maximum = self.use.used[self.resource], self.use.maxima[self.resource]
        resource = describe_resource(self.resource)
        return f"limit of {self.use.scope}: {used} of {maximum} {resource}, {self.demand} wanted"


class UsageLimits:
    """The uses of all scopes with limits. While there is no limit, nothing is counted."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._settings = LimitSettings()
        self.enabled = False
        self._bounds_bytes = False  # whether any limit bounds stored bytes
        self._stored: dict[int, Job] = {}  # jobs whose stored bytes are counted, by id
        self._uses: dict[LimitScope, ScopeUse] = {}
        self._uses_of: dict[Hashable, tuple[ScopeUse, ...]] = {}  # by attributes that decide scopes
        # dispatched tasks: the job as counted, and whether the task may run
        self._dispatched: dict[TaskId, tuple[Job, bool]] = {}
        self.released: dict[LimitScope, ScopeUse] = {}  # that became less while tasks waited

    def configure(
        self, settings: LimitSettings, tasks: Iterable[Task], remainders: Iterable[Remainder]
    ) -> None:
        """Take over limits, and count the open tasks."""
        self._settings, self.enabled = settings, settings.configured
        self._uses, self._uses_of, self._dispatched, self.released = {}, {}, {}, {}
        self._stored, self._bounds_bytes = {}, settings.bounds_bytes
        if self.enabled:
            for scope in settings.named_scopes():
                self._use_of(scope)
            for task in tasks:
                queued = int(task.state in QUEUED_OR_HELD)
                self._count_admitted(task.job, 1, queued, forced=True)
                self._count_stored(task.job, is_open=True, forced=True)
                self.update_dispatched(task, forced=True)
            for remainder in remainders:
                count = len(remainder)
                self._count_admitted(remainder.job, count, count, forced=True)
                self._count_stored(remainder.job, is_open=True, forced=True)
        outcome = self._state.outcome
        outcome.limit_changes.clear()  # `limit_uses` includes them
        outcome.limit_uses = list(self.uses_of(sorted(self._uses)))

    # Scopes

    def _find_use(self, scope: LimitScope) -> ScopeUse | None:
        """Return the use of a scope; None if it has no limit."""
        use = self._uses.get(scope)
        if use is None and (maxima := self._settings.maxima_of(scope)):
            on_dispatch = tuple(resource for resource in maxima if resource not in ADMISSION)
            use = ScopeUse(scope, maxima, dict.fromkeys(maxima, 0), on_dispatch)
        return use

    def _use_of(self, scope: LimitScope) -> ScopeUse | None:
        """Return the use of a scope, which is stored from now on; None if it has no limit."""
        use = self._find_use(scope)
        if use is not None:
            self._uses[scope] = use
        return use

    def _uses_for(self, job: Job) -> tuple[ScopeUse, ...]:
        """Return the uses that count a job's tasks, that of its user first."""
        key = (job.user, job.account, job.groups, job.user_class)
        uses = self._uses_of.get(key)
        if uses is None:
            scopes = self._settings.scopes_of(job)
            scope_uses = [self._use_of(scope) for scope in scopes]
            if len(self._uses_of) >= MAX_CACHED_OWNERS:  # users choose the names of accounts
                self._uses_of.clear()
            uses = self._uses_of[key] = tuple(use for use in scope_uses if use is not None)
        return uses

    # Changes

    def add_job(self, job: Job, tasks: int) -> None:
        """Count the tasks of a new job."""
        self._count_admitted(job, tasks, tasks)
        self._count_stored(job, is_open=True)

    def remove_queued(self, job: Job, tasks: int) -> None:
        """Count queued or held tasks of a job that have ended."""
        self._count_admitted(job, -tasks, -tasks)
        self._count_stored(job, self._state.is_open(job.id))

    def replace_queued(self, previous: Job, job: Job, tasks: int) -> None:
        """Count queued or held tasks whose job was modified."""
        self._count_admitted(previous, -tasks, -tasks)
        self._count_admitted(job, tasks, tasks, forced=True)
        self._count_stored(job, is_open=True, forced=True)

    def update(self, change: StateChange) -> None:
        """Count a task's change of state."""
        before, after = change.before, change.after
        opened = (after not in FINAL) - (before not in FINAL)
        queued = (after in QUEUED_OR_HELD) - (before in QUEUED_OR_HELD)
        if opened or queued:
            job = change.task.job
            self._count_admitted(job, opened, queued, forced=True)
            if opened:
                self._count_stored(job, self._state.is_open(job.id), forced=True)
        self.update_dispatched(change.task, forced=change.event is not TaskEvent.SEND)

    def update_dispatched(self, task: Task, forced: bool) -> None:
        """Count the use by a task while it is dispatched. `forced`: it may exceed the limits."""
        task_id = task.task_id
        counted = self._dispatched.get(task_id)
        if task.state not in LIVE:
            if counted is not None:
                del self._dispatched[task_id]
                self._count_dispatched(*counted, -1)
            return
        may_run = not task.live_attempt.lease_expired
        if counted is not None:
            if counted[0] is task.job and counted[1] is may_run:
                return
            self._count_dispatched(*counted, -1)
        self._dispatched[task_id] = (task.job, may_run)
        self._count_dispatched(task.job, may_run, 1, forced)

    def replace_job(self, task: Task, previous: Job) -> None:
        """Count a task whose job was modified."""
        queued = int(task.state in QUEUED_OR_HELD)
        self._count_admitted(previous, -1, -queued)
        self._count_admitted(task.job, 1, queued, forced=True)
        self._count_stored(task.job, is_open=True, forced=True)
        self.update_dispatched(task, forced=True)

    def _count_stored(self, job: Job, is_open: bool, forced: bool = False) -> None:
        """Count the stored bytes of a job while any of its tasks is open."""
        if not self._bounds_bytes:
            return
        counted = self._stored.get(job.id)
        if counted == (job if is_open else None):
            return
        if counted is not None:
            del self._stored[job.id]
            self._count_bytes(counted, -1)
        if is_open:
            self._stored[job.id] = job
            self._count_bytes(job, 1, forced)

    def _count_bytes(self, job: Job, direction: int, forced: bool = False) -> None:
        if job.stored_bytes:
            for use in self._uses_for(job):
                if "stored_bytes" in use.used:
                    self._count(use, "stored_bytes", direction * job.stored_bytes, forced)

    def _count_admitted(self, job: Job, opened: int, queued: int, forced: bool = False) -> None:
        """Count tasks that were opened or closed, and tasks that came into the queue or left it."""
        for use in self._uses_for(job):
            for resource, delta in (("open_tasks", opened), ("queued", queued)):
                if delta and resource in use.used:
                    self._count(use, resource, delta, forced)

    def _count_dispatched(
        self, job: Job, may_run: bool, direction: int, forced: bool = False
    ) -> None:
        for use in self._uses_for(job):
            for resource in use.dispatch_resources:
                demand = dispatch_demand(resource, job)
                if demand and (may_run or resource == _WHILE_LIVE):
                    self._count(use, resource, direction * demand, forced)
            if direction < 0 and use.awaited:
                self.released[use.scope] = use

    def take_released(self) -> list[ScopeUse]:
        """Return the uses that have become less while tasks waited for that."""
        released, self.released = list(self.released.values()), {}
        return released

    def add_released(self, uses: Iterable[ScopeUse]) -> None:
        """Let the next step take these uses."""
        self.released.update((use.scope, use) for use in uses)

    def _count(self, use: ScopeUse, resource: str, delta: int, forced: bool) -> None:
        use.used[resource] += delta
        changes, key = self._state.outcome.limit_changes, (use.scope, resource)
        change = changes.get(key)
        if change is None:
            change = changes[key] = LimitChange(use.maxima[resource])
        change.delta += delta
        change.forced |= forced and delta > 0

    # Queries

    def shortage(self, job: Job) -> Shortage | None:
        """Return the limit that bars the dispatch of a task of a job now, or None."""
        for use in self._uses_for(job):
            if (resource := use.lacking(job)) is not None:
                return Shortage(use, resource, dispatch_demand(resource, job))
        return None

    def admission_refusal(
        self, jobs: Iterable[tuple[Job, int]], replaced: Job | None = None
    ) -> str | None:
        """Return why new tasks, by (job, number), exceed an admission limit together, or None.

        `replaced`: they count already where the tasks of this job do.
        """
        if not self.enabled:
            return None
        counted = () if replaced is None else self._uses_for(replaced)
        requested: Counter[tuple[ScopeUse, str]] = Counter()
        for job, number in jobs:
            is_counted = replaced is None and self._state.is_open(job.id)  # with other tasks of it
            demands = {"stored_bytes": 0 if is_counted else job.stored_bytes}
            for use in self._uses_for(job):
                if use not in counted:
                    for resource in ADMISSION:
                        if resource in use.maxima:
                            requested[use, resource] += demands.get(resource, number)
        for (use, resource), demand in requested.items():
            if use.used[resource] + demand > use.maxima[resource]:
                text = Shortage(use, resource, demand).text
                return f"{text}; wait until some have ended, or submit fewer"
        return None

    def permanent_refusal(self, job: Job) -> str | None:
        """Return why a job can never be dispatched under the limits, or None."""
        if not self.enabled:
            return None
        for use in self._uses_for(job):
            for resource in use.dispatch_resources:
                demand, maximum = dispatch_demand(resource, job), use.maxima[resource]
                if demand > maximum:
                    limit = f"limit of {use.scope}: {maximum} {describe_resource(resource)}"
                    return f"{limit}, {demand} wanted; request fewer, or ask the site"
        return None

    def scopes(self) -> list[LimitScope]:
        """Return the scopes that count a task or have a name, in any order."""
        return list(self._uses)

    def uses_of(self, scopes: Iterable[LimitScope]) -> Iterator[LimitUse]:
        """Yield the uses and limits of scopes, each in the order of resources."""
        for scope in scopes:
            if (use := self._find_use(scope)) is not None:
                for resource in sorted(use.maxima):
                    yield LimitUse(scope, resource, use.used[resource], use.maxima[resource])
