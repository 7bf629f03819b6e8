"""Recovery: a fresh core from a database, and a clean state at each start of the daemon. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from metasched.core.cluster_view import ClusterView
from metasched.core.dependency_status import TargetSummary
from metasched.core.events import ClusterDrained, DaemonStarted, Dispatch
from metasched.core.gates import SchedulingGates
from metasched.core.leasing import LicenceLeasing
from metasched.core.reservations.book import ReservationBook
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import TaskStateMachine
from metasched.core.tasks import EndedTask, Task, TaskId
from metasched.core.transitions import TaskEvent
from metasched.core.withdrawals import Withdrawals
from metasched.model.cluster import ClusterInfo
from metasched.model.job import Job, State
from metasched.model.licence import Lease, LicenceCount, LingeringTokens
from metasched.model.reservation import Reservation
from metasched.policies.classify import Classifier, Deadline, Licence, User
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.policy import MAX_WINDOW


class Recovery:
    """Restores the core, and resets it at each start of the daemon."""

    def __init__(
        self,
        state: SchedulerState,
        state_machine: TaskStateMachine,
        leasing: LicenceLeasing,
        gates: SchedulingGates,
        reservations: ReservationBook,
        withdrawals: Withdrawals,
    ) -> None:
        self._state, self._state_machine = state, state_machine
        self._leasing, self._gates = leasing, gates
        self._reservations, self._withdrawals = reservations, withdrawals
        self._margin_jobs: list[Job] = []  # last jobs with a deadline that could be met
        self._info: dict[str, ClusterInfo] = {}  # last reported, also of unconfigured clusters

    def remember_job(self, job: Job) -> None:
        """Remember a submitted job if it has a deadline that can be met."""
        if job.deadline is not None and (margin := job.margin) is not None and margin >= 0:
            self._margin_jobs = [*self._margin_jobs[1 - MAX_WINDOW :], job]

    def remember_cluster_info(self, cluster: str, info: ClusterInfo) -> None:
        """Remember the reported state of a cluster."""
        self._info[cluster] = info

    def restore(
        self,
        tasks: Iterable[Task],
        last_dispatches: dict[int, int],
        info: dict[str, ClusterInfo],
        margins: Iterable[Job],
        drains: Iterable[ClusterDrained] = (),
        ended: Mapping[TaskId, EndedTask] | None = None,
        target_summaries: Mapping[int, Iterable[TargetSummary]] | None = None,
        leases: Iterable[Lease] = (),
        lingering: Iterable[LingeringTokens] = (),
        totals: Mapping[str, int] | None = None,
        used_outside: Mapping[str, Mapping[str, LicenceCount]] | None = None,
        reservations: Iterable[Reservation] = (),
    ) -> None:
        """Restore a fresh core before its first event, which must be `DaemonStarted`.

        tasks             open tasks
        last_dispatches   highest dispatch id of each open job
        info              last reported state of each cluster, without load
        margins           last jobs with a deadline that could be met, oldest first
        drains            drained clusters
        ended             last ended tasks, oldest first
        target_summaries  by open job: progress of the jobs that it depends on
        leases            live leases
        lingering         tokens that were returned and still count as used
        totals            totals of licences that operators have set
        used_outside      tokens that managers gave to other users' jobs, by licence and cluster
        reservations      open reservations, and closed ones that a manager may still have
        """
        self._reservations.restore(reservations)
        self._leasing.licences.restore(leases, lingering, totals or {}, used_outside or {})
        self._state.drains = {drain.cluster: drain for drain in drains}
        self._margin_jobs = list(margins)
        self._info = dict(info)
        self._state.last_dispatch = dict(last_dispatches)
        self._state.ended_tasks = OrderedDict(ended or {})
        for task in tasks:
            self._state_machine.open(task)
        for job_id, summaries in (target_summaries or {}).items():
            self._state_machine.track_dependencies(self._state.tasks_of(job_id)[0].job, summaries)

    def _configure(self, event: DaemonStarted) -> None:
        """Take over the configuration of the daemon."""
        policy, pools = event.policy, event.pools
        self._state.policy, self._state.instance = policy, event.instance
        self._leasing.configure(
            pools, policy.patience, [cluster.name for cluster in event.clusters]
        )
        self._leasing.update_windows(self._reservations.by_id.values())
        self._state.classifier = Classifier(
            max_priority=policy.max_priority,
            heuristics=[
                Deadline(window=policy.window),
                Licence(total=max(event.licence_count if pools is None else len(pools), 1)),
                User(classes=policy.classes),
            ],
            weights=policy.weights,
        )
        for job in self._margin_jobs[-policy.window :]:
            self._state.classifier.remember(job)
        self._state.views = {cluster.name: ClusterView(cluster) for cluster in event.clusters}
        self._state.views_with_unstarted = {}
        self._state.unstarted_by_key = []
        self._state.observed_seconds = 0.0
        # the reported load is out of date
        self._info = {name: info.without_load for name, info in self._info.items()}
        for name, view in self._state.views.items():
            if name in self._info:
                view.update_info(self._info[name])
        self._state.load_ordering = LoadOrdering(
            [cluster.name for cluster in event.clusters],
            max_priority=policy.max_priority,
            seed=policy.seed,
            tolerance=policy.tolerance,
            load=policy.load,
            ordering=policy.ordering,
        )

    def apply_daemon_started(self, event: DaemonStarted) -> None:
        """Forget all that the database does not store, so that a restored core is equal."""
        is_copy = self._state.instance not in ("", event.instance)  # restored from a backup
        self._configure(event)
        open_tasks = [self._state.tasks[task_id] for task_id in sorted(self._state.tasks)]
        self._state.clear_open_tasks()  # below they are opened in the database's order
        self._gates.rebuild(open_tasks)
        untried: dict[tuple[int, int, str], list[int]] = {}
        for task in open_tasks:
            self._state_machine.open(task)
        for task in open_tasks:
            task.priority = min(task.classified_priority, event.policy.max_priority)
            task.queue_key = self._state.queue_key(task.job, task.priority)
            attempt = task.attempt
            if attempt is None:
                if task.state is State.QUEUED:
                    self._state_machine.enqueue(task)
                continue
            attempt.observed_at_dispatch = 0.0
            attempt.in_last_listing, attempt.missing = False, False
            # the manager may have received the request: repeat it without delay
            attempt.withdrawal_requested = None if attempt.intent is None else 0.0
            attempt.last_listed = None
            attempt.accounting_queries, attempt.next_accounting_query = 0, 0.0
            if is_copy or attempt.dispatched > event.time:
                attempt.dispatched = 0.0  # copied or clock set back: no listing proves absence
                self._state.store(task)
            never_tried = attempt.untried
            if (view := self._state.view_of(task)) is not None:
                view.add_task(task)
                self._state.count_unstarted(task, attempt, attempt.state, +1)
                if attempt.tried is not None:
                    attempt.tried = event.time  # the call may have lasted until now
                    self._state.store(task)
                elif never_tried:
                    untried.setdefault(
                        (task.job.id, attempt.dispatch_id, attempt.cluster), []
                    ).append(task.index)
            elif attempt.state is not State.UNKNOWN:
                cause = f"cluster {attempt.cluster} is no longer configured"
                self._state_machine.apply(
                    task, TaskEvent.ABSENT if never_tried else TaskEvent.SILENCE, cause
                )
        for (job, dispatch_id, cluster), indices in untried.items():
            self._state.outcome.actions.append(Dispatch(job, dispatch_id, cluster, tuple(indices)))
        for view in self._state.views.values():
            self._state_machine.revoke_claims(
                view, [t for t in view.live_tasks.values() if t.live_attempt.revoking]
            )
        self._leasing.rebuild()
        self._reservations.start(event.instance, event.policy, event.clusters, self._state.outcome)
        # including reservations that closed while their cluster was not configured
        self._withdrawals.recall_from_closed_reservations(self._reservations.by_id.values())
