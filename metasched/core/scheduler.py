"""The meta-scheduler: events in, changes and actions out. Pure; the caller gives times and seeds.

`Core.step(event)` runs in this order:
1. Apply the event to clusters and tasks: listings in `reconciler`, tasks that are listed again in
   `stale_attempts`, requests of users in `user_requests`, starts of the daemon in `recovery`. Every
   change of a task's state goes through `task_state_machine` and the table in `transitions`.
2. Classify a new job (`policies.classify`).
3. Release queued tasks from their gates (`gates`) and find eligible clusters (`placement`,
   `policies.eligible`).
4. Lease all licences of a task (`leasing`, `licences`) and choose a cluster (`placement`,
   `policies.dispatch`). Pull pending tasks to a cluster where they start now (`withdrawals`,
   `policies.pull`).
5. Request withdrawals from managers: cancel, hold, pull (`task_state_machine`).
6. Return changes to store and actions to execute.

All parts share `SchedulerState`. Each part depends only on parts that `Core.__init__` creates
before it. Daemon and simulator drive the same core. Replaying the recorded events of a daemon with
a fresh core repeats its decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from metasched.core.cluster_view import eligibility_key
from metasched.core.dependency_status import DependencyStatus
from metasched.core.events import (
    AccountingReceived,
    ClaimsRevoked,
    ClockSet,
    ClusterDrained,
    ClusterResumed,
    ClusterUnreachable,
    CoreEvent,
    DaemonStarted,
    DispatchAccepted,
    DispatchRejected,
    DispatchSkipped,
    DispatchStarted,
    DispatchUncertain,
    JobModified,
    JobRequeued,
    JobSubmitted,
    LicencesCounted,
    LicenceSet,
    LicencesReleased,
    ListingReceived,
    Outcome,
    TimerExpired,
    UserRequested,
)
from metasched.core.gates import SchedulingGates
from metasched.core.leasing import LicenceLeasing
from metasched.core.placement import Placement
from metasched.core.reconciler import Reconciler
from metasched.core.recovery import Recovery
from metasched.core.reservations.book import ReservationBook
from metasched.core.reservations.events import ReservationRequested
from metasched.core.stale_attempts import StaleAttempts
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import WITHDRAWAL_RETRY_SECONDS, TaskStateMachine
from metasched.core.tasks import Task, WithdrawalMode
from metasched.core.transitions import TaskEvent
from metasched.core.user_requests import UserRequests
from metasched.core.withdrawals import Withdrawals
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.job import Reason, State
from metasched.model.refusal_scope import jobs_in_scope
from metasched.policies.classify import Classifier
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.policy import Policy


class Core:
    """The whole scheduler. Only `step` changes its state."""

    def __init__(self) -> None:
        self.state = SchedulerState()
        self._gates = SchedulingGates()
        self._leasing = LicenceLeasing(self.state)
        self.reservations = ReservationBook(self._leasing.licences)
        self._state_machine = TaskStateMachine(self.state, self._leasing, self._gates)
        self._stale_attempts = StaleAttempts(self.state, self._state_machine)
        self._reconciler = Reconciler(self.state, self._state_machine, self._stale_attempts)
        self._placement = Placement(
            self.state, self._state_machine, self._leasing, self._gates, self.reservations
        )
        self._withdrawals = Withdrawals(
            self.state, self._state_machine, self._leasing, self._placement
        )
        self._user_requests = UserRequests(
            self.state,
            self._state_machine,
            self._leasing,
            self._gates,
            self._stale_attempts,
            self._placement,
        )
        self._recovery = Recovery(
            self.state,
            self._state_machine,
            self._leasing,
            self._gates,
            self.reservations,
            self._withdrawals,
        )
        self.restore = self._recovery.restore
        # Queries, besides the methods below
        self.tasks, self.licences = self.state.tasks, self._leasing.licences
        self.tasks_of, self.is_open = self.state.tasks_of, self.state.is_open
        self.tasks_of_dispatch = self.state.tasks_of_dispatch
        self.missing_licences = self._leasing.missing_licences
        self.recall_wait = self._leasing.recall_wait
        self.licence_obstacle = self._leasing.licence_obstacle
        self.assess_clusters = self._placement.assess_clusters
        self.rejection_reason = self._placement.rejection_reason

    # Entry point

    def step(self, event: CoreEvent) -> Outcome:
        """Apply an event; return changes and actions. Never raises on a valid event."""
        clock_step = event.step if isinstance(event, ClockSet) else 0.0
        outcome = self.state.begin_step(event.time, clock_step)
        self._gates.begin_step()
        if isinstance(event, ClockSet):
            self.licences.adjust_clock(event.step)
        self.licences.expire_lingering(event.time)
        if self.reservations.by_id and not isinstance(event, DaemonStarted):
            self.reservations.advance_time(event.time, outcome)
            self._leasing.update_windows(outcome.reservations.values())
        match event:
            case JobSubmitted():
                self._apply_job_submitted(event)
            case ListingReceived():
                self._apply_listing(event)
            case AccountingReceived():
                self._reconciler.apply_accounting(event)
            case ClaimsRevoked():
                self._reconciler.apply_revocations(event)
            case DispatchAccepted():
                self._apply_dispatch_accepted(event)
            case DispatchRejected():
                self._apply_dispatch_rejected(event)
            case DispatchStarted():
                for task in self.tasks_of_dispatch(event.job, event.dispatch_id):
                    task.live_attempt.tried = event.time
                    task.live_attempt.fence = event.fence or task.live_attempt.fence
                    self.state.store(task)
            case DispatchUncertain():
                for task in self.tasks_of_dispatch(event.job, event.dispatch_id):
                    task.live_attempt.tried = event.time
                    self.state.record_note(task, f"no answer: {event.reason}")
            case DispatchSkipped():
                skipped = [self.tasks_of_dispatch(*dispatch) for dispatch in event.dispatches]
                for task in chain.from_iterable(skipped):
                    self._state_machine.apply(task, TaskEvent.ABSENT, "never submitted")
            case ClusterUnreachable():
                self._apply_cluster_unreachable(event)
            case UserRequested():
                self._user_requests.apply_request(event)
            case JobRequeued():
                self._user_requests.apply_requeue(event)
            case JobModified():
                self._user_requests.apply_modification(event)
            case ClusterDrained():
                self._withdrawals.apply_drain(event)
                self._gates.request_recheck()
            case ClusterResumed():
                self._withdrawals.apply_resume(event)
                self._withdrawals.recall_from_closed_reservations(self.reservations.by_id.values())
                self._gates.request_recheck()
            case LicencesCounted():
                for count in event.counts:
                    if self.licences.record_count(count, event.time):
                        outcome.licence_statuses[count.name] = self.licences.status(
                            count.name, event.time
                        )
            case LicenceSet():
                self.licences.set_operator_total(event.name, event.total)
                outcome.licence_statuses[event.name] = self.licences.status(event.name, event.time)
            case LicencesReleased():
                for task in self.tasks_of(event.job, event.indices):
                    if task.state is State.UNKNOWN:
                        self._leasing.return_lease(task, f"released by {event.by}")
            case ClockSet():
                self._apply_clock_set(event)
            case DaemonStarted():
                self._recovery.apply_daemon_started(event)
                self._gates.request_recheck()
            case TimerExpired():
                self._gates.pass_time(event.time)
            case ReservationRequested():
                self._leasing.refresh_expected_ends(event.licences)
                self.reservations.handle(event, outcome)
            case _:
                self.reservations.handle(event, outcome)
        if outcome.reservations:
            self._leasing.update_windows(outcome.reservations.values())
            self._withdrawals.recall_from_closed_reservations(outcome.reservations.values())
            self._gates.request_recheck()
        if self.reservations.by_id:
            self._withdrawals.end_overrunning_tasks(self.reservations.collect_expired(event.time))
        for view in self.state.views.values():
            if view.scope_limits.take_freed_room():
                self._gates.request_recheck()
        self._placement.place_ready_tasks()
        if isinstance(event, ListingReceived) and self.policy.pull_enabled:
            self._withdrawals.pull(self.state.views[event.cluster])
        for task in self._gates.changed_tasks:
            self.state.store(task)
        return outcome

    def _apply_clock_set(self, event: ClockSet) -> None:
        """Shift the origins of durations: a step of the clock is not elapsed time.

        Times that bound a proof of absence from below move back, never forward: this host may have
        been suspended, so that the time did pass.
        """
        for task in self.tasks.values():
            if task.attempt is not None:
                task.attempt.adjust_clock(event.step)
                self.state.store(task)
        for view in self.state.views.values():
            view.adjust_clock(event.step)
        self._gates.pass_time(event.time)
        self._gates.request_recheck()

    # Steps 1 and 2: apply the event

    def _apply_job_submitted(self, event: JobSubmitted) -> None:
        job = event.job
        classifier = self.state.classifier
        priority, self.state.outcome.priority_parts = classifier.classify(job)
        classifier.remember(job)
        self._recovery.remember_job(job)
        if job.dependency is not None:
            self._state_machine.track_dependencies(job, event.target_summaries)
        key = self.state.queue_key(job, priority)
        tasks = [Task(job, index, priority, key, held=job.held) for index in job.indices]
        for task in tasks:  # all, before any of them may end
            self._state_machine.open(task)
        for task in tasks:
            if job.held:
                task.state, task.reason = State.HELD, Reason.HELD
                self.state.record_change(task, None, None, "submitted")
                continue
            status = self._gates.enqueue(task, event.time)
            if status is DependencyStatus.SATISFIED:
                self.state.record_change(task, None, None, "submitted")
            else:
                waiting_for = self._gates.describe_dependencies(task, event.time)
                self.state.record_change(task, None, None, f"submitted; {waiting_for}")
                self._state_machine.cancel_if_never_satisfied(task, status)

    def _apply_dispatch_accepted(self, event: DispatchAccepted) -> None:
        tasks = self.tasks_of_dispatch(event.job, event.dispatch_id)
        for task in tasks:
            attempt, view = task.live_attempt, self.state.view_of(task)
            attempt.native_id = event.native_ids.get(task.index)
            attempt.accepted = event.time
            attempt.tried = None
            cause = "the manager accepted it" + (f", by {event.access}" if event.access else "")
            if attempt.state in (State.DISPATCHING, State.UNKNOWN):
                self._state_machine.apply(task, TaskEvent.ACCEPT, cause)
            else:  # a listing came before the answer
                self.state.record_note(task, cause)
            self._state_machine.request_withdrawal(task)
            if view is not None and view.full_reason:
                view.full_reason, view.retry_delay = "", 0.0
                self._gates.request_recheck()
        if tasks and (view := self.state.view_of(tasks[0])) is not None:
            view.scope_limits.accept(tasks[0].job)

    def _apply_dispatch_rejected(self, event: DispatchRejected) -> None:
        tasks = [
            task
            for task in self.tasks_of_dispatch(event.job, event.dispatch_id)
            if task.state in (State.DISPATCHING, State.UNKNOWN)  # else the manager has listed it
        ]
        view = self.state.view_of(tasks[0]) if tasks and event.retry_later else None
        if view is not None:
            if event.scope == "cluster":
                view.mark_full(event.reason, event.time)
            else:
                jobs = jobs_in_scope(event.scope, tasks[0].job)
                live_tasks = view.live_tasks.values()
                view.scope_limits.refuse(jobs, len(tasks), live_tasks, event.reason, event.time)
            self._placement.clear_cache()
        for task in tasks:
            if view is None:
                if task.live_attempt.number > task.ignore_rejections_until:
                    task.rejected_by.add(task.live_attempt.cluster)
                task.live_attempt.rejected = True
            self._state_machine.apply(task, TaskEvent.REFUSE, event.reason)

    def _apply_cluster_unreachable(self, event: ClusterUnreachable) -> None:
        view = self.state.views[event.cluster]
        view.mark_down(event.reason, self.state.observed_seconds)
        for task in list(view.live_tasks.values()):
            if task.live_attempt.state is not State.UNKNOWN and not task.live_attempt.untried:
                self._state_machine.apply(task, TaskEvent.SILENCE, event.reason)
        self._gates.request_recheck()

    def _apply_listing(self, event: ListingReceived) -> None:
        view = self.state.views[event.cluster]
        was_up, previous_key, previous_info = view.up, view.eligibility_key, view.info
        silent_seconds = view.mark_up(self.state.observed_seconds)
        if event.info is not None and event.info is not previous_info:
            view.update_info(event.info)
            self._recovery.remember_cluster_info(event.cluster, event.info)
        view.up_since = event.up_since
        self._reconciler.apply_listing(view, event)
        self._leasing.count_outside_use(view)
        eligibility_changed = view.eligibility_key != previous_key
        permanently_changed = eligibility_changed and eligibility_key(
            previous_info, include_transient=False
        ) != eligibility_key(view.info, include_transient=False)
        if event.info is not None and (permanently_changed or not was_up):
            self._withdrawals.recall_ineligible(view)
        self._withdrawals.recall_licence_holders(view)
        self._withdrawals.recall_late_starters(view)
        self._withdrawals.recall_window_conflicts(view)
        self._withdrawals.end_overrunning_tasks(self.reservations.expired_on(view.name))
        if view.cluster.move_after is not None and silent_seconds >= view.cluster.move_after:
            self._withdrawals.evacuate(
                view, f"{view.name} was unreachable for {silent_seconds:.0f} s"
            )
        self._reconciler.query_accounting(view)
        self._stale_attempts.request_withdrawals(view)
        self._gates.pass_time(event.time)
        view.scope_limits.pass_time(event.time)
        if eligibility_changed or not was_up or view.retry_due(event.time):
            self._gates.request_recheck()

    # Queries

    @property
    def policy(self) -> Policy:
        return self.state.policy

    @property
    def instance(self) -> str:
        return self.state.instance

    @property
    def classifier(self) -> Classifier:
        return self.state.classifier

    @property
    def load_ordering(self) -> LoadOrdering:
        self.state.observe_loads()
        return self.state.load_ordering

    @property
    def clusters(self) -> list[Cluster]:
        return [view.cluster for view in self.state.views.values()]

    def cluster_status(self, cluster: str) -> tuple[ClusterInfo | None, str]:
        """Return the last reported state of a cluster, and "" or the reason why it is down."""
        view = self.state.views[cluster]
        return view.info, "" if view.up else view.down_reason

    def tasks_on(self, cluster: str) -> list[Task]:
        """Return the tasks whose live attempt is on a cluster."""
        return list(self.state.views[cluster].live_tasks.values())

    def decided_before_refusal(self, task: Task) -> bool:
        """Whether a task's dispatch was decided before its manager refused jobs like it."""
        view, dispatched = self.state.view_of(task), task.live_attempt.dispatched
        if view is None:
            return False
        if view.full_reason and dispatched <= view.full_since:
            return True
        refused_at = view.scope_limits.refused_at(task.job)
        return refused_at is not None and dispatched < refused_at

    def find_drain(self, cluster: str) -> ClusterDrained | None:
        """Return the drain of a cluster, or None."""
        return self.state.drains.get(cluster)

    def describe_dependencies(self, task: Task) -> str:
        """Describe the unmet dependencies of a task; empty if it has none."""
        waiting = task.state is State.QUEUED and task.reason == Reason.DEPENDENCY
        return self._gates.describe_dependencies(task, self.state.now) if waiting else ""

    @property
    def next_due(self) -> float | None:
        """The next time (epoch seconds) at which the clock alone changes something, or None."""
        dues = (
            self._gates.next_due,
            self.licences.next_lingering_return,
            self.reservations.next_due,
        )
        return min((due for due in dues if due is not None), default=None)

    @property
    def has_unstarted_tasks(self) -> bool:
        """Whether a task is pending in a manager, or queued in metasched for free processors."""
        if self.policy.send == "late" and self._gates.ready:
            return True
        return bool(self.state.views_with_unstarted)

    @property
    def may_pull(self) -> bool:
        """Whether an unchanged listing may let a task be pulled, as of the last step."""
        return self.policy.pull_enabled and self._withdrawals.may_pull

    def unchanged_listing_matters(self, cluster: str, now: float) -> bool:
        """Whether an unchanged listing of a cluster may still cause a decision.

        Causes are an unlisted task, a withdrawal to repeat, a full cluster to try again, a pull,
        and a recall for licences of queued tasks or of reservations.
        """
        view = self.state.views[cluster]
        if self._gates.ready and (view.retry_due(now) or view.scope_limits.probe_due(now)):
            return True
        if any(
            stale_attempt.withdrawal is not WithdrawalMode.NONE
            and now - stale_attempt.withdrawal_requested >= WITHDRAWAL_RETRY_SECONDS
            for stale_attempt in view.stale_attempts.values()
        ):
            return True
        if any(self._leasing.contended_tasks(view)):
            return True
        if self._placement.late_starters(view) or any(self._leasing.window_conflicts(view)):
            return True
        for task in view.needs_attention.values():
            attempt = task.live_attempt
            if attempt.missing:
                if attempt.accounting_query_due(now):
                    return True
                continue
            maybe_submitted = attempt.tried is not None or attempt.accepted is not None
            if maybe_submitted and not attempt.in_last_listing:
                return True
            if (
                attempt.withdrawal_requested is not None
                and now - attempt.withdrawal_requested >= WITHDRAWAL_RETRY_SECONDS
            ):
                return True
        return self.policy.pull_enabled and any(
            task.state is State.PENDING
            for name, other_view in self.state.views_with_unstarted.items()
            if name != cluster
            for task in other_view.unstarted_tasks.values()
        )


def replay(events: Iterable[CoreEvent]) -> Iterator[Outcome]:
    """Step a fresh core through recorded events; yield the outcome of each."""
    core = Core()
    for event in events:
        yield core.step(event)
