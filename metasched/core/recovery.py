"""Recovery: a fresh core from a database, and a clean state at each start of the daemon. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from metasched.core.calendar import Calendar
from metasched.core.cluster_view import ClusterView
from metasched.core.events import DaemonStarted, Dispatch
from metasched.core.fair_share import FairShare
from metasched.core.gates import SchedulingGates
from metasched.core.leasing import LicenceLeasing
from metasched.core.recovered_state import RecoveredState
from metasched.core.remainders import Remainders
from metasched.core.reservations.book import ReservationBook
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import HELD_AFTER_BACKUP, TaskStateMachine
from metasched.core.tasks import Attempt, Intent, StateChange, Task
from metasched.core.transitions import UNSTARTED, TaskEvent
from metasched.core.unstarted_index import UnstartedIndex
from metasched.core.usage_limits import UsageLimits
from metasched.core.user_turns import UserTurns
from metasched.core.withdrawals import Withdrawals
from metasched.model.cluster import MAX_CALL_TIMEOUT
from metasched.model.job import State
from metasched.model.tags import Instances
from metasched.model.tuning import TuningChange, TuningState
from metasched.policies.configured import make_classifier, make_load_ordering
from metasched.policies.policy import Policy
from metasched.policies.tuned_strategies import make_optimisers

LONGEST_CALL = MAX_CALL_TIMEOUT + 60.0  # seconds; an end that is further ahead is a wrong clock


class Recovery:
    """Restores the core, and resets it at each start of the daemon."""

    def __init__(
        self,
        state: SchedulerState,
        state_machine: TaskStateMachine,
        leasing: LicenceLeasing,
        gates: SchedulingGates,
        reservations: ReservationBook,
        calendar: Calendar,
        withdrawals: Withdrawals,
        limits: UsageLimits,
        fair_share: FairShare,
        remainders: Remainders,
    ) -> None:
        self._state, self._state_machine = state, state_machine
        self._leasing, self._gates = leasing, gates
        self._reservations, self._withdrawals = reservations, withdrawals
        self._calendar = calendar
        self._limits, self._fair_share = limits, fair_share
        self._remainders = remainders

    def restore(self, recovered: RecoveredState) -> None:
        """Restore a fresh core before its first event, which must be `DaemonStarted`."""
        self._reservations.restore(recovered.reservations)
        self._calendar.restore(recovered.calendar)
        self._leasing.licences.restore(
            recovered.leases, recovered.lingering, recovered.totals, recovered.used_outside
        )
        self._fair_share.restore(recovered.share_uses, recovered.share_trees)
        state = self._state
        state.drains = {drain.cluster: drain for drain in recovered.drains}
        state.margin_jobs = list(recovered.margins)
        state.tuning = {tuned.parameter: tuned for tuned in recovered.tuning}
        state.cluster_info = dict(recovered.info)
        state.last_dispatch = dict(recovered.last_dispatches)
        state.ended_tasks = OrderedDict(recovered.ended)
        state.strikes.set_all(recovered.strikes)
        for task in recovered.tasks:
            self._open(task)
        for remainder in recovered.remainders:
            state.remainders[remainder.job.id] = remainder
        for job_id, summaries in recovered.target_summaries.items():
            open_job = state.remainders.get(job_id) or state.tasks_of(job_id)[0]
            job = open_job.job
            self._gates.dependencies.track(job, summaries, state.tasks_of)

    def _open(self, task: Task) -> None:
        self._state.open_task(task)
        self._gates.dependencies.add_job(task.job)

    def _configure(self, event: DaemonStarted) -> None:
        """Take over the configuration of the daemon."""
        policy, pools = event.policy, event.pools
        self._state.policy = policy
        self._state.instances = Instances(
            event.first_dispatches or {event.instance: 0}, self._state.tag_key
        )
        self._leasing.configure(
            pools, policy.patience, [cluster.name for cluster in event.clusters]
        )
        self._leasing.update_windows(self._reservations.by_id.values())
        self._leasing.limit_by_calendar(self._calendar.entries)
        licences = event.licence_count if pools is None else len(pools)
        self._state.classifier = make_classifier(policy, licences, self._state.margin_jobs)
        self._configure_tuning(policy)
        self._state.rechecks, self._state.refills = {}, set()
        self._state.remainders_in_line = set()
        self._state.views = {
            cluster.name: ClusterView(
                cluster, rechecks=self._state.rechecks, refills=self._state.refills
            )
            for cluster in event.clusters
        }
        self._state.indexes_unstarted = policy.pull_enabled and len(self._state.views) > 1
        self._state.views_with_unstarted = {}
        self._state.unstarted_index = UnstartedIndex()
        self._state.observed_seconds = 0.0
        # the reported load is out of date
        self._state.cluster_info = {
            name: info.without_load for name, info in self._state.cluster_info.items()
        }
        for name, view in self._state.views.items():
            if name in self._state.cluster_info:
                view.update_info(self._state.cluster_info[name])
        self._state.load_ordering = make_load_ordering(
            policy, (cluster.name for cluster in event.clusters)
        )
        self._state.forecast_loads.drop()  # a replay that begins here has none

    def _configure_tuning(self, policy: Policy) -> None:
        """Let the classifier optimise itself from where it was; a changed policy begins anew."""
        state, before = self._state, self._state.tuning
        state.classifier.optimisers = make_optimisers(
            state.classifier, policy.self_optimising, before
        )
        state.store_tuning()
        state.outcome.tuning_changes = [
            TuningChange(parameter, stored.configuration, after)
            for parameter, stored in before.items()
            if stored.configuration != (after := _configuration(state.tuning.get(parameter)))
        ]

    def _restore_attempt(self, task: Task, attempt: Attempt, now: float) -> None:
        """Distrust an attempt in a backup: it lacks the daemon's later acts.

        An intended dispatch was made since. A withdrawal that metasched decided is dropped: the
        attempt may belong to a daemon that still runs. A task that has not started is held if it
        comes back, since it may have been moved.
        """
        task.held |= not attempt.has_started
        if attempt.untried:
            attempt.tried = now
        if attempt.intent not in (Intent.CANCEL, Intent.HOLD):
            attempt.intent = attempt.target = attempt.yields_to = None
        self._state.store(task)

    def apply_daemon_started(self, event: DaemonStarted) -> Iterator[StateChange]:
        """Forget all that the database does not store, so that a restored core is equal."""
        self._configure(event)
        self._state.strikes.set_all(list(self._state.strikes))
        open_tasks = [self._state.tasks[task_id] for task_id in sorted(self._state.tasks)]
        self._state.clear_open_tasks()  # below they are opened in the database's order
        remainders = [remainder for _, remainder in sorted(self._state.remainders.items())]
        self._limits.configure(event.limits, open_tasks, remainders)
        self._fair_share.configure(event.fair_share, event.clusters, open_tasks)
        shares = self._fair_share if self._fair_share.enabled else None
        self._gates.rebuild(open_tasks, shares)
        self._leasing.licences.set_turns(UserTurns(shares), event.policy.age)
        untried: dict[tuple[int, int, str], list[int]] = {}
        for task in open_tasks:
            self._open(task)
            if event.restored and task.attempt is not None:
                self._restore_attempt(task, task.attempt, event.time)
        for remainder in remainders:
            self._gates.dependencies.add_job(remainder.job)
        for task in open_tasks:
            task.priority = min(task.classified_priority, event.policy.max_priority)
            task.queue_key = self._state.queue_key(task.job, task.priority)
            attempt = task.attempt
            if attempt is None:
                if task.state is State.QUEUED:
                    status = self._gates.enqueue(task, event.time)
                    if cause := self._gates.cancel_cause(task, status, event.time):
                        yield self._state_machine.apply(task, TaskEvent.CANCEL, cause)
                    elif event.restored:
                        task.held = True
                        yield self._state_machine.apply(task, TaskEvent.HOLD, HELD_AFTER_BACKUP)
                continue
            attempt.observed_at_dispatch = 0.0
            attempt.in_last_listing, attempt.missing = False, False
            attempt.missing_since = 0.0
            # the manager may have received the request: repeat it without delay
            attempt.withdrawal_requested = None if attempt.intent is None else 0.0
            # earlier requests are not stored
            attempt.maybe_withdrawn, attempt.gone_first = True, False
            attempt.last_listed = attempt.absent_until = None
            attempt.accounting_queries, attempt.next_accounting_query = 0, 0.0
            if event.restored or attempt.dispatched > event.time:
                # copied, or the clock was set back: no listing proves absence
                attempt.dispatched = 0.0
                self._state.store(task)
            never_tried = attempt.untried
            if (view := self._state.view_of(task)) is not None:
                view.add_task(task)
                if attempt.state is State.DISPATCHING:
                    view.scope_limits.count_unanswered(task, +1)
                if attempt.state in UNSTARTED:
                    self._state.count_unstarted(task, view, +1)
                if attempt.tried is not None:
                    attempt.tried = _end_of_call(attempt.tried, event)
                    self._state.store(task)
                elif never_tried:
                    untried.setdefault(
                        (task.job.id, attempt.dispatch_id, attempt.cluster), []
                    ).append(task.index)
            elif attempt.state is not State.UNKNOWN:
                cause = f"cluster {attempt.cluster} is no longer configured"
                yield self._state_machine.apply(
                    task, TaskEvent.ABSENT if never_tried else TaskEvent.SILENCE, cause
                )
        yield from self._remainders.restart(remainders, event.restored, event.time)
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


def _end_of_call(tried: float, event: DaemonStarted) -> float:
    """Return until when a call that was tried may last: until now, or that of a former daemon.

    The stored time counts too, since this daemon may start again meanwhile; unless it is so late
    that the clock was wrong.
    """
    stored = tried if tried <= event.time + LONGEST_CALL else 0.0
    return max(event.time, event.former_acts_until, stored)


def _configuration(tuned: TuningState | None) -> tuple[float, ...]:
    return () if tuned is None else tuned.configuration
