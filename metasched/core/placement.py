"""Where waiting tasks go: the clusters that may run them, their licences, the choice. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from metasched.core.cluster_view import MAX_CACHED_DECISIONS, ClusterView
from metasched.core.dependency_status import DependencyStatus
from metasched.core.events import ClusterAssessment, Dispatch
from metasched.core.gates import SchedulingGates
from metasched.core.leasing import LicenceLeasing
from metasched.core.reservations.book import ReservationBook
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import TaskStateMachine
from metasched.core.tasks import Attempt, Task
from metasched.core.transitions import UNSTARTED, TaskEvent
from metasched.model.job import Job, Reason, State
from metasched.policies.eligible import PERMANENT_REASONS, Ineligibility
from metasched.policies.late_binding import LateBinding, ReservedNodes
from metasched.policies.pull import BackfillCapacity

# what each sending names: see `attempts`
_QUEUED: Final = State.QUEUED
_SEND: Final = TaskEvent.SEND

_PRECEDENCE = {reason: place for place, reason in enumerate(Reason)}
TIME_TOLERANCE = 1.0  # seconds to which managers round their times
_NO_ROOM = Ineligibility(
    Reason.PRIORITY, "it would start on no cluster now, or delay one that goes before"
)
_RESERVATION_NEAR = Ineligibility(
    Reason.RESERVATION_NEAR, "by its limit it would still run when a reservation begins"
)
_NO_CLUSTER = Ineligibility(Reason.NO_CLUSTER_FITS, "no cluster is configured")


class Placement:
    """Sends what waits for a cluster only."""

    def __init__(
        self,
        state: SchedulerState,
        state_machine: TaskStateMachine,
        leasing: LicenceLeasing,
        gates: SchedulingGates,
        reservations: ReservationBook,
    ) -> None:
        self._state, self._state_machine, self._leasing, self._gates = (
            state,
            state_machine,
            leasing,
            gates,
        )
        self._reservations = reservations
        # of one `place`, by job and cluster
        self._open_dispatches: dict[tuple[int, str], tuple[int, list[int]]] = {}
        self._late_binding: LateBinding[str] | None = None  # of one `place`, if that is the policy
        # by what jobs need: the clusters that may run them, as long as all are as they are
        self._eligible_cache: dict[Hashable, list[str]] = {}
        self._paths_matter = False  # paths of a job decide, too
        self._some_cluster_full = (
            False  # one of the clusters is full: it takes one task, then no other
        )

    # 3. The clusters that may run a task

    def check_task(self, task: Task, view: ClusterView) -> Ineligibility | None:
        """Why a task cannot be sent to a cluster now."""
        if task.rejected_by and view.name in task.rejected_by:
            return Ineligibility(Reason.NO_CLUSTER_FITS, "its manager refused the job")
        obstacle = self.check_job(task.job, view)
        accepts_tasks = view.up and not view.full_reason and view.name not in self._state.drains
        if accepts_tasks or (obstacle is not None and obstacle.reason in PERMANENT_REASONS):
            return obstacle
        if not view.up:
            return Ineligibility(Reason.CLUSTER_DOWN, view.down_reason)
        if view.name in self._state.drains:
            return Ineligibility(Reason.CLUSTER_DRAINED, str(self._state.drains[view.name]))
        if obstacle is None and view.full_reason and not view.retry_due(self._state.now):
            return Ineligibility(Reason.CLUSTER_DRAINED, view.full_reason)
        return obstacle

    def check_job(self, job: Job, view: ClusterView) -> Ineligibility | None:
        """Why a cluster, as it is, cannot run a job; not whether it answers and may be used now."""
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
        """What speaks against each cluster for a task now, with the loads that decide."""
        self._state.observe_loads()
        loads = self._state.load_ordering.cluster_loads(task.job, task.priority)
        return [
            ClusterAssessment(name, self.check_task(task, view), *loads[name])
            for name, view in self._state.views.items()
        ]

    def rejection_reason(self, job: Job) -> str | None:
        """Why no cluster can ever run a job that is about to be submitted, or None."""
        views = self._state.views
        if unknown_clusters := [requested for requested in job.clusters if requested not in views]:
            return f"there is no cluster {unknown_clusters[0]}; there are {', '.join(views)}"
        licences = self._leasing.licences
        if (
            self._leasing.enabled
            and (licence_problem := licences.refusal(job.licences)) is not None
        ):
            return licence_problem
        sample_task = Task(job, 0, 1, 0.0)
        obstacles: dict[str, Ineligibility] = {}
        for name, view in views.items():
            if job.clusters and name not in job.clusters:
                continue
            obstacle = self.check_task(sample_task, view)
            if obstacle is None or obstacle.reason not in PERMANENT_REASONS:
                return None
            obstacles[name] = obstacle
        sizes = {
            cluster: info.cpus for cluster in obstacles if (info := views[cluster].info) is not None
        }
        if sizes.keys() == obstacles.keys() and job.cpus > max(sizes.values()):
            largest = max(sizes, key=sizes.__getitem__)
            qualifier = " of those named" if job.clusters else ""
            return (
                f"no cluster{qualifier} has {job.cpus} processors, the largest is {largest} with "
                f"{sizes[largest]}; ask for fewer"
            )
        explanation = "; ".join(
            f"{name}: {found_obstacle.text}" for name, found_obstacle in obstacles.items()
        )
        return f"no cluster can run the job ({explanation}); change what it asks for"

    # 4. Licences and the choice

    def clear_cache(self) -> None:
        """A cluster may run other tasks than before."""
        self._eligible_cache.clear()
        self._paths_matter = any(view.cluster.filesystems for view in self._state.views.values())
        self._some_cluster_full = any(view.full_reason for view in self._state.views.values())

    def place_ready_tasks(self) -> None:
        """Send what waits for a cluster only, in order of its key.

        The tasks that have just become ready, or all where something has changed for all; then
        those that waited for one that was rejected here. What is sent late is looked at whenever
        there is room: each may be what the first of all leaves.
        """
        gates = self._gates
        if gates.recheck_requested:
            self.clear_cache()
        elif gates.settled and self._leasing.settled and not gates.ready:
            return
        self._late_binding = self._make_late_binding()
        if self._late_binding is not None and not self._late_binding.full:
            self._gates.request_recheck()
        while True:
            for task, cause in self._gates.resolve_dependencies(self._state.now):
                self._state.record_note(task, cause)
                self._state_machine.cancel_if_never_satisfied(
                    task, DependencyStatus.NEVER_SATISFIED
                )
            self._place_tasks(self._gates.take_newly_ready())
            if self._gates.settled:
                return

    def _place_tasks(self, waiting: list[Task]) -> None:
        state, leasing, licences = self._state, self._leasing, self._leasing.licences
        now = state.now
        if len(state.views) > 1 and (waiting or licences.has_waiting):  # there is a choice
            state.observe_loads()
        self._open_dispatches = {}
        licence_waiters = []
        if len(waiting) > 1:
            waiting.sort(key=lambda item: (item.queue_key, *item.task_id))
        for task in waiting:
            if not leasing.needs_lease(task) or task.task_id in leasing.transferring:
                self._place_task(task)
            elif self._find_eligible(task):
                leasing.join(task)
                licence_waiters.append(task)
        leasing.release_untransferred()
        while (granted := licences.next_ready(now)) is not None:
            task = state.tasks[granted]
            self._place_task(task)
            if task.attempt is None:
                leasing.leave(task)  # else it would be granted again, for ever
        for task in licence_waiters:
            if (obstacle := leasing.licence_obstacle(task, now)) is not None:
                self._defer(task, [obstacle])
        for (job, cluster), (dispatch_id, indices) in self._open_dispatches.items():
            state.outcome.actions.append(Dispatch(job, dispatch_id, cluster, tuple(indices)))

    def _find_eligible(self, task: Task) -> list[str]:
        """The clusters that may run a task now; if there is none it waits, not for licences."""
        cache_key = self._cache_key(task)
        if cache_key is not None and (cached := self._eligible_cache.get(cache_key)):
            return cached
        eligible, obstacles = [], []
        for name, view in self._state.views.items():
            obstacle = self.check_task(task, view)
            if obstacle is None:
                eligible.append(name)
            else:
                obstacles.append(obstacle)
        if not eligible:
            self._leasing.leave(task)
            self._defer(task, obstacles)
        elif cache_key is not None:
            if len(self._eligible_cache) >= MAX_CACHED_DECISIONS:
                self._eligible_cache.clear()
            self._eligible_cache[cache_key] = eligible
        return eligible

    def _cache_key(self, task: Task) -> Hashable:
        """The same for tasks that fit the same clusters; None: it must be asked for by itself."""
        job = task.job
        if self._some_cluster_full or task.rejected_by or job.reservation is not None:
            return None
        return (
            (job.requirements, job.directory, job.writes)
            if self._paths_matter
            else job.requirements
        )

    def _place_task(self, task: Task) -> None:
        """Send a task that waits for nothing but a cluster."""
        late_binding = None if task.job.reservation is not None else self._late_binding
        if late_binding is not None and late_binding.full and task.reason == Reason.PRIORITY:
            return
        eligible = self._find_eligible(task)
        if not eligible:
            return
        if late_binding is not None:
            cluster = late_binding.choose(task.job, eligible)
            if cluster is not None:
                self._dispatch(task, cluster)
            else:
                reservation_near = late_binding.blocked_by_reservations(task.job, eligible)
                self._defer(task, [_RESERVATION_NEAR if reservation_near else _NO_ROOM])
        elif task.target in eligible:
            self._dispatch(task, task.target)
        elif len(eligible) == 1:
            self._dispatch(task, eligible[0])
        else:
            candidates = eligible if len(eligible) < len(self._state.views) else None
            self._dispatch(
                task, self._state.load_ordering.choose(task.job, task.priority, candidates)
            )

    # Late sending

    def _make_late_binding(self) -> LateBinding[str] | None:
        if self._state.policy.send != "late" or not self._gates.ready:
            return None
        rooms, promises = {}, {}
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
            rooms[name] = BackfillCapacity(view.info, self._state.now, incoming, view.translate_job)
            if (
                rooms[name].free_cpus > 0
                and (cluster_promises := self.reserved_nodes(view)) is not None
            ):
                promises[name] = cluster_promises
        return LateBinding(rooms, promises)

    def reserved_nodes(
        self, view: ClusterView, excluding: Sequence[Task] = ()
    ) -> ReservedNodes | None:
        """What must stay free there for reservations, besides all that we have sent, `but` some."""
        promises = self._reservations.reserved_capacity(view.cluster, self._state.now)
        if promises is None:
            return None
        surveyed_at = self._reservations.availability.surveyed_at(view.name)
        excluded = {task.task_id for task in excluding}
        for task_id, task in view.live_tasks.items():
            started = task.live_attempt.started
            in_survey = started is not None and started + TIME_TOLERANCE < surveyed_at
            if not (in_survey or task_id in excluded or task.job.reservation is not None):
                promises.record_start(task.job)
        return promises

    def late_starters(self, view: ClusterView) -> list[Task]:
        """What waits in a cluster whose reservations rest on its starting at once."""
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

    def _dispatch(self, task: Task, cluster: str) -> None:
        """Intend a sending; tasks of one job that go to one cluster now share it, up to a chunk."""
        state, job = self._state, task.job.id
        view, open_dispatch = state.views[cluster], self._open_dispatches.get((job, cluster))
        if (
            open_dispatch is not None
            and len(open_dispatch[1]) == view.cluster.max_tasks_per_dispatch
        ):
            state.outcome.actions.append(
                Dispatch(job, open_dispatch[0], cluster, tuple(open_dispatch[1]))
            )
            open_dispatch = None
        if open_dispatch is None:
            state.last_dispatch[job] = state.last_dispatch.get(job, 0) + 1
            open_dispatch = self._open_dispatches[job, cluster] = state.last_dispatch[job], []
        dispatch_id, indices = open_dispatch
        indices.append(task.index)
        if view.full_reason:
            view.retry_at = state.now + view.retry_delay
        task.attempts += 1
        task.attempt = Attempt(
            task.attempts,
            dispatch_id,
            cluster,
            _QUEUED,
            state.now,
            observed_at_dispatch=view.observed_seconds(state.observed_seconds),
            fence=view.cluster.fence_dir,
        )
        state.add_live_attempt(task, task.attempt)
        view.add_task(task)
        cause = "moved on purpose" if task.target == cluster else "load and ordering"
        task.target = None
        if self._leasing.needs_lease(task):
            cause += f", with {self._leasing.take_lease(task)}"
        self._state_machine.apply(task, _SEND, cause)
        if len(state.views) > 1:
            state.observe_load(view)

    def _defer(self, task: Task, obstacles: list[Ineligibility]) -> None:
        """Nothing fits: say why by the reason that comes first, or reject for good."""
        temporary = [obstacle for obstacle in obstacles if obstacle.reason not in PERMANENT_REASONS]
        main_obstacle = min(
            temporary or obstacles,
            key=lambda obstacle: _PRECEDENCE[obstacle.reason],
            default=_NO_CLUSTER,
        )
        if task.target is not None:
            task.target = None
            self._state.store(task)
        if task.rejected_by and not temporary:
            self._state_machine.apply(task, TaskEvent.REJECT, main_obstacle.text)
            task.reason = main_obstacle.reason
        elif task.reason != main_obstacle.reason:
            task.reason = main_obstacle.reason
            self._state.record_note(task, main_obstacle.text)
