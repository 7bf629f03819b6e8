"""Leases of tasks: what is sent has its licences, and what has ended gives them back. Pure.

`metasched/core/licences/queue.py` decides who may have tokens; here they follow the tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from metasched.core.cluster_view import ClusterView
from metasched.core.licences.queue import LicenceQueue
from metasched.core.licences.windows import TokenWindow
from metasched.core.state import SchedulerState
from metasched.core.tasks import Attempt, Task, TaskId
from metasched.core.transitions import STARTED
from metasched.model.job import Reason, State
from metasched.model.licence import Lease, LicencePool, LicenceStatus, ReturnedLease
from metasched.model.reservation import OPEN_STATES, Reservation
from metasched.policies.eligible import Ineligibility


class LicenceLeasing:
    """Takes and gives back the leases of tasks."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.licences = LicenceQueue()
        self.enabled = False  # to lease; else licences are the managers' own affair
        self._patience = 0.0
        self.transferring: dict[TaskId, Task] = {}  # on the way to where they are pulled
        self._demoted: dict[TaskId, float] = {}  # recalled tasks: their key in line

    def configure(
        self, pools: tuple[LicencePool, ...] | None, patience: float, clusters: Iterable[str]
    ) -> None:
        self.enabled, self._patience = pools is not None, patience
        for name in self.licences.configure(pools or (), patience, clusters):
            self._report_status(name)
        self.transferring, self._demoted = {}, {}

    def needs_lease(self, task: Task) -> bool:
        """Whether a task needs a lease to be sent."""
        return self.enabled and bool(task.job.licences)

    # The line

    @property
    def settled(self) -> bool:
        """Whether nobody in line can have what it waits for, and nobody has a lease passed on."""
        return self.licences.settled and not self.transferring

    def join(self, task: Task) -> None:
        """Let it wait in line."""
        key = max(task.queue_key, self._demoted.get(task.task_id, task.queue_key))
        self.licences.join(
            task.task_id,
            key,
            task.job.licences,
            _lease_duration(task),
            _has_time_limit(task),
            task.job.reservation,
        )

    def leave(self, task: Task) -> None:
        if self.licences.has_waiting:
            self.licences.leave(task.task_id)

    def demote(self, task: Task) -> None:
        """When it comes back it waits behind all who are in line now."""
        self._demoted[task.task_id] = self._state.now + self._patience

    def missing_licences(self, task: Task, now: float) -> list[LicenceStatus]:
        """The licences of which a task in line could not have what it wants now."""
        return list(self.licences.missing_licences(task.task_id, now))

    def licence_obstacle(self, task: Task, now: float) -> Ineligibility | None:
        """Why a task waits for licences, as it is now; None: it does not."""
        if task.task_id not in self.licences:
            return None
        shortages = self.missing_licences(task, now)
        texts = [
            f"licence {shortage.licence}: {shortage.unknown_reason or self._describe_shortage(task, shortage, now)}"
            for shortage in shortages
        ]
        count_unknown = any(shortage.unknown_reason for shortage in shortages)
        reason = Reason.LICENCE_UNKNOWN if count_unknown else Reason.LICENCE_BUSY
        return Ineligibility(reason, "; ".join(texts) or "its turn comes next")

    def _describe_shortage(self, task: Task, shortage: LicenceStatus, now: float) -> str:
        requested, free = task.job.licences[shortage.licence], shortage.free or 0
        if (
            window := self.licences.blocking_window(task.task_id, shortage.licence, now)
        ) is not None:
            free += shortage.reserved
            limit_hint = (
                ""
                if _has_time_limit(task)
                else "; the job has no time limit, and might not end before"
            )
            return (
                f"{requested} wanted, and {free} free, kept for reservation {window.id}{limit_hint}"
            )
        if free >= requested:
            return f"{requested} wanted, and {free} free, which are kept for the first in line"
        return f"{requested} wanted, {max(free, 0)} of {shortage.total} free"

    # Leases

    def take_lease(self, task: Task, forced: bool = False) -> str:
        """Lease its licences to the attempt of a task, in words; they may be passed on to it."""
        if task.task_id in self.licences.leases:  # also if there are too few by now: none is added
            self.return_lease(task, "passed on")
            forced = True
        tokens = dict(task.job.licences)
        lease = Lease(*task.task_id, task.live_attempt.number, tokens, self._state.now, forced)
        end = self._state.now + _lease_duration(task)
        self.licences.take(lease, end, _has_time_limit(task), task.job.reservation)
        self._demoted.pop(task.task_id, None)
        self._state.outcome.leases.append(lease)
        return ", ".join(f"{name}:{count}" for name, count in tokens.items())

    def update_expected_end(self, task: Task) -> None:
        """Count its time limit from when it began, until then from when it was sent.

        Where reservations need its licences it is from now on, since it may begin at any moment;
        and what nobody knows anything of may keep them for good.
        """
        if task.task_id not in self.licences.leases:
            return
        start = (
            task.live_attempt.dispatched
            if task.live_attempt.started is None
            else task.live_attempt.started
        )
        if task.live_attempt.started is None and not self.licences.reserved_licences.isdisjoint(
            task.job.licences
        ):
            start = self._state.now
        end_known = _has_time_limit(task) and task.state is not State.UNKNOWN
        self.licences.expect_end(
            task.task_id, start + _lease_duration(task), end_known, task.job.reservation
        )

    # Windows of reservations

    def update_windows(self, changed: Iterable[Reservation]) -> None:
        """Keep the licences of those that are open, and of the others no more."""
        for reservation in changed:
            if reservation.state in OPEN_STATES:
                window = TokenWindow(
                    reservation.id, reservation.start, reservation.until, reservation.licences
                )
                self.licences.add_window(window)
            else:
                self.licences.remove_window(reservation.id)

    def refresh_expected_ends(self, licences: Collection[str]) -> None:
        """Learn anew when leases of these licences will have ended."""
        for task_id, lease in list(self.licences.leases.items()):
            task = self._state.tasks.get(task_id)
            if task is None or task.attempt is None or lease.tokens.keys().isdisjoint(licences):
                continue
            if task.live_attempt.started is None or task.state is State.UNKNOWN:
                self.update_expected_end(task)

    def window_conflicts(self, view: ClusterView) -> Iterator[Task]:
        """What has not begun on a cluster, and has licences that reservations need, too."""
        windowed = self.licences.reserved_licences
        for task in view.unstarted_tasks.values() if windowed else ():
            if not windowed.isdisjoint(self.tokens(task)) and task.job.reservation is None:
                yield task

    def ensure_lease(self, task: Task) -> None:
        """What may run has its licences, whatever is left: it was there before we knew."""
        if task.task_id not in self.licences.leases:
            tokens = self.take_lease(task, forced=True)
            self._state.record_note(task, f"it has {tokens}, which are counted again")

    def return_lease(self, task: Task, cause: str, attempt: Attempt | None = None) -> None:
        """End the lease of a task, if it has one; `attempt` is what may have used it."""
        lease = self.licences.leases.get(task.task_id)
        if lease is not None:
            self._record_return(lease, cause, attempt is not None and attempt.has_started)

    def _record_return(self, lease: Lease, cause: str, used: bool) -> None:
        now = self._state.now
        lingers = self.licences.return_lease((lease.job, lease.index), now, used)
        self._state.outcome.leases.append(ReturnedLease(lease, now, str(cause), lingers))

    def transfer(self, task: Task) -> None:
        """Its next attempt, which begins in this step, takes the lease over."""
        self.transferring[task.task_id] = task

    def release_untransferred(self) -> None:
        """What was to be sent on and was not gives its lease back."""
        for task in self.transferring.values():
            if task.attempt is None:
                self.return_lease(task, "not sent on")
        self.transferring = {}

    def count_outside_use(self, view: ClusterView) -> None:
        """What a manager counts as taken of our licences, and not by jobs of ours, others use.

        A lease is in its count from when its task has begun. So leases and what others use are
        together never less than the manager's count, even if that is some moments younger than
        its listing of tasks.
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
        """Make leases agree with what is live, and tell how it stands with every licence."""
        if not self.enabled:
            return
        for task_id, lease in list(self.licences.leases.items()):
            task = self._state.tasks.get(task_id)
            if task is None or task.attempt is None:
                self._record_return(lease, "nobody has it", used=True)
        for task in self._state.tasks.values():
            if task.attempt is None or not task.job.licences:
                continue
            if task.state is not State.UNKNOWN:  # an operator may have released it
                self.ensure_lease(task)
            self.update_expected_end(task)
        for standing in self.licences.statuses(self._state.now):
            self._state.outcome.licence_statuses[standing.licence] = standing

    def tokens(self, task: Task) -> Mapping[str, int]:
        """What is leased to a task, by licence."""
        lease = self.licences.leases.get(task.task_id)
        return {} if lease is None else lease.tokens

    def contended_tasks(self, view: ClusterView) -> Iterator[Task]:
        """What a cluster has that may have to go for the sake of those who wait for licences."""
        if not self.licences.has_waiting:
            return
        for task_id in self.licences.leases:
            task = view.unstarted_tasks.get(task_id)
            if task is not None and task.live_attempt.settled and self.licences.contended(task_id):
                yield task


def _has_time_limit(task: Task) -> bool:
    """Whether somebody ends it at its limit."""
    return task.job.time_limit is not None


def _lease_duration(task: Task) -> float:
    """Seconds for which a task has its licences by its time limit."""
    return task.job.time_limit or task.job.estimated
