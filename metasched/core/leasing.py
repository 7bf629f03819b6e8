"""Licence leases of tasks: taken before a dispatch, returned at the end. Pure.

`metasched/core/licences/queue.py` grants tokens; this module ties them to tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from metasched.core.alternatives import owner_id, request_ids, stand_in_id
from metasched.core.cluster_view import ClusterView
from metasched.core.events import LicencesCounted, LicenceSet, LicencesReleased
from metasched.core.licences.queue import LicenceQueue
from metasched.core.licences.windows import TokenWindow
from metasched.core.state import SchedulerState
from metasched.core.tasks import Attempt, StateChange, Task, TaskId
from metasched.core.transitions import FINAL, LIVE, STARTED
from metasched.model.calendar import CalendarEntry
from metasched.model.job import Job, Reason, State
from metasched.model.licence import Lease, LicencePool, LicenceStatus, ReturnedLease
from metasched.model.reservation import OPEN_STATES, Reservation
from metasched.policies.eligible import Ineligibility

# seconds that an unstarted task holds contended licences at least: with less, tasks that cannot
# start would pass them on without time passing
MIN_RECALL_WAIT = 1.0
LICENCE_REASONS = frozenset({Reason.LICENCE_BUSY, Reason.LICENCE_UNKNOWN})
PASSED_ON = "passed on"  # why a lease ended that the next attempt goes on with


class LicenceLeasing:
    """Takes and returns the leases of tasks."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.licences = LicenceQueue(self._waiting_ranges)
        self.enabled = False  # otherwise managers handle licences
        self._patience = 0.0
        self.transferring: dict[TaskId, Task] = {}  # pulled; the next attempt takes over the lease
        self._demoted: dict[TaskId, float] = {}  # queue keys of recalled tasks
        self._recalls: dict[TaskId, int] = {}  # times that tasks were recalled for their licences

    def configure(
        self, pools: tuple[LicencePool, ...] | None, patience: float, clusters: Iterable[str]
    ) -> None:
        """Take over the configuration of licences; `pools` None: do not lease."""
        self.enabled, self._patience = pools is not None, patience
        for name in self.licences.configure(pools or (), patience, clusters):
            self._report_status(name)
        self.transferring, self._demoted, self._recalls = {}, {}, {}

    def needs_lease(self, task: Task) -> bool:
        """Return whether a task needs a lease for its dispatch."""
        return self.enabled and bool(task.job.licences)

    # Queue

    def settled(self, now: float) -> bool:
        """Return whether no queued task can get its licences, and no lease is being transferred."""
        return self.licences.settled(now) and not self.transferring

    def join(self, task: Task) -> None:
        """Queue a task, or a stand-in, for its licences."""
        key = max(task.queue_key, self._demoted.get(owner_id(task.task_id), task.queue_key))
        self.licences.join(
            task.task_id,
            key,
            task.job.licences,
            _lease_duration(task),
            _has_time_limit(task),
            task.job.reservation,
            task.job,
            task.priority,
        )

    def _waiting_ranges(self) -> Iterator[tuple[Mapping[str, int], int]]:
        """Yield the request and the size of each range whose head is queued for licences."""
        for remainder in self._state.remainders.values():
            if remainder.reason in LICENCE_REASONS:
                for requested in remainder.job.licence_requests:
                    yield requested, len(remainder)

    def leave(self, task: Task) -> None:
        """Remove a task, or all its stand-ins, from the licence queue, if they are there."""
        if self.licences.has_waiting:
            for request in request_ids(task):
                self.licences.leave(request)

    def demote(self, task: Task) -> None:
        """Let a recalled task queue behind all tasks that wait for licences now."""
        self._demoted[task.task_id] = self._state.now + max(self._patience, MIN_RECALL_WAIT)
        self._recalls[task.task_id] = self._recalls.get(task.task_id, 0) + 1

    def recall_wait(self, task: Task) -> float:
        """Return after how many seconds unstarted a task may be recalled for its licences.

        The wait doubles with each recall. Otherwise tasks that cannot start would take turns for
        ever.
        """
        return max(self._patience, MIN_RECALL_WAIT) * 2.0 ** self._recalls.get(task.task_id, 0)

    def missing_licences(self, task: Task, now: float) -> list[LicenceStatus]:
        """Return the licences that a queued task could not get now, of all its alternatives."""
        queued = [request for request in request_ids(task) if request in self.licences]
        shortages = [status for request in queued for status in self._missing(request, now)]
        return list({status.licence: status for status in shortages}.values())

    def _missing(self, request: TaskId, now: float) -> list[LicenceStatus]:
        return list(self.licences.missing_licences(request, now))

    def waiting_reason(self, task: Task) -> Reason | None:
        """Return the reason of a task that waits for licences; None: it does not.

        That costs far less than `licence_obstacle`, which describes the shortages.
        """
        return self._reason(request_ids(task), self._state.now)

    def _reason(self, requests: Iterable[TaskId], now: float) -> Reason | None:
        licences, reason = self.licences, None
        for request in requests:
            if request in licences:
                if not licences.awaits_count(request, now):
                    return Reason.LICENCE_BUSY
                reason = Reason.LICENCE_UNKNOWN
        return reason

    def calendar_refusal(self, job: Job) -> str | None:
        """Return why the calendar never lets a job have any of its alternatives, or None."""
        if not self.enabled or job.reservation is not None:
            return None
        duration, limited = job.time_limit or job.estimated, job.time_limit is not None
        refusals = [
            self.licences.calendar_refusal(requested, duration, limited)
            for requested in job.licence_requests
        ]
        return refusals[0] if all(refusals) else None

    def licence_obstacle(self, task: Task, now: float) -> Ineligibility | None:
        """Return why a task waits for licences, or None."""
        requests = [request for request in request_ids(task) if request in self.licences]
        reason = self._reason(requests, now)
        if reason is None:
            return None
        texts = list[str]()
        for request in requests:
            causes = [
                f"licence {shortage.licence}: "
                + (shortage.unknown_reason or self._describe_shortage(task, request, shortage, now))
                for shortage in self._missing(request, now)
            ]
            texts.append("; ".join(causes) or "its turn comes next")
        return Ineligibility(reason, "; or ".join(texts))

    def _describe_shortage(
        self, task: Task, request: TaskId, shortage: LicenceStatus, now: float
    ) -> str:
        requested = self.licences.requested(request)[shortage.licence]
        free, lookahead = shortage.free or 0, self.licences.lookahead
        if (refusal := self.calendar_refusal(task.job)) is not None:
            return f"it never starts: {refusal}"
        window = lookahead.blocking_window(request, shortage.licence, now)
        if window is not None:
            free += shortage.reserved
            text = f"{requested} wanted, and {free} free, kept for {window.describe()}"
            if not _has_time_limit(task):
                text += "; the job has no time limit, and might not end before"
            return text
        if free >= requested:
            return f"{requested} wanted, and {free} free, which are kept for the first in line"
        return f"{requested} wanted, {max(free, 0)} of {shortage.total} free"

    # Operators and licence servers

    def apply_counts(self, event: LicencesCounted) -> None:
        """Record how many tokens licence servers have in use."""
        for count in event.counts:
            if self.licences.record_count(count, event.time):
                self._report_status(count.name)

    def apply_total(self, event: LicenceSet) -> None:
        """Set the total of a licence."""
        self.licences.set_operator_total(event.name, event.total)
        self._report_status(event.name)

    def apply_release(self, event: LicencesReleased) -> None:
        """Return the leases of tasks that are unknown."""
        for task in self._state.tasks_of(event.job, event.indices):
            if task.state is State.UNKNOWN:
                self.return_lease(task, f"released by {event.by}")

    # Leases

    def update_leases(self, change: StateChange) -> None:
        """Take, keep or return the lease of a task whose state has changed."""
        task, attempt = change.task, change.attempt
        if change.before is State.QUEUED:
            self.leave(task)
        if change.after in FINAL:
            self._demoted.pop(task.task_id, None)
            self._recalls.pop(task.task_id, None)
        if change.after in LIVE:
            self.take_again(task)
            if State.UNKNOWN in (change.before, change.after):
                self.update_expected_end(task)
        elif attempt is not None:
            passes_on = change.after is State.QUEUED and task.target is not None
            if passes_on and not task.job.licence_choices:
                self.transferring[task.task_id] = task
            else:
                self.return_lease(task, change.after, attempt)

    def take_lease(self, task: Task, forced: bool = False) -> str:
        """Lease its licences to the attempt of a task. Return them as text for the story.

        `forced`: the task has them already, even if too few are free. A transferred lease is
        replaced.
        """
        if task.task_id in self.licences.leases:
            # replace it even if too few tokens are free by now: the use does not grow
            self.return_lease(task, PASSED_ON)
            forced = True
        tokens = dict(task.job.licences)
        lease = Lease(*task.task_id, task.live_attempt.number, tokens, self._state.now, forced)
        end = self._state.now + _lease_duration(task)
        choice = task.job.licence_choice
        queued_as = task.task_id if choice is None else stand_in_id(task, choice)
        self.licences.take(lease, end, _has_time_limit(task), task.job.reservation, queued_as)
        self._demoted.pop(task.task_id, None)
        self._state.outcome.leases.append(lease)
        return ", ".join(f"{name}:{count}" for name, count in tokens.items())

    def update_expected_end(self, task: Task) -> None:
        """Update the expected end of a lease: start plus time limit.

        An unstarted task counts from its dispatch, or from now if reservations need its licences,
        since it may start at any moment. The lease of an unknown task may never end.
        """
        if task.task_id not in self.licences.leases:
            return
        attempt = task.live_attempt
        if attempt.started is not None:
            start = attempt.started
        elif self.licences.reserved_licences.isdisjoint(task.job.licences):
            start = attempt.dispatched
        else:
            start = self._state.now
        end_known = _has_time_limit(task) and task.state is not State.UNKNOWN
        self.licences.expect_end(
            task.task_id, start + _lease_duration(task), end_known, task.job.reservation
        )

    # Windows of reservations

    def update_windows(self, changed: Iterable[Reservation]) -> None:
        """Reserve the licences of open reservations, and free those of closed reservations."""
        for reservation in changed:
            if reservation.state in OPEN_STATES:
                window = TokenWindow(
                    reservation.id, reservation.start, reservation.until, reservation.licences
                )
                self.licences.keep_tokens_for_window(window)
            else:
                self.licences.remove_window(reservation.id)

    def limit_by_calendar(self, changed: Mapping[int, CalendarEntry | None]) -> None:
        """Take over entries of the calendar that lower totals of licences; None: removed."""
        for id, entry in changed.items():
            self.licences.limit_by_calendar(id, entry)

    def refresh_expected_ends(self, licences: Collection[str]) -> None:
        """Update the expected ends of leases of these licences."""
        for task_id, lease in list(self.licences.leases.items()):
            task = self._state.tasks.get(task_id)
            if task is None or task.attempt is None or lease.tokens.keys().isdisjoint(licences):
                continue
            if task.live_attempt.started is None or task.state is State.UNKNOWN:
                self.update_expected_end(task)

    def window_conflicts(self, view: ClusterView) -> Iterator[Task]:
        """Yield unstarted tasks of a cluster that hold licences which reservations need, too."""
        windowed = self.licences.reserved_licences
        for task in view.unstarted_tasks.values() if windowed else ():
            if not windowed.isdisjoint(self.tokens(task)) and task.job.reservation is None:
                yield task

    def take_again(self, task: Task) -> None:
        """Lease the licences of a task that may run after all, if it needs any."""
        if self.needs_lease(task):
            self._ensure_lease(task)

    def _ensure_lease(self, task: Task) -> None:
        """Lease the licences of a task that may run already, even if too few are free."""
        if task.task_id not in self.licences.leases:
            tokens = self.take_lease(task, forced=True)
            self._state.record_note(task, f"it holds {tokens}, which are counted again")

    def return_lease(self, task: Task, cause: str, attempt: Attempt | None = None) -> None:
        """Return the lease of a task, if it has one; `attempt` may have used it."""
        lease = self.licences.leases.get(task.task_id)
        if lease is not None:
            self._record_return(lease, cause, attempt is not None and attempt.has_started)

    def _record_return(self, lease: Lease, cause: str, used: bool) -> None:
        now = self._state.now
        lingers = self.licences.return_lease((lease.job, lease.index), now, used)
        self._state.outcome.leases.append(ReturnedLease(lease, now, str(cause), lingers))

    def release_untransferred(self) -> None:
        """Return leases whose tasks were not dispatched again in this step."""
        for task in self.transferring.values():
            if task.attempt is None:
                self.return_lease(task, "not dispatched again")
        self.transferring = {}

    def count_outside_use(self, view: ClusterView) -> None:
        """Count the licences that a manager gave to other users' jobs.

        These are the manager's count minus the leases of started tasks. Leases plus outside use
        never fall below the manager's count, even if it is younger than the listing.
        """
        if not self.enabled or view.info is None:
            return
        manager_names = {
            name: view.cluster.manager_licence_name(name) for name in self.licences.configured_names
        }
        used = {manager_name: counts.used for manager_name, counts in view.info.licences.items()}
        if not used.keys().isdisjoint(manager_names.values()):
            for task in view.live_tasks.values():
                if task.live_attempt.state in STARTED:
                    for name, count in self.tokens(task).items():
                        manager_name = view.cluster.manager_licence_name(name)
                        used[manager_name] = used.get(manager_name, 0) - count
        outside_use = {
            name: max(used.get(manager_name, 0), 0) for name, manager_name in manager_names.items()
        }
        for name in self.licences.record_outside_use(view.name, outside_use, self._state.now):
            self._report_status(name)

    def _report_status(self, name: str) -> None:
        self._state.outcome.licence_statuses[name] = self.licences.status(name, self._state.now)

    def rebuild(self) -> None:
        """Make leases agree with live attempts, and report the status of every licence."""
        if not self.enabled:
            return
        for task_id, lease in list(self.licences.leases.items()):
            task = self._state.tasks.get(task_id)
            if task is None or task.attempt is None:
                self._record_return(lease, "its task has no attempt", used=True)
        for task in self._state.tasks.values():
            if task.attempt is None or not task.job.licences:
                continue
            if task.state is not State.UNKNOWN:  # an operator may have released it
                self._ensure_lease(task)
            self.update_expected_end(task)
        for status in self.licences.statuses(self._state.now):
            self._state.outcome.licence_statuses[status.licence] = status

    def tokens(self, task: Task) -> Mapping[str, int]:
        """Return the tokens leased to a task, by licence."""
        lease = self.licences.leases.get(task.task_id)
        return {} if lease is None else lease.tokens

    def may_lose_lease(self, task: Task, choice: int) -> bool:
        """Return whether others may get the licences of a task that is to move to another cluster.

        A task with alternatives requests them anew there, also if it goes with the same `choice`.
        """
        if choice != task.job.licence_choice or task.task_id not in self.licences.leases:
            return False
        return self.licences.contended(task.task_id)

    def may_exchange(self, task: Task, job: Job, promised: Mapping[str, int]) -> bool:
        """Return whether a dispatched task would get other licences at once if it returned its own.

        `job` has the others. `promised` tokens are for other tasks.
        """
        if not self.enabled:
            return True
        own = self.tokens(task)
        needed = {
            name: count + promised.get(name, 0) - own.get(name, 0)
            for name, count in job.licences.items()
        }
        return self.licences.may_take_unqueued(
            needed, _lease_duration(task), _has_time_limit(task), self._state.now
        )

    def contended_tasks(self, view: ClusterView) -> Iterator[Task]:
        """Yield unstarted tasks of a cluster whose licences other tasks wait for."""
        if not self.licences.has_waiting:
            return
        for task_id in self.licences.leases:
            task = view.unstarted_tasks.get(task_id)
            if task is not None and task.live_attempt.settled and self.licences.contended(task_id):
                yield task


def _has_time_limit(task: Task) -> bool:
    """Return whether a manager ends the task at a limit."""
    return task.job.time_limit is not None


def _lease_duration(task: Task) -> float:
    """Return the time limit of a task, else its estimate (seconds)."""
    return task.job.time_limit or task.job.estimated
