"""The meta-scheduler: events in, changes and actions out. Pure; the caller gives times and seeds.

`Core.step(event)` has six paragraphs:
1. Let time pass: licence tokens stop lingering, reservations begin and end.
2. Apply the event to the clusters and tasks that it names (`Core._handlers`): listings in
   `reconciler` and `stale_attempts`, answers to dispatches in `dispatch_answers`, requests of users
   in `user_requests`, which classifies new jobs, and starts of the daemon in `recovery`.
3. Withdraw tasks from reservations that are over or changed (`withdrawals`).
4. Release queued tasks from their gates (`gates`).
5. Find eligible clusters, lease licences, choose a cluster, dispatch (`placement`, `leasing`). Pull
   pending tasks to a cluster where they start now (`withdrawals`).
6. Return changes to store and actions to execute.

Consequences are data. `task_state_machine` alone changes states, by the table in `transitions`, and
returns each change. The part that applied the event yields it. `Core._settle` passes it to indexes
and clusters (`state`), to `leasing` and to `gates`, in this order, then applies its follow-up:
requeue, cancel, hold, or an older attempt that continues.

All parts share `SchedulerState`. Each part depends only on parts that `Core.__init__` creates
before it. Daemon and simulator drive the same core. Replaying the recorded events of a daemon with
a fresh core repeats its decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from metasched.core.array_remainder import REMAINDER_MINIMUM
from metasched.core.calendar import Calendar
from metasched.core.calendar_events import CalendarEntryRemoved, CalendarEntrySet, CalendarRun
from metasched.core.cluster_view import eligibility_key
from metasched.core.dispatch_answers import DispatchAnswers
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
    SharesReported,
    StartsForecast,
    TimerExpired,
    UseReported,
    UserRequested,
)
from metasched.core.fair_share import FairShare
from metasched.core.gates import SchedulingGates
from metasched.core.lease_expiry import LeaseExpiry
from metasched.core.leasing import LicenceLeasing
from metasched.core.placement import Placement
from metasched.core.reconciler import Reconciler
from metasched.core.recovery import Recovery
from metasched.core.refusals import Refusals
from metasched.core.remainders import Remainders
from metasched.core.reservations.book import ReservationBook
from metasched.core.reservations.events import ReservationEvent, ReservationRequested
from metasched.core.stale_attempts import StaleAttempts
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import WITHDRAWAL_RETRY_SECONDS, TaskStateMachine
from metasched.core.tasks import StateChange, Task, WithdrawalMode
from metasched.core.transitions import UNANSWERED
from metasched.core.usage_limits import Shortage, UsageLimits
from metasched.core.user_requests import UserRequests
from metasched.core.withdrawals import Withdrawals
from metasched.model.cluster import Cluster, ClusterInfo
from metasched.model.job import Job, Reason, State
from metasched.model.listing import JobStatus, KnownJob
from metasched.model.row_checks import RowDefect
from metasched.model.tags import Instances, TagKey
from metasched.policies.classify import Classifier
from metasched.policies.dispatch import LoadOrdering
from metasched.policies.policy import Policy

# Raise it with every change after which stored events, replayed, would be decided otherwise.
# A replay begins at the first checkpoint of the present version.
DECISION_VERSION: Final = 22

# Events after which tasks may be released because time has passed
_TIMED_EVENTS: Final[frozenset[type]] = frozenset(
    {TimerExpired, ClockSet, ListingReceived, UserRequested, JobRequeued, JobModified}
)
# Events after which any ready task may find another cluster eligible
_CLUSTER_EVENTS: Final[frozenset[type]] = frozenset(
    {DaemonStarted, ClockSet, ClusterDrained, ClusterResumed, ClusterUnreachable}
)


class Core:
    """The whole scheduler. Only `step` changes its state."""

    def __init__(self, remainder_minimum: int = REMAINDER_MINIMUM) -> None:
        """`remainder_minimum`: see `Remainders`; a replay needs the same."""
        self.state = SchedulerState()
        self.limits = UsageLimits(self.state)
        self.fair_share = FairShare(self.state)
        self._gates = SchedulingGates(self.state, self.limits)
        self._leasing = LicenceLeasing(self.state)
        self.reservations = ReservationBook(self._leasing.licences)
        self.calendar = Calendar(self.state)
        self._state_machine = TaskStateMachine(self.state, self._leasing)
        self._stale_attempts = StaleAttempts(self.state, self._state_machine)
        self._reconciler = Reconciler(self.state, self._state_machine, self._stale_attempts)
        self._lease_expiry = LeaseExpiry(self.state, self._leasing, self._gates, self.limits)
        self._placement = Placement(
            self.state,
            self._state_machine,
            self._leasing,
            self._gates,
            self.limits,
            self.reservations,
        )
        self._withdrawals = Withdrawals(
            self.state, self._state_machine, self._leasing, self._placement
        )
        self._remainders = Remainders(
            self.state, self._state_machine, self._gates, self.limits, remainder_minimum
        )
        self._user_requests = UserRequests(
            self.state,
            self._state_machine,
            self._leasing,
            self._gates,
            self._stale_attempts,
            self._placement,
            self.limits,
            self._remainders,
        )
        self._recovery = Recovery(
            self.state,
            self._state_machine,
            self._leasing,
            self._gates,
            self.reservations,
            self.calendar,
            self._withdrawals,
            self.limits,
            self.fair_share,
            self._remainders,
        )
        self._answers = DispatchAnswers(
            self.state, self._state_machine, self._gates, self._placement
        )
        self._refusals = Refusals(
            self.state, self._state_machine, self._gates, self._placement, self._remainders
        )
        self.restore = self._recovery.restore
        # Events other than those of reservations
        self._handlers: dict[type, Callable[[Any], Iterable[StateChange] | None]] = {
            JobSubmitted: self._user_requests.apply_submission,
            UserRequested: self._user_requests.apply_request,
            JobRequeued: self._user_requests.apply_requeue,
            JobModified: self._user_requests.apply_modification,
            ListingReceived: self._apply_listing,
            AccountingReceived: self._reconciler.apply_accounting,
            ClaimsRevoked: self._reconciler.apply_revocations,
            ClusterUnreachable: self._reconciler.apply_unreachable,
            DispatchStarted: self._answers.apply_started,
            DispatchAccepted: self._answers.apply_accepted,
            DispatchRejected: self._answers.apply_rejected,
            DispatchUncertain: self._answers.apply_uncertain,
            DispatchSkipped: self._answers.apply_skipped,
            ClusterDrained: self._withdrawals.apply_drain,
            ClusterResumed: self._apply_cluster_resumed,
            LicencesCounted: self._leasing.apply_counts,
            LicenceSet: self._leasing.apply_total,
            LicencesReleased: self._leasing.apply_release,
            ClockSet: _apply_nothing,
            DaemonStarted: self._recovery.apply_daemon_started,
            UseReported: self.fair_share.apply_use,
            SharesReported: self.fair_share.apply_shares,
            StartsForecast: self.state.forecast_loads.replace,
            TimerExpired: _apply_nothing,
            CalendarEntrySet: self.calendar.apply_set,
            CalendarEntryRemoved: self.calendar.apply_removed,
            CalendarRun: self.calendar.apply_run,
        }
        # Queries, besides the methods below
        self.tasks, self.licences = self.state.tasks, self._leasing.licences
        self.tasks_of, self.is_open = self.state.tasks_of, self.state.is_open
        self.count_open, self.find_task = self.state.count_open, self.state.find_task
        self.remainders, self.open_tasks = self.state.remainders, self.state.open_tasks
        self.tasks_of_dispatch = self.state.tasks_of_dispatch
        self.waits_since = self.state.waits_since
        self.is_news = self.state.forecast_loads.is_news
        self.missing_licences = self._leasing.missing_licences
        self.recall_wait = self._leasing.recall_wait
        self.has_task_for = self._withdrawals.has_task_for
        self.pull_candidates = self._withdrawals.pull_candidates
        self.licence_obstacle = self._leasing.licence_obstacle
        self.assess_clusters = self._placement.assess_clusters
        self.clusters_in_time = self._placement.clusters_in_time
        self.preview_order = self._gates.preview_order
        self.queued_group = self._gates.queued_group
        self.rejection_reason = self._placement.rejection_reason

    # Entry point

    @property
    def leases_licences(self) -> bool:
        """Whether metasched leases licences, rather than managers."""
        return self._leasing.enabled

    @property
    def ready_count(self) -> int:
        """Queued tasks that wait for a cluster, licences or a limit only."""
        return self._gates.ready_count

    def step(self, event: CoreEvent) -> Outcome:
        """Apply an event; return changes and actions. Never raises on a valid event.

        After a defect the state is half-applied: the caller discards this core. RowDefect names the
        row of a manager that the core failed on.
        """
        # 1. Let time pass: licence tokens stop lingering, reservations begin and end.
        outcome = self._pass_time(event)

        # 2. Apply the event to the clusters and tasks that it names.
        handler = self._handlers.get(type(event), self._apply_reservation_event)
        try:
            self._settle(handler(event) or ())
        except Exception as error:
            if (row := self.state.current_row) is not None:
                raise RowDefect(row) from error
            raise

        # 3. Withdraw tasks from reservations that are over or changed.
        if outcome.reservations:
            self._leasing.update_windows(outcome.reservations.values())
            self._withdrawals.recall_from_closed_reservations(outcome.reservations.values())
        if self.reservations.by_id:
            self._withdrawals.end_overrunning_tasks(self.reservations.collect_expired(event.time))

        if outcome.calendar:
            self._leasing.limit_by_calendar(outcome.calendar)

        # 4. Release queued tasks from their gates.
        if type(event) in _TIMED_EVENTS:
            self._gates.pass_time(event.time, self.policy.age)
        if outcome.reservations or type(event) in _CLUSTER_EVENTS:
            self._gates.request_recheck()
        if self.state.rechecks:
            for recheck in self.state.take_rechecks():
                self._gates.ineligible.request_recheck(recheck)

        # 5. Find eligible clusters, lease licences, dispatch. Pull tasks to clusters with room.
        if self._placement.begin_pass():
            self._place_tasks()
            self._settle(self._refusals.hold_refused())
        if isinstance(event, ListingReceived) and self.policy.pull_enabled:
            self._withdrawals.pull(self.state.views[event.cluster])

        # 6. Return changes to store and actions to execute.
        for task in self._gates.changed_tasks:
            self.state.store(task)
        return outcome

    def _settle(self, changes: Iterable[StateChange]) -> None:
        """Pass each change to the parts that keep data about tasks, then apply its follow-up.

        `changes` come from a generator, which continues when its last change is settled: it sees
        indexes, leases and gates that agree with the states. Follow-ups are few: each uses up a
        user's request for the task, or an intent of its last attempt.
        """
        for change in changes:
            self.state.update_indexes(change)
            if self._leasing.enabled or self._leasing.licences.leases:
                self._leasing.update_leases(change)
            if self.limits.enabled:
                self.limits.update(change)
            if self.fair_share.enabled:
                self.fair_share.update(change)
            job_id = change.task.job.id
            job_is_open = job_id in self.state.open_tasks or job_id in self.state.remainders
            cancel_cause = self._gates.update_gates(change, self.state.now, job_is_open)
            if change.before in UNANSWERED:
                self._settle(self._refusals.apply_change(change))
            if self.state.strikes and not job_is_open:
                self.state.strikes.forget(job_id)
            if cancel_cause or change.follow_up is not None:
                self._settle(self._state_machine.follow_up(change, cancel_cause))

    def _place_tasks(self) -> None:
        """Place newly ready tasks, then tasks that depended on a task rejected here."""
        while True:
            if self._gates.dependencies.changed:
                never_met = self._gates.resolve_dependencies(self.state.now)
                self._settle(self._remainders.report_never_met(never_met))
            self._settle(self._placement.place_tasks())
            if self._gates.settled:
                return

    def _pass_time(self, event: CoreEvent) -> Outcome:
        """Begin the step at the time of its event."""
        clock_step = event.step if isinstance(event, ClockSet) else 0.0
        outcome = self.state.begin_step(event.time, clock_step)
        self._gates.begin_step()
        if clock_step:
            self._adjust_clock(clock_step)
        self.licences.expire_lingering(event.time)
        self.licences.rank_anew(event.time)
        if self.fair_share.enabled:
            self.fair_share.pass_time(event.time, clock_step)
        if self.reservations.by_id and not isinstance(event, DaemonStarted):
            self.reservations.advance_time(event.time, outcome)
            self._leasing.update_windows(outcome.reservations.values())
        return outcome

    # Events that concern several parts

    def _apply_listing(self, event: ListingReceived) -> Iterator[StateChange]:
        """Apply a listing to its cluster and tasks; recall tasks that should not wait there."""
        view = self.state.views[event.cluster]
        if event.partial:
            yield from self._reconciler.apply_listing(view, event)
            return
        was_up, previous_key, previous_info = view.up, view.eligibility_key, view.info
        silent_seconds = view.mark_up(self.state.observed_seconds)
        if event.info is not None and event.info is not previous_info:
            view.update_info(event.info)
            self.state.cluster_info[event.cluster] = event.info
        view.up_since = event.up_since
        yield from self._reconciler.apply_listing(view, event)
        if view.needs_attention:
            self._lease_expiry.update(view, was_up)
        if self._leasing.enabled:
            self._leasing.count_outside_use(view)
        eligibility_changed = view.eligibility_key != previous_key
        permanently_changed = eligibility_changed and eligibility_key(
            previous_info, include_transient=False
        ) != eligibility_key(view.info, include_transient=False)
        if event.info is not None and (permanently_changed or not was_up):
            self._withdrawals.recall_ineligible(view)
        if self._leasing.enabled:
            self._withdrawals.recall_licence_holders(view)
        if view.cluster.binds_late:
            self._withdrawals.recall_late_starters(view)
        self._withdrawals.recall_window_conflicts(view)
        if self.reservations.by_id:
            self._withdrawals.end_overrunning_tasks(self.reservations.expired_on(view.name))
        if view.cluster.move_after is not None and silent_seconds >= view.cluster.move_after:
            self._withdrawals.evacuate(
                view, f"{view.name} was unreachable for {silent_seconds:.0f} s"
            )
        if view.needs_attention:
            self._reconciler.query_accounting(view)
        if view.stale_attempts:
            self._stale_attempts.request_withdrawals(view)
        if view.scope_limits.counts_tasks:
            view.scope_limits.pass_time(event.time)
        strikes_over = self.state.strikes.pass_time(event.time)
        if eligibility_changed or not was_up or view.retry_due(event.time) or strikes_over:
            self._gates.request_recheck()

    def _apply_cluster_resumed(self, event: ClusterResumed) -> None:
        self._withdrawals.apply_resume(event)
        self._withdrawals.recall_from_closed_reservations(self.reservations.by_id.values())

    def _adjust_clock(self, step: float) -> None:
        """Shift the origins of durations: a step of the clock is not elapsed time.

        Times that bound a proof of absence from below move back, never forward: this host may have
        been suspended, so that the time did pass.
        """
        for task in self.tasks.values():
            if task.attempt is not None:
                task.attempt.adjust_clock(step, self.state.now)
                self.state.store(task)
        for view in self.state.views.values():
            view.adjust_clock(step)
        self.state.strikes.adjust_clock(step)
        self.state.forecast_loads.drop()
        self.licences.adjust_clock(step)

    def _apply_reservation_event(self, event: ReservationEvent) -> None:
        if not isinstance(event, ReservationRequested):
            self.reservations.handle(event, self.state.outcome)
        elif self.calendar.awaits(event):
            self._leasing.refresh_expected_ends(event.licences)
            self.reservations.handle(event, self.state.outcome)
            self.calendar.note_request(event)

    # Queries

    @property
    def policy(self) -> Policy:
        return self.state.policy

    @property
    def tag_key(self) -> TagKey:
        """The key of the digests in tags; set before the first `DaemonStarted`."""
        return self.state.tag_key

    @tag_key.setter
    def tag_key(self, key: TagKey) -> None:
        self.state.tag_key = key

    @property
    def instance(self) -> str:
        return self.state.instances.newest

    @property
    def instances(self) -> Instances:
        return self.state.instances

    @property
    def classifier(self) -> Classifier:
        return self.state.classifier

    @property
    def load_ordering(self) -> LoadOrdering:
        self.state.observe_loads()
        return self.state.load_ordering

    def choose_cluster(self, job: Job, priority: int, eligible: Collection[str]) -> str:
        """Return the cluster on which a job would be placed now. ValueError if none is eligible."""
        self.state.observe_loads(job, eligible)
        return self.state.load_ordering.choose(job, priority, eligible)

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

    def known_jobs(self, cluster: str, *, all: bool) -> tuple[KnownJob, ...]:
        """Return the jobs of live attempts that the last listing lacked, or of all.

        Dispatches without an answer are among them, without a native id.
        """
        view = self.state.views[cluster]
        tasks = view.live_tasks if all else view.needs_attention
        jobs = (
            self._known_job(task)
            for task in tasks.values()
            if all or task.live_attempt.missing or not task.live_attempt.in_last_listing
        )
        return tuple(job for job in jobs if job is not None)

    def known_jobs_of(self, job: int, dispatch_id: int, indices: Iterable[int]) -> list[KnownJob]:
        """Return the jobs of those tasks of a dispatch whose live attempt it is."""
        tasks = self.state.dispatches.get((job, dispatch_id), {})
        jobs = (self._known_job(tasks[index]) for index in indices if index in tasks)
        return [known for known in jobs if known is not None and known.native_id]

    def _known_job(self, task: Task) -> KnownJob | None:
        """Return the job of a task's live attempt; None if its manager cannot have it."""
        attempt = task.live_attempt
        if not (attempt.native_id or attempt.awaits_look):
            return None
        return KnownJob(
            attempt.native_id or "",
            self.state.live_tag(task),
            task.index,
            task.job.user,
            attempt.dispatched,
            attempt.accepted,
            attempt.submitted,
            attempt.restarts,
        )

    def decided_before_refusal(self, task: Task) -> bool:
        """Return whether a task's dispatch was decided before its manager refused jobs like it."""
        view, dispatched = self.state.view_of(task), task.live_attempt.dispatched
        if view is None:
            return False
        if view.full_reason and dispatched <= view.full_since:
            return True
        strike = self.state.strikes.find(task.job.id, view.name)
        if strike is not None and strike.bars(dispatched):
            return True
        refused_at = view.scope_limits.refused_at(task.job)
        return refused_at is not None and dispatched < refused_at

    def refusal_of(self, cluster: str) -> tuple[str, int]:
        """Return the words by which a cluster refuses all jobs, and for how many users alone.

        "": it does not refuse all jobs.
        """
        view = self.state.views[cluster]
        return view.full_reason if view.refusing else "", len(view.refused_owners)

    def lacks_dispatch(self, job: int, index: int, dispatch_id: int) -> bool:
        """Return whether a dispatch of a known task was never made, as far as the core knows.

        Of a job that has ended it may lack any: the core remembers single tasks and attempts.
        """
        state = self.state
        if (job, dispatch_id) in state.dispatches:
            return False
        past = state.past_attempts_of(job, index)
        if state.is_open(job):
            return dispatch_id not in past and dispatch_id > state.last_dispatch.get(job, -1)
        return dispatch_id > max(past, default=dispatch_id)

    def find_drain(self, cluster: str) -> ClusterDrained | None:
        """Return the drain of a cluster, or None."""
        return self.state.drains.get(cluster)

    def limit_shortage(self, task: Task) -> Shortage | None:
        """Return the limit of the site that bars a queued task, or None."""
        if task.reason not in (Reason.LIMIT_USER, Reason.LIMIT_CLASS):
            return None
        if not task.job.licence_choices:
            return self.limits.shortage(task.job)
        stand_ins = self._gates.alternatives.stand_ins_of(task)
        shortages = [self.limits.shortage(stand_in.job) for stand_in in stand_ins]
        return next((shortage for shortage in shortages if shortage is not None), None)

    def describe_dependencies(self, task: Task) -> str:
        """Describe the unmet dependencies of a task; empty if it has none."""
        waiting = task.state is State.QUEUED and task.reason == Reason.DEPENDENCY
        return self._gates.dependencies.describe(task, self.state.now) if waiting else ""

    @property
    def next_due(self) -> float | None:
        """The next time (epoch seconds) at which the clock alone changes something, or None."""
        dues = (
            self._gates.next_due,
            self.licences.next_change,
            self.reservations.next_due,
        )
        return min((due for due in dues if due is not None), default=None)

    @property
    def has_unstarted_tasks(self) -> bool:
        """Whether a task is pending in a manager, or queued in metasched for free processors."""
        if self.policy.send == "late" and self._gates.has_ready:
            return True
        return bool(self.state.views_with_unstarted)

    def pull_counts(self, cluster: str) -> tuple[int, int]:
        """Return the number of pulls to a cluster, and of those that started at once.

        Both count from the start of the daemon.
        """
        record = self.state.views[cluster].pulls
        return record.pulls, record.started_at_once

    def awaits_claim(self, tag: str, index: int) -> bool:
        """Return whether a task waits until its claim is revoked, and so is not unknown."""
        task = self.state.task_by_tag(tag, index)
        return task is not None and task.awaits_claim

    def defers_rows(self, cluster: str, rows: Iterable[JobStatus]) -> bool:
        """Return whether rows of a listing, or earlier rows, wait until claims are revoked."""
        deferred = map(self.tasks.get, self.state.views[cluster].deferred_rows)
        listed = (self.state.task_by_tag(row.tag, row.task) for row in rows)
        return any(
            task is not None and task.attempt is not None and task.attempt.revoking
            for task in (*deferred, *listed)
        )

    def unchanged_listing_matters(
        self, cluster: str, now: float, set_aside: Collection[tuple[str, int]] = ()
    ) -> bool:
        """Return whether an unchanged listing of a cluster may still cause a decision.

        `set_aside`: tag and index of rows in it that cannot be used, as in `ListingReceived`.

        Causes are an unlisted task, a withdrawal to repeat, a full cluster to try again, a pull,
        and a recall for licences of queued tasks or of reservations.
        """
        view = self.state.views[cluster]
        if self._gates.has_ready and (view.retry_due(now) or view.scope_limits.probe_due(now)):
            return True
        if self.state.strikes.is_due(now):
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
                if attempt.accounting_query_due(now) or self._lease_expiry.is_due(task, view, now):
                    return True
                continue
            maybe_submitted = attempt.tried is not None or attempt.accepted is not None
            if maybe_submitted and not attempt.in_last_listing:
                tag = self.state.live_tag(task)
                may_be = (("", -1), (tag, -1), (tag, task.index))
                if not any(row in set_aside for row in may_be):
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


def _apply_nothing(_: TimerExpired | ClockSet) -> None:
    """The step has no other task than to let time pass."""


def replay(events: Iterable[CoreEvent]) -> Iterator[Outcome]:
    """Step a fresh core through recorded events; yield the outcome of each."""
    core = Core()
    for event in events:
        yield core.step(event)
