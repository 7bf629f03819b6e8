"""Withdrawals of dispatched tasks: pulls, recalls, ends of reservations. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from metasched.core.cluster_view import ClusterView
from metasched.core.events import ClusterDrained, ClusterResumed
from metasched.core.leasing import LicenceLeasing
from metasched.core.placement import Placement
from metasched.core.promising_groups import GroupCheck
from metasched.core.state import SchedulerState
from metasched.core.task_state_machine import TaskStateMachine
from metasched.core.tasks import Intent, Task
from metasched.core.transitions import UNSTARTED
from metasched.core.unstarted_index import UnstartedGroup
from metasched.model.cluster import ClusterInfo
from metasched.model.job import State
from metasched.model.reservation import FINAL_STATES, Reservation
from metasched.policies.eligible import PERMANENT_REASONS
from metasched.policies.pull import PullCapacity


class Withdrawals:
    """Withdraws tasks from clusters where they cannot, must not or need not wait.

    Started tasks stay, unless their reservation is over.
    """

    def __init__(
        self,
        state: SchedulerState,
        state_machine: TaskStateMachine,
        leasing: LicenceLeasing,
        placement: Placement,
    ) -> None:
        self._state, self._state_machine = state, state_machine
        self._leasing, self._placement = leasing, placement

    # Drained and changed clusters

    def apply_drain(self, event: ClusterDrained) -> None:
        """Drain a cluster."""
        self._state.drains[event.cluster] = event
        if (view := self._state.views.get(event.cluster)) is not None:
            self.recall_ineligible(view)

    def apply_resume(self, event: ClusterResumed) -> None:
        """Resume a cluster; recalls that were not requested from its manager yet are dropped."""
        self._state.drains.pop(event.cluster, None)
        if (view := self._state.views.get(event.cluster)) is None:
            return
        for task in list(view.live_tasks.values()):
            if (
                task.live_attempt.intent is Intent.RECALL
                and task.live_attempt.withdrawal_requested is None
            ):
                task.live_attempt.intent = None
                self._state.record_note(task, f"{event.cluster} resumed: recall dropped")

    def recall_ineligible(self, view: ClusterView) -> None:
        """Recall unstarted tasks from a cluster that is drained or can never start them."""
        drain = self._state.drains.get(view.name)
        drained = drain is not None and not drain.keep_pending
        for task in list(view.live_tasks.values()):
            if drained:
                self._state_machine.recall(task, view, str(drain))
            elif not task.live_attempt.has_started:
                obstacle = self._placement.check_job(task.job, view)
                if obstacle is not None and obstacle.reason in PERMANENT_REASONS:
                    self._state_machine.recall(task, view, obstacle.text)

    # Unreachable clusters

    def evacuate(self, view: ClusterView, cause: str) -> None:
        """Move unstarted tasks of a cluster, if another cluster can take them."""
        for task in sorted(
            view.live_tasks.values(), key=lambda item: (item.queue_key, *item.task_id)
        ):
            alternatives = [
                name
                for name, other_view in self._state.views.items()
                if other_view is not view and self._placement.may_move_to(task, other_view)
            ]
            if alternatives and self._state_machine.recall(task, view, cause):
                self._state.observe_loads(task.job, alternatives)
                choice = self._state.load_ordering.choose(task.job, task.priority, alternatives)
                task.live_attempt.target = choice

    # Reservations

    def recall_from_closed_reservations(self, changed: Iterable[Reservation]) -> None:
        """Recall unstarted tasks of closed reservations."""
        for reservation in changed:
            view = self._state.views.get(reservation.cluster)
            if reservation.state in FINAL_STATES and view is not None:
                for task in list(view.live_tasks.values()):
                    if task.job.reservation == reservation.id:
                        cause = f"reservation {reservation.id} is {reservation.state}"
                        self._state_machine.recall(task, view, cause)

    def end_overrunning_tasks(self, expired: Iterable[Reservation]) -> None:
        """Cancel tasks that still run in reservations that are over; managers may be late."""
        for reservation in expired:
            if (view := self._state.views.get(reservation.cluster)) is None:
                continue
            for task in list(view.live_tasks.values()):
                attempt = task.live_attempt
                if (
                    task.job.reservation == reservation.id
                    and attempt.has_started
                    and attempt.intent is None
                    and not self._state.instances.is_former(attempt.dispatch_id)
                ):
                    attempt.intent = Intent.EXPIRE
                    self._state.record_note(
                        task, f"reservation {reservation.id} is over: it is to end"
                    )
                    self._state_machine.request_withdrawal(task)

    def recall_late_starters(self, view: ClusterView) -> None:
        """Recall tasks that did not start at once and would now run into a reservation."""
        late_starters = self._placement.late_starters(view)
        if not late_starters:
            return
        reserved = self._placement.reserved_nodes(view, excluding=late_starters)
        if reserved is None:
            return
        for task in late_starters:
            if reserved.leaves_reserved_nodes(task.job):
                reserved.record_start(task.job)
            else:
                cause = "it did not start at once, and a reservation is near"
                self._state_machine.recall(task, view, cause)

    # Contended licences

    def recall_licence_holders(self, view: ClusterView) -> None:
        """Recall unstarted tasks that hold licences, if that lets queued tasks start.

        Recalled tasks queue behind all tasks that wait for licences now. Nothing is recalled while
        a queued task can go with tokens that have just come back.
        """
        now, licences = self._state.now, self._leasing.licences
        if not licences.has_waiting or licences.next_ready(now) is not None:
            return
        freed: Counter[str] = Counter()
        for task in view.unstarted_tasks.values():
            if task.live_attempt.intent is Intent.RECALL:
                freed.update(self._leasing.tokens(task))
        if licences.would_unblock(freed, now):
            return
        to_recall: list[Task] = []
        for task in sorted(
            self._leasing.contended_tasks(view),
            key=lambda item: (item.queue_key, *item.task_id),
            reverse=True,
        ):
            if now - (task.live_attempt.accepted or now) >= self._leasing.recall_wait(task):
                freed.update(self._leasing.tokens(task))
                to_recall.append(task)
                if licences.would_unblock(freed, now):
                    break
        else:
            return
        for task in to_recall:
            cause = "other tasks wait for its licences, and it does not start"
            if self._state_machine.recall(task, view, cause):
                self._leasing.demote(task)

    def recall_window_conflicts(self, view: ClusterView) -> None:
        """Recall unstarted tasks that by their limits would hold licences of a reservation."""
        now, licences = self._state.now, self._leasing.licences
        if not licences.reserved_licences:
            return
        self._leasing.refresh_expected_ends(licences.reserved_licences)
        freed: Counter[str] = Counter()
        for other_view in self._state.views.values():
            for task in self._leasing.window_conflicts(other_view):
                if task.live_attempt.intent is Intent.RECALL:
                    freed.update(self._leasing.tokens(task))
        waiting = [
            task for task in self._leasing.window_conflicts(view) if task.live_attempt.settled
        ]
        for task in sorted(waiting, key=lambda task: (task.queue_key, *task.task_id), reverse=True):
            window = licences.lookahead.delayed_window(task.task_id, freed, now)
            if window is not None:
                cause = f"it has not started, and {window.describe()} needs its licences"
                if self._state_machine.recall(task, view, cause):
                    freed.update(self._leasing.tokens(task))

    # Pulls

    def pull(self, view: ClusterView) -> None:
        """Withdraw pending tasks elsewhere that would start on this cluster now."""
        info, record = view.info, view.pulls
        if info is None or view.refusing:  # it looks empty
            return
        record.judge(self._state.now, info.cpus - info.used_cpus, view.live_tasks.values())
        if not self._may_hold_some_task(view, info):
            return
        promising = self._find_promising(view, info, self._state.now)
        if promising is None:
            return
        groups, capacity = promising
        record.unused_capacity = None
        on_their_way = [
            task.job
            for task in view.needs_attention.values()
            if task.state in UNSTARTED and not task.live_attempt.in_last_listing
        ]
        # an unknown task comes only once its manager or its claim answers, perhaps never
        withdrawing = [
            task.job
            for other_view in self._state.views.values()
            if other_view is not view
            for task in other_view.needs_attention.values()
            if task.live_attempt.target == view.name and task.state is not State.UNKNOWN
        ]
        evidence = record.evidence
        under_way = Counter(job.user for job in (*record.unjudged, *withdrawing))
        room = evidence.trust.window - under_way.total()
        if room <= 0:
            return
        capacity.expect((*on_their_way, *withdrawing, *record.arriving))
        if evidence.limits:
            evidence.set_use(chain((task.job for task in view.live_tasks.values()), withdrawing))
        promised: Counter[str] | None = None
        for task, choice in self._pullable(groups, capacity):
            job = task.job.with_licences(choice)
            if (
                job.user in view.refused_owners
                or self._state.strikes.find(job.id, view.name) is not None
                or not evidence.allows_pull(job.user, under_way[job.user])
                or not capacity.can_start(job)
                or evidence.bars_job(job)
                or self._placement.check_alternative(task, choice, view) is not None
            ):
                continue
            if job is not task.job:
                if promised is None:
                    promised = self._promised_tokens()
                if not self._placement.may_change_licences(task, job, promised):
                    continue
                promised.update(job.licences)
            capacity.record_start(job)
            evidence.add_use(job)
            under_way[job.user] += 1
            task.live_attempt.intent, task.live_attempt.target = Intent.PULL, view.name
            self._state.record_note(task, f"would start on {view.name} now")
            self._state_machine.request_withdrawal(task)
            room -= 1
            if capacity.free_cpus <= 0 or room <= 0:
                return

    def has_task_for(self, cluster: str, free_cpus: int) -> bool:
        """Return whether an unstarted task elsewhere needs no more processors. O(clusters)."""
        return free_cpus >= self._state.unstarted_index.fewest_cpus_elsewhere(cluster)

    def _may_hold_some_task(self, view: ClusterView, info: ClusterInfo) -> bool:
        return info.may_start_jobs and self.has_task_for(view.name, info.cpus - info.used_cpus)

    def _find_promising(
        self, view: ClusterView, info: ClusterInfo, now: float
    ) -> tuple[list[UnstartedGroup], PullCapacity] | None:
        """Return the groups with a task that would start on a cluster with these facts, or None.

        Also the capacity of the cluster. Neither counts jobs on their way.
        """
        planned = view.pulls.promising_groups.plan_check(info, self._state.unstarted_index)
        return None if planned is None else self._check_groups(view, planned, now)

    def _check_groups(
        self, view: ClusterView, planned: GroupCheck, now: float
    ) -> tuple[list[UnstartedGroup], PullCapacity] | None:
        capacity = view.pulls.unused_capacity
        if capacity is None or capacity.info is not planned.info or capacity.now != now:
            licences = view.cluster.licence_features.keys()
            capacity = view.pulls.unused_capacity = PullCapacity(
                planned.info, now, translate=view.translate_job, node_licences=licences
            )
        groups = view.pulls.promising_groups.check(planned, capacity)
        return (groups, capacity) if groups else None

    def _promised_tokens(self) -> Counter[str]:
        """Return the tokens that tasks under withdrawal may request anew, by licence.

        With which of their alternatives they will go is not known. An unknown task may never go.
        """
        promised: Counter[str] = Counter()
        for view in self._state.views.values():
            for task in view.needs_attention.values():
                if task.state is State.UNKNOWN:
                    continue
                if task.job.licence_choices and task.live_attempt.intent is Intent.PULL:
                    for licences in task.job.licence_choices:
                        promised.update(licences)
                    promised.subtract(task.job.licences)  # it returns these first
        return promised

    def _pullable(
        self, groups: Iterable[UnstartedGroup], capacity: PullCapacity
    ) -> Iterator[tuple[Task, int]]:
        """Yield tasks that may start in the capacity, in order of their keys.

        Also the number of the alternative licences. There may be thousands at every listing: only
        tasks of groups that would start are checked.
        """
        queues = [
            group.tasks
            for group in groups
            if self._state.views[group.cluster].up and capacity.can_start(group.job, group.shortest)
        ]
        for _, _, choice, task in heapq.merge(*queues) if len(queues) > 1 else chain(*queues):
            if self._may_be_pulled(task) and not self._leasing.may_lose_lease(task, choice):
                yield task, choice

    def _may_be_pulled(self, task: Task) -> bool:
        """Return whether a task is pending, not being withdrawn, and has waited long enough."""
        attempt = task.live_attempt
        return (
            task.state is State.PENDING
            and attempt.in_last_listing
            and attempt.intent is None
            and not attempt.has_started
            and not self._state.instances.is_former(attempt.dispatch_id)
            and self._has_waited(task)
        )

    def _has_waited(self, task: Task) -> bool:
        """Return whether its cluster was up for long enough since the dispatch."""
        attempt = task.live_attempt
        waited = self._observed_seconds(attempt.cluster) - attempt.observed_at_dispatch
        return waited >= self._state.policy.pull_after * 2.0**task.moves

    def _observed_seconds(self, cluster: str) -> float:
        return self._state.views[cluster].observed_seconds(self._state.observed_seconds)

    def pull_candidates(self, cluster: str, info: ClusterInfo, now: float) -> Iterable[Task]:
        """Return tasks that a listing with these facts may let be pulled there, all clusters up.

        They may have started since the last listing of their cluster. `has_task_for` is checked by
        the caller: most listings need no facts.
        """
        if not info.may_start_jobs:
            return ()
        view = self._state.views[cluster]
        planned = view.pulls.promising_groups.plan_check(info, self._state.unstarted_index)
        if planned is None:
            return ()
        later = now - self._state.now
        if not any(self._waiting(planned.promising, later)):  # cheaper than the check
            return ()
        checked = self._check_groups(view, planned, now)
        if checked is None:
            return ()
        groups, capacity = checked
        return (
            task
            for task, choice in self._waiting(groups, later)
            if capacity.can_start(task.job.with_licences(choice))
        )

    def _waiting(
        self, groups: Iterable[UnstartedGroup], later: float
    ) -> Iterator[tuple[Task, int]]:
        """Yield tasks that are not withdrawn and will have waited long enough in `later` seconds.

        Also the number of the alternative licences for which a group has them.
        """
        pull_after = self._state.policy.pull_after
        for group in groups:
            if not group.tasks:
                continue
            observed = self._observed_seconds(group.cluster)
            for _, _, choice, task in group.tasks:
                attempt = task.live_attempt
                waited = observed - attempt.observed_at_dispatch
                if attempt.intent is None and waited + later >= pull_after * 2.0**task.moves:
                    yield task, choice
