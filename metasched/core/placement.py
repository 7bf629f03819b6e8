"""Placement of queued tasks: eligible clusters, licences, choice of a cluster. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain
from operator import itemgetter

from metasched.core.alternatives import is_stand_in, owner_id
from metasched.core.cluster_view import MAX_CACHED_DECISIONS, ClusterView
from metasched.core.events import ClusterAssessment, Dispatch
from metasched.core.gates import MAX_RELEASED_PER_STEP, SchedulingGates
from metasched.core.ineligible_tasks import MAX_REASONS_PER_STEP
from metasched.core.leasing import LICENCE_REASONS, LicenceLeasing
from metasched.core.reservations.book import ReservationBook
from metasched.core.state import SchedulerState
from metasched.core.task_groups import GroupOwner, QueuesOfGroups, SortKey, owner_of
from metasched.core.task_state_machine import TaskStateMachine
from metasched.core.tasks import Attempt, StateChange, Task, TaskId
from metasched.core.transitions import UNSTARTED, TaskEvent
from metasched.core.usage_limits import UsageLimits
from metasched.model.job import MANAGER_REASON, Job, Reason, State
from metasched.policies.eligible import PERMANENT_REASONS, Ineligibility
from metasched.policies.exclusions import describe_fit
from metasched.policies.late_binding import LateBinding, ReservedNodes
from metasched.policies.pull import BackfillCapacity

_PRECEDENCE = {reason: rank for rank, reason in enumerate(Reason)}
TIME_TOLERANCE = 1.0  # seconds; managers round times
# causes of a dispatch; the last two: of a choice between clusters under `load = "forecast"`
BY_LOAD = "load and ordering"
BY_FORECAST = f"{BY_LOAD}, by the forecast"
BY_OBSERVED_WORK = f"{BY_LOAD}, by observed work"
# the cause of a task whose licences are free by now, or counted by its manager alone
WAITED_FOR_LICENCES = "it waited for its licences"
_NO_ROOM = Ineligibility(
    Reason.PRIORITY, "it would start on no cluster now, or delay a task ahead of it"
)
_RESERVATION_NEAR = Ineligibility(
    Reason.RESERVATION_NEAR, "by its limit it would still run when a reservation begins"
)
AWAITS_ANSWERS = Ineligibility(
    Reason.PRIORITY, "it follows when the manager has answered the user's earlier dispatches"
)
AWAITS_PLACE = Ineligibility(
    Reason.PRIORITY, "it follows in turn when tasks that wait there have started"
)
_THRICE = Reason.REFUSED_THRICE
_NO_CLUSTER = Ineligibility(Reason.NO_CLUSTER_FITS, "no cluster is configured")


class Placement:
    """Dispatches the tasks that wait for a cluster only."""

    def __init__(
        self,
        state: SchedulerState,
        state_machine: TaskStateMachine,
        leasing: LicenceLeasing,
        gates: SchedulingGates,
        limits: UsageLimits,
        reservations: ReservationBook,
    ) -> None:
        self._state, self._state_machine = state, state_machine
        self._leasing, self._gates, self._limits = leasing, gates, limits
        self._reservations = reservations
        # of the current pass, by job, cluster, alternative licences, and hosts to avoid: dispatch
        # id, task indices
        self._open_dispatches: dict[
            tuple[int, str, int | None, frozenset[str]], tuple[int, list[int]]
        ] = {}
        # of the current pass: stand-ins of tasks that follow heads of remainders
        self._followers: deque[Task] = deque()
        self._licence_waiters: dict[TaskId, Task] = {}  # that have joined the queue in this pass
        self._late_binding: LateBinding[str] | None = None  # of the current pass, if configured
        self._keeps_cpus_free = False  # whether the current pass keeps processors for a head
        self._eligible_cache: dict[Hashable, list[str]] = {}  # clusters, by requirements of jobs
        self._paths_matter = False  # whether eligibility depends on the paths of a job
        self._users_matter = False  # whether eligibility depends on the user of a job
        self._some_cluster_full = False  # a full cluster takes a single task: do not cache
        # obstacles of tasks without eligible cluster in this pass, by requirements: within a pass
        # no cluster becomes eligible
        self._obstacles: dict[Hashable, list[Ineligibility]] = {}
        self._refused: dict[int, str] = {}  # see `take_refused`
        self._loads_observed = False  # in this pass; a task that is moved needs no choice

    # Eligible clusters

    def check_task(self, task: Task, view: ClusterView) -> Ineligibility | None:
        """Return why a task cannot be dispatched to a cluster now, or None."""
        if task.rejected_by and view.name in task.rejected_by:
            text = "its manager rejected the job"
            if len(task.rejected_by) == 1 and task.refusal:
                text += f": {task.refusal}"
            return Ineligibility(Reason.NO_CLUSTER_FITS, text)
        strike = self._state.strikes.find(task.job.id, view.name)
        hosts = task.hosts_to_avoid(view.name) if task.past_attempts else ()
        if hosts and not view.fits_without(task.job, hosts):
            return Ineligibility(Reason.NO_CLUSTER_FITS, "its nodes could not begin the job")
        obstacle = self.check_job(task.job, view)
        if strike is not None and (obstacle is None or obstacle.reason not in PERMANENT_REASONS):
            if strike.is_last:
                return Ineligibility(Reason.REFUSED_THRICE, strike.sentence)
            if obstacle is None and self._state.now < strike.retry_at:
                return Ineligibility(Reason.REFUSED, strike.sentence)
        refusing = view.full_reason or view.scope_limits
        accepts_tasks = view.up and not refusing and view.name not in self._state.drains
        if accepts_tasks or (obstacle is not None and obstacle.reason in PERMANENT_REASONS):
            return obstacle
        if not view.up:
            return Ineligibility(Reason.CLUSTER_DOWN, view.down_reason)
        if view.name in self._state.drains:
            return Ineligibility(Reason.CLUSTER_DRAINED, str(self._state.drains[view.name]))
        if obstacle is None and view.full_reason and not view.retry_due(self._state.now):
            return Ineligibility(Reason.LIMIT_MANAGER, view.full_reason)
        if obstacle is None and (limit := view.scope_limits.obstacle(task.job)):
            return Ineligibility(Reason.LIMIT_MANAGER, limit)
        if obstacle is None and view.scope_limits.awaits_answers(task.job.user):
            return AWAITS_ANSWERS
        # a pulled task was promised its place
        if obstacle is None and task.target != view.name:
            return AWAITS_PLACE if view.scope_limits.awaits_place(task.job.user) else None
        return obstacle

    def check_job(self, job: Job, view: ClusterView) -> Ineligibility | None:
        """Return why a cluster cannot run a job, or None; ignores down, drained, full."""
        if job.reservation is not None:
            obstacle = self._reservations.check_job(job, view.name)
            if obstacle is not None:
                return obstacle
        licences = self._leasing.licences
        if self._leasing.enabled and (
            barred_licence := licences.first_unusable(job.licences, view.name)
        ):
            text = f"licence {barred_licence} cannot be used there"
            return Ineligibility(Reason.NO_CLUSTER_FITS, text)
        return view.check_job(job)

    def assess_clusters(self, task: Task) -> list[ClusterAssessment]:
        """Return the obstacle and the load of each cluster for a task."""
        waiting: Sequence[Task] = (task,)  # by its alternatives
        if task.attempt is None and task.job.licence_choices:
            waiting = self._gates.alternatives.stand_ins_of(task)
        views = self._state.views
        obstacles = {name: self._check_all(waiting, view) for name, view in views.items()}
        eligible = [name for name, obstacle in obstacles.items() if obstacle is None]
        self._state.observe_loads(task.job, eligible)
        loads = self._state.load_ordering.cluster_loads(task.job, task.priority)
        return [
            ClusterAssessment(name, obstacles[name], *loads[name], view.charged_account(task.job))
            for name, view in views.items()
        ]

    def clusters_in_time(self, task: Task) -> list[str]:
        """Return the clusters on which a queued task may start, now or once they have a place."""
        return [
            name
            for name, view in self._state.views.items()
            if (obstacle := self.check_task(task, view)) is None
            or obstacle in (AWAITS_ANSWERS, AWAITS_PLACE)
        ]

    def check_alternative(self, task: Task, choice: int, view: ClusterView) -> Ineligibility | None:
        """Return why a dispatched task cannot go to a cluster by an alternative, or None."""
        if not task.job.licence_choices:
            return self.check_task(task, view)
        return self.check_task(self._gates.alternatives.stand_ins_of(task)[choice], view)

    def may_change_licences(self, task: Task, job: Job, promised: Mapping[str, int]) -> bool:
        """Return whether a dispatched task, placed anew, would get the licences of `job` at once.

        `promised` tokens are for other tasks.
        """
        if self._limits.enabled and self._limits.shortage(job) is not None:
            return False
        return self._leasing.may_exchange(task, job, promised)

    def may_move_to(self, task: Task, view: ClusterView) -> bool:
        """Return whether a dispatched task, placed anew, could go to a cluster."""
        alternatives = self._gates.alternatives
        waiting = alternatives.stand_ins_of(task) if task.job.licence_choices else (task,)
        return self._check_all(waiting, view) is None

    def _check_all(self, tasks: Sequence[Task], view: ClusterView) -> Ineligibility | None:
        """Return why none of a task's alternatives can be dispatched to a cluster now, or None."""
        obstacles = list[Ineligibility]()
        for task in tasks:
            obstacle = self.check_task(task, view)
            if obstacle is None:
                return None
            obstacles.append(obstacle)
        return _main_obstacle(obstacles)

    def rejection_reason(self, job: Job) -> str | None:
        """Return why no cluster can ever run a job that is being submitted, or None."""
        views = self._state.views
        if unknown_clusters := [name for name in job.clusters if name not in views]:
            return f"there is no cluster {unknown_clusters[0]}; there are {', '.join(views)}"
        licences = self._leasing.licences
        for requested in job.licence_requests if self._leasing.enabled else ():
            if (licence_problem := licences.refusal(requested)) is not None:
                return licence_problem
        if (licence_problem := self._leasing.calendar_refusal(job)) is not None:
            return licence_problem
        choices = range(len(job.licence_requests))
        variants = [Task(job.with_licences(choice), 0, 1, 0.0) for choice in choices]
        limit_problems = [self._limits.permanent_refusal(variant.job) for variant in variants]
        admitted = [
            variant
            for variant, problem in zip(variants, limit_problems, strict=True)
            if problem is None
        ]
        if not admitted:
            return limit_problems[0]
        obstacles: dict[str, Ineligibility] = {}
        for name, view in views.items():
            if job.clusters and name not in job.clusters:
                continue
            obstacle = self._check_all(admitted, view)
            # three strikes are of the job as it was before it is modified
            if obstacle is None or obstacle.reason not in PERMANENT_REASONS - {_THRICE}:
                return None
            obstacles[name] = obstacle
        sizes = {name: info.cpus for name in obstacles if (info := views[name].info) is not None}
        if sizes.keys() == obstacles.keys() and job.cpus > max(sizes.values()):
            largest = max(sizes, key=sizes.__getitem__)
            qualifier = " of those named" if job.clusters else ""
            return (
                f"no cluster{qualifier} has {job.cpus} processors, the largest is {largest} with "
                f"{sizes[largest]}; ask for fewer"
            )
        explanation = "; ".join(
            f"{name}: {_describe_refusal(job, item, views[name])}"
            for name, item in obstacles.items()
        )
        return f"no cluster can run the job ({explanation}); change what it asks for"

    # Licences and choice of a cluster

    def take_refused(self) -> dict[int, str]:
        """Return what managers said to jobs that were refused thrice, by jobs to be held."""
        refused, self._refused = self._refused, {}
        return refused

    def clear_cache(self) -> None:
        """Forget eligible clusters: the state of some cluster has changed."""
        self._eligible_cache.clear()
        views = self._state.views.values()
        self._paths_matter = any(view.cluster.has_listed_filesystems for view in views)
        self._users_matter = any(view.users_matter for view in views)
        self._some_cluster_full = any(
            view.full_reason or view.scope_limits for view in self._state.views.values()
        )

    def begin_pass(self) -> bool:
        """Begin a placement pass. Return whether any task may be dispatched.

        Late binding considers all ready tasks whenever processors are free, since any of them may
        backfill.
        """
        gates = self._gates
        if gates.recheck_requested:
            self.clear_cache()
        elif gates.settled and self._leasing.settled(self._state.now) and not gates.has_ready:
            self._limits.take_released()  # no task waits there any more
            return False
        self._late_binding = None
        if self._state.policy.send == "late":
            self._late_binding = self._make_late_binding()
        # processors that are not free are kept for no task: the last submitted would be the head
        self._keeps_cpus_free = self._late_binding is not None and not self._late_binding.full
        if self._keeps_cpus_free:
            gates.request_recheck()
        return True

    def place_tasks(self) -> Iterator[StateChange]:
        """Dispatch ready tasks in order of their keys, and queued tasks that get their licences."""
        state, leasing, licences = self._state, self._leasing, self._leasing.licences
        now = state.now
        self._loads_observed = False
        waiting, of_groups = self._gates.take_candidates()
        self._open_dispatches, self._obstacles, self._licence_waiters = {}, {}, {}
        # most steps place a single task
        ordered = self._in_order(waiting, of_groups) if of_groups or len(waiting) > 1 else waiting
        for task in ordered:
            yield from self._examine(task)
        yield from self._examine_followers()
        if leasing.transferring:
            leasing.release_untransferred()
        granted_tasks = 0
        while (granted := licences.next_ready(now)) is not None:
            granted_tasks += 1
            if granted_tasks > MAX_RELEASED_PER_STEP and self._limits.enabled:
                self._gates.request_step()  # thousands may be above their limits
                break
            task = self._first_grantable(granted)
            if (change := self._place_task(task)) is not None:
                yield change
                self._observe_dispatch(change)
            if task.attempt is None:
                leasing.leave(task)  # else it would be granted again without end
            elif is_stand_in(task):
                self._release_followers(task.task_id)
                yield from self._examine_followers()
            else:
                for successor in self._gates.successors_of(task).values():
                    leasing.join(successor)
                    if granted in self._licence_waiters:
                        self._licence_waiters[successor.task_id] = successor
        for task in self._licence_waiters.values():
            reason = leasing.waiting_reason(task)
            if reason is None or self._waits_as_before(task, reason):
                continue
            if (change := self._defer(task, [Ineligibility(reason, "")])) is not None:
                yield change
        self._record_reasons()
        for (job, cluster, *_), (dispatch_id, indices) in self._open_dispatches.items():
            state.outcome.actions.append(Dispatch(job, dispatch_id, cluster, tuple(indices)))

    def _examine(self, task: Task) -> Iterator[StateChange]:
        """Dispatch a ready task, let it wait for its licences, or set it aside."""
        if task.attempt is not None:
            return  # it stood in two queues: its group was released from a limit meanwhile
        if not self._gates.alternatives.is_current(task):
            return  # another alternative was dispatched, or its task was rejected
        leasing = self._leasing
        needs_lease = leasing.enabled and leasing.needs_lease(task)
        if needs_lease and task.task_id not in leasing.transferring:
            if (change := self._join_line(task)) is not None:
                yield change
            return
        for candidate in self._for_target(task):
            if not self._gates.alternatives.is_current(candidate):
                return  # its task was rejected
            if (change := self._place_task(candidate)) is not None:
                yield change
                self._observe_dispatch(change)
            if candidate.attempt is not None:
                if is_stand_in(candidate):
                    self._release_followers(candidate.task_id)
                return

    def _for_target(self, task: Task) -> Iterator[Task]:
        """Yield a task; before it an alternative that can go where the task is moved, if it cannot.

        It would return to the cluster that it has left.
        """
        if is_stand_in(task) and (target := task.target) is not None:
            alternatives = self._gates.alternatives
            for other in alternatives.stand_ins_of(alternatives.owner_of(task)):
                if target in self._find_eligible(other)[0]:
                    if other is not task:
                        yield other
                    break
        yield task

    def _release_followers(self, dispatched: TaskId) -> None:
        """Let the stand-ins of the next task follow, if a head of a remainder was dispatched."""
        head = self._state.tasks[owner_id(dispatched)]
        self._followers.extend(self._gates.successors_of(head).values())

    def _examine_followers(self) -> Iterator[StateChange]:
        while self._followers:
            yield from self._examine(self._followers.popleft())

    def _first_grantable(self, granted: TaskId) -> Task:
        """Return a task that may have its licences; of its alternatives the first that may.

        If it is moved to a cluster, those that may go there are before the others.
        """
        alternatives, licences = self._gates.alternatives, self._leasing.licences
        if (stand_in := alternatives.find(granted)) is None:
            return self._state.tasks[granted]
        grantable = (
            other
            for other in alternatives.stand_ins_of(alternatives.owner_of(stand_in))
            if other.task_id in licences
            and not any(licences.missing_licences(other.task_id, self._state.now))
        )
        if stand_in.target is None:
            return next(grantable, stand_in)
        return min(
            grantable,
            key=lambda other: other.target not in self._find_eligible(other)[0],
            default=stand_in,
        )

    def _join_line(self, task: Task) -> StateChange | None:
        """Let a task wait for its licences, if a cluster accepts it and no limit bars it."""
        if self._limits.enabled and self._wait_for_limit(task):
            return None
        eligible, obstacles = self._find_eligible(task)
        if not eligible and not self._stands_for_waiters(task):
            return self._set_aside(task, obstacles)
        reason = self._leasing.waiting_reason(task)
        if reason is None:
            self._gates.mark_eligible(task)
            self._leasing.join(task)
        elif self._waits_as_before(task, reason):
            return None  # the most frequent case: there may be thousands of such tasks
        if self._gates.is_head(task):
            self._state.remainders_in_line.add(task.job.id)
        self._licence_waiters[task.task_id] = task
        return None

    def _stands_for_waiters(self, task: Task) -> bool:
        """Return whether a task is the new head of a remainder that waits for licences.

        So do its tasks, also while no cluster has a place: it takes the turn of the former head.
        After a restart nothing waits in their queue yet, whatever the stored reason is.
        """
        remainder = self._state.remainders.get(task.job.id)
        return (
            remainder is not None
            and self._gates.is_head(task)
            and remainder.reason in LICENCE_REASONS
            and task.job.id in self._state.remainders_in_line
            and task.task_id not in self._leasing.licences
        )

    def _waits_as_before(self, task: Task, reason: Reason) -> bool:
        """Return whether a task that waits for licences has an unchanged reason and story."""
        return task.reason == reason and task.target is None and not self._gates.is_head(task)

    def _in_order(self, waiting: list[Task], of_groups: QueuesOfGroups) -> Iterator[Task]:
        """Yield tasks in the order of the queue; those of groups as late as possible.

        If there are several users, they take turns. A task of a group is left out if the last place
        that it may take has gone meanwhile.
        """
        with_keys: dict[GroupOwner, list[tuple[SortKey, Task]]] = {}
        for task in waiting:
            entry = (task.queue_key, *task.task_id), task
            with_keys.setdefault(owner_of(task), []).append(entry)
        for entries in with_keys.values():
            entries.sort(key=itemgetter(0))
        queues: list[Iterable[tuple[SortKey, Task]]] = []
        for owner in dict.fromkeys(chain(with_keys, of_groups)):
            sources = [source for source in (with_keys.get(owner), of_groups.get(owner)) if source]
            queues.append(sources[0] if len(sources) == 1 else merge(*sources, key=itemgetter(0)))
        users = {user for user, _, _ in chain(with_keys, of_groups)}
        if len(users) == 1:
            queue = queues[0] if len(queues) == 1 else merge(*queues, key=itemgetter(0))
            for _, task in queue:
                yield task
            return
        state, ineligible = self._state, self._gates.ineligible
        for task in self._gates.dispatch_turns.in_turns(
            [map(itemgetter(1), queue) for queue in queues], state.now, state.policy.age, _is_live
        ):
            if ineligible.is_candidate(task):
                yield task
            elif self._gates.exhausted:
                return

    def _find_eligible(self, task: Task) -> tuple[list[str], list[Ineligibility]]:
        """Return the eligible clusters of a task, and the obstacles if there are none."""
        cache_key = self._cache_key(task)
        if cache_key is not None and (cached := self._eligible_cache.get(cache_key)):
            return cached, []
        if (
            self._obstacles
            and task.target is None  # else it may have been promised a place
            and (obstacles_of_group := self._obstacles.get(self._group_key(task)))
        ):
            return [], obstacles_of_group
        eligible, obstacles = [], []
        for name, view in self._state.views.items():
            obstacle = self.check_task(task, view)
            if obstacle is None:
                eligible.append(name)
            else:
                obstacles.append(obstacle)
        if not eligible:
            self._obstacles[self._group_key(task)] = obstacles
            return eligible, obstacles
        if cache_key is not None:
            if len(self._eligible_cache) >= MAX_CACHED_DECISIONS:
                self._eligible_cache.clear()
            self._eligible_cache[cache_key] = eligible
        return eligible, obstacles

    def _group_key(self, task: Task) -> Hashable:
        """Return a key that tasks share if the same clusters are eligible now and later."""
        job = task.job
        has_own_limit = any(
            view.scope_limits.has_limit_of(job.id) for view in self._state.views.values()
        )
        has_strikes = job.id in self._state.strikes
        return (
            *(job.user, job.requirements, job.directory, job.writes, *job.native.items()),
            *(task.priority, task.rejected_by, job.id if has_own_limit or has_strikes else None),
            self._failed_hosts(task),
            *(job.user_class, job.groups),  # with user and account these name the site's limits
            task.target,  # promised a place there
        )

    def _failed_hosts(self, task: Task) -> tuple[tuple[str, str], ...]:
        """Return the hosts that could not begin a task, with their clusters."""
        past = task.past_attempts.values()
        return tuple((each.cluster, each.unbegun_on) for each in past if each.unbegun_on)

    def _cache_key(self, task: Task) -> Hashable:
        """Return a key that tasks with the same eligible clusters share; None: do not cache."""
        job = task.job
        if self._some_cluster_full or task.rejected_by or job.reservation is not None:
            return None
        if job.id in self._state.strikes or self._failed_hosts(task):
            return None
        key = job.requirements
        if self._paths_matter:
            key = (key, job.directory, job.writes)
        if self._users_matter:
            key = (key, job.user, *job.native.items())
        return key

    def _place_task(self, task: Task) -> StateChange | None:
        """Choose a cluster for a task and dispatch it, or defer it."""
        late_binding = None if task.job.reservation is not None else self._late_binding
        if late_binding is not None and late_binding.full and task.reason == Reason.PRIORITY:
            return None
        if self._limits.enabled and self._wait_for_limit(task):
            return None
        state = self._state
        eligible, obstacles = self._find_eligible(task)
        if not eligible:
            return self._set_aside(task, obstacles)
        cluster: str | None = None
        cause = BY_LOAD
        if late_binding is not None:
            had_head = late_binding.head_reserved
            preferred = state.load_ordering.preferred(task.job, eligible)
            cluster = late_binding.choose(task.job, preferred)
            if cluster is None:
                if self._keeps_cpus_free and not had_head:
                    self._gates.dispatch_turns.reserved_head = task.task_id
                reservation_near = late_binding.blocked_by_reservations(task.job, eligible)
                obstacles = [_RESERVATION_NEAR if reservation_near else _NO_ROOM]
                self._gates.mark_eligible(task)
        elif task.target in eligible:
            cluster = task.target
        elif len(eligible) == 1:
            cluster = eligible[0]
        else:
            if not self._loads_observed:
                by_forecast = state.observe_loads(task.job, eligible)
                if state.policy.load == "forecast":  # waits of this job
                    cause = BY_FORECAST if by_forecast else BY_OBSERVED_WORK
                else:
                    self._loads_observed = True
            candidates = eligible if len(eligible) < len(state.views) else None
            cluster = state.load_ordering.choose(task.job, task.priority, candidates)
        if cluster is None:
            return self._defer(task, obstacles)
        if state.observes and task.target is None and task.job.reservation is None:
            state.observe_placement(task, eligible, cluster)
        return self._dispatch(task, cluster, cause)

    def _observe_dispatch(self, change: StateChange) -> None:
        """Let the next choice of a cluster consider a task that was dispatched."""
        if change.event is not TaskEvent.SEND or change.attempt is None:
            return
        view = self._state.views[change.attempt.cluster]
        if self._loads_observed:
            self._state.observe_load(view)
        if view.scope_limits and not self._some_cluster_full:
            self.clear_cache()

    # Late binding

    def _make_late_binding(self) -> LateBinding[str] | None:
        """Return the late binding of this pass, or None if the policy dispatches at once."""
        if not self._gates.has_ready:
            return None
        capacities, reserved = {}, {}
        for name, view in self._state.views.items():
            if view.info is None:
                continue
            incoming = [
                (task.job.cpus, task.job.time_limit or task.job.estimated)
                for task in view.needs_attention.values()
                if task.state in UNSTARTED
                and not task.live_attempt.in_last_listing
                and task.job.reservation is None
            ]
            capacity = BackfillCapacity(view.info, self._state.now, incoming, view.translate_job)
            capacities[name] = capacity
            if capacity.free_cpus > 0 and (nodes := self.reserved_nodes(view)) is not None:
                reserved[name] = nodes
        return LateBinding(capacities, reserved)

    def reserved_nodes(
        self, view: ClusterView, excluding: Sequence[Task] = ()
    ) -> ReservedNodes | None:
        """Return the reserved nodes of a cluster, with live tasks counted except `excluding`."""
        reserved = self._reservations.reserved_capacity(view.cluster, self._state.now)
        if reserved is None:
            return None
        surveyed_at = self._reservations.availability.surveyed_at(view.name)
        excluded = {task.task_id for task in excluding}
        for task_id, task in view.live_tasks.items():
            started = task.live_attempt.started
            in_survey = started is not None and started + TIME_TOLERANCE < surveyed_at
            if not (in_survey or task_id in excluded or task.job.reservation is not None):
                reserved.record_start(task.job)
        return reserved

    def late_starters(self, view: ClusterView) -> list[Task]:
        """Return pending tasks of a cluster whose reservations assume that tasks start at once."""
        if not (view.cluster.binds_late and self._reservations.has_reservations_on(view.name)):
            return []
        waiting = [
            task
            for task in view.unstarted_tasks.values()
            if task.live_attempt.settled
            and task.state is State.PENDING
            and task.job.reservation is None
        ]
        return sorted(waiting, key=lambda task: (task.queue_key, *task.task_id))

    def _dispatch(self, task: Task, cluster: str, cause: str) -> StateChange:
        """Dispatch a task; tasks of a job share a dispatch if sent to a cluster in one pass."""
        stand_in = None
        if is_stand_in(task):
            stand_in, task = task, self._gates.alternatives.owner_of(task)
            task.job = stand_in.job
        state, job, choice = self._state, task.job.id, task.job.licence_choice
        dispatch_key = job, cluster, choice, task.hosts_to_avoid(cluster)
        view, open_dispatch = state.views[cluster], self._open_dispatches.get(dispatch_key)
        if (
            open_dispatch is not None
            and len(open_dispatch[1]) == view.cluster.max_tasks_per_dispatch
        ):
            state.outcome.actions.append(
                Dispatch(job, open_dispatch[0], cluster, tuple(open_dispatch[1]))
            )
            open_dispatch = None
        if open_dispatch is None:
            last = max(state.last_dispatch.get(job, 0), state.instances.first_dispatch - 1)
            state.last_dispatch[job] = last + 1
            open_dispatch = self._open_dispatches[dispatch_key] = state.last_dispatch[job], []
        dispatch_id, indices = open_dispatch
        indices.append(task.index)
        if view.scope_limits.follows(task.job.user):
            # it waited for a place, perhaps behind others of its user: no precedence over others
            key = state.now - state.policy.age * (task.priority - 1)
            task.queue_key = max(task.queue_key, key)
        if view.full_reason:
            view.retry_at = state.now + view.retry_delay
        if (strike := state.strikes.find(job, cluster)) is not None:
            state.strikes.store(strike, state.now)  # a single task is tried
        task.attempts += 1
        task.attempt = Attempt(
            number=task.attempts,
            dispatch_id=dispatch_id,
            cluster=cluster,
            state=State.QUEUED,
            dispatched=state.now,
            observed_at_dispatch=view.observed_seconds(state.observed_seconds),
            fence=view.cluster.fence_dir,
            gres_choice=view.choose_gres(task.job) if task.job.gres_alternatives else None,
            licence_choice=choice,
        )
        if stand_in is not None:
            stand_in.attempt = task.attempt
        if task.target == cluster:
            cause = "moved"
            view.pulls.record_dispatch(task, task.attempt)
        self._forget_target(task)
        if state.policy.load == "forecast":
            state.forecast_loads.record_dispatch(view, task.job, state.now)
        if self._leasing.needs_lease(task):
            cause += f", with {self._leasing.take_lease(task)}"
        return self._state_machine.apply(task, TaskEvent.SEND, cause)

    def _wait_for_limit(self, task: Task) -> bool:
        """Set a task aside if a limit of the site bars it. Return whether that is so.

        Its story gets no line for that: thousands may wait.
        """
        shortage = self._limits.shortage(task.job)
        if shortage is None:
            return False
        self._leasing.leave(task)
        text = shortage.text if is_stand_in(task) else ""  # of others it is never shown
        subject = self._subject(task, Ineligibility(shortage.reason, text))
        if subject is not None:
            waiting, main_obstacle = subject
            if waiting.reason != main_obstacle.reason or waiting.target is not None:
                waiting.reason = main_obstacle.reason
                self._forget_target(waiting)
                self._state.store(waiting)
            self._gates.copy_reason(waiting)
        self._gates.set_aside(task, self._group_key(task), shortage.reason, shortage.use)
        return True

    def _subject(self, task: Task, obstacle: Ineligibility) -> tuple[Task, Ineligibility] | None:
        """Return the task whose reason follows from an obstacle, and its main obstacle.

        For a stand-in that is its task; None: another stand-in of it was not examined yet.
        """
        if not is_stand_in(task):
            return task, obstacle
        examined = self._gates.alternatives.record_obstacle(task, obstacle)
        return None if examined is None else (examined[0], _main_obstacle(examined[1]))

    def _set_aside(self, task: Task, obstacles: list[Ineligibility]) -> StateChange | None:
        """Group a task without eligible cluster and set its reason, or reject it permanently."""
        self._leasing.leave(task)
        if self._gates.is_head(task):
            self._state.remainders_in_line.discard(task.job.id)
        awaited = [
            name
            for name, obstacle in zip(self._state.views, obstacles, strict=True)
            if obstacle is AWAITS_PLACE
        ]
        verdict = None
        if AWAITS_ANSWERS not in obstacles:  # else it follows soon: not worth a line of its story
            change = self._defer(task, obstacles)
            if change is not None:
                return change
            verdict = task.reason
        self._gates.set_aside(task, self._group_key(task), verdict, awaited=awaited)
        return None

    def _forget_target(self, task: Task) -> None:
        """Let a task have no target any more: it was dispatched, or has to wait."""
        if (view := self._state.views.get(task.target or "")) is not None:
            view.pulls.drop(task)
        task.target = None

    def _defer(self, task: Task, obstacles: list[Ineligibility]) -> StateChange | None:
        """Set the reason of a task that is not dispatched, or reject it permanently."""
        subject = self._subject(task, _main_obstacle(obstacles))
        if subject is None:
            return None
        task, main_obstacle = subject
        if task.target is not None:
            self._forget_target(task)
            self._state.store(task)
        if main_obstacle.reason is Reason.REFUSED_THRICE:
            self._refused[task.job.id] = main_obstacle.text  # held after this pass
        if self._is_hopeless(task, main_obstacle):
            change = self._state_machine.apply(task, TaskEvent.REJECT, main_obstacle.text)
            task.reason = main_obstacle.reason
            if task.refusal:
                task.reason = MANAGER_REASON + task.refusal
            return change
        if task.reason != main_obstacle.reason:
            task.reason = main_obstacle.reason
            self._state.record_note(task, self._cause(task, main_obstacle))
        if self._gates.copy_reason(task) is not None:
            cause = self._cause(task, main_obstacle)
            self._gates.reasons_to_record[task.job.id] = main_obstacle.reason, cause
        return None

    def _record_reasons(self) -> None:
        """Add the reasons of remainders to their stories, as many as a step may.

        Each run takes a line. A reason that has changed meanwhile, or is none any more, gets none.
        """
        to_record, lines = self._gates.reasons_to_record, 0
        while to_record and lines < MAX_REASONS_PER_STEP:
            job_id = next(iter(to_record))
            reason, cause = to_record.pop(job_id)
            remainder = self._state.remainders.get(job_id)
            if remainder is not None and not remainder.held and remainder.reason == reason:
                lines += len(remainder.runs)
                self._state.record_runs(remainder, remainder.runs, None, State.QUEUED, cause)
        if to_record:
            self._gates.request_step()

    def _cause(self, task: Task, obstacle: Ineligibility) -> str:
        """Return the text of an obstacle; that of licences is made only if a story needs it."""
        if obstacle.reason not in LICENCE_REASONS:
            return obstacle.text
        shortage = self._leasing.licence_obstacle(task, self._state.now)
        return WAITED_FOR_LICENCES if shortage is None else shortage.text

    def _is_hopeless(self, task: Task, main_obstacle: Ineligibility) -> bool:
        """Return whether a task that managers have rejected can never go to any other."""
        reasons = PERMANENT_REASONS - {_THRICE}
        if not task.rejected_by or main_obstacle.reason not in reasons:
            return False
        if not task.job.licence_choices:
            return True
        # the obstacles of other clusters may be of an earlier pass
        stand_ins = self._gates.alternatives.stand_ins_of(task)
        obstacles = [self._check_all(stand_ins, view) for view in self._state.views.values()]
        return all(obstacle and obstacle.reason in reasons for obstacle in obstacles)


def _main_obstacle(obstacles: Sequence[Ineligibility]) -> Ineligibility:
    """Return the obstacle that is a task's reason: a temporary obstacle, if there is any.

    The obstacles are those of clusters, or of alternatives.
    """
    temporary = [obstacle for obstacle in obstacles if obstacle.reason not in PERMANENT_REASONS]
    return min(
        temporary or obstacles,
        key=lambda obstacle: _PRECEDENCE[obstacle.reason],
        default=_NO_CLUSTER,
    )


def _is_live(task: Task) -> bool:
    return task.attempt is not None


def _describe_refusal(job: Job, obstacle: Ineligibility, view: ClusterView) -> str:
    """Describe why a cluster can never run a job, with the nodes that miss a requirement."""
    fit = describe_fit(job, view.cluster, view.info)
    nodes = fit.without_load.text if fit and obstacle.reason is Reason.NO_CLUSTER_FITS else ""
    return f"{obstacle.text} ({nodes})" if nodes else obstacle.text
