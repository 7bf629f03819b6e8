"""The reserved windows of a local cluster, in memory and in the database.

A window holds processors alone. Jobs of its users start in it in the order of the queue, and run to
its end at most. Jobs outside, by their limits, are over `guard` seconds before it begins; a job
without a limit counts for ever.
"""

from __future__ import annotations

import math
import time
from collections import Counter

from metasched.adapters.local.queue_store import QueueStore, Requirements, StoredWindow
from metasched.adapters.local.task_table import LocalTask, TaskTable
from metasched.model.adapter_errors import Refused
from metasched.model.reservation import reservation_id
from metasched.model.survey import ManagerReservation, ProcessorPool, ReservationSpec, Survey
from metasched.policies.local.queueing import ReservedWindow, RunningJob, WaitingJob
from metasched.policies.local.reserved_windows import WindowUse, peak_use

MAX_WINDOWS = 1000  # each decision, listing and survey goes through them
UNLIMITED_SECONDS = 100 * 365 * 86400.0  # for which a job without a limit is taken to run
# Share of its limit that a job must still have in its window to start there: it may be late for
# its window, since the daemon was down, or another job of the window took its processors
LEAST_SHARE = 0.5
# after the end of its window until a job's supervisor ends it: the daemon does so at the end, and
# knows why
BACKSTOP_SECONDS = 2.0


class LocalWindows:
    """The windows of a cluster. Methods raise sqlite3.Error; call them with the cluster's lock."""

    def __init__(self, table: TaskTable, store: QueueStore, cpus: int, guard: float) -> None:
        """`guard`: seconds for which a job may hold its processors after its limit."""
        self._table, self._store, self._cpus, self.guard = table, store, cpus, guard
        self._stored: dict[str, StoredWindow] = {}

    def load(self) -> None:
        """Read the windows from the database."""
        self._stored = self._store.windows()

    def __bool__(self) -> bool:
        return bool(self._stored)

    # Requests of the adapter.

    def reserve(self, spec: ReservationSpec) -> None:
        """Keep a window, also in place of a former window with that name. Raises Refused."""
        if not 1 <= spec.size <= self._cpus:
            raise Refused(f"{spec.size} processors; the cluster has {self._cpus}")
        if spec.accounts:
            raise Refused("a local cluster knows no accounts of accounting")
        now = time.time()
        other_names = [
            name for name, w in self._stored.items() if name != spec.name and w.end > now
        ]
        if len(other_names) >= MAX_WINDOWS:
            raise Refused(f"it has {len(other_names)} reservations, the most that it keeps")
        uses = self._uses(now, excluding=spec.name)
        if peak_use(uses, max(spec.start, now), spec.end) + spec.size > self._cpus:
            raise Refused("its processors are not free in the whole window")
        users = tuple(spec.user.split(","))
        window = StoredWindow(users, spec.start, spec.end, spec.size)
        self._store.save_window(spec.name, window)
        self._stored[spec.name] = window

    def delete(self, name: str) -> None:
        """Forget a window. Raises Refused, retryable, while jobs are in it."""
        if name not in self._stored:
            return
        if any(
            task.requirements.reservation == name and task.status.ended is None
            for task in self._table.tasks.values()
        ):
            raise Refused(f"jobs are in reservation {name}", retryable=True)
        self._forget([name])

    def forget_ended(self, now: float) -> None:
        """Forget the windows that are over; jobs that still wait for such a window never start."""
        self._forget([name for name, window in self._stored.items() if window.end <= now])

    def _forget(self, names: list[str]) -> None:
        if names:
            self._store.delete_windows(names)
            for name in names:
                del self._stored[name]

    def cut_limit(self, name: str, needs: Requirements) -> float:
        """Return the limit in seconds of a job that is submitted now. Raises Refused."""
        window = self._stored.get(name)
        now = time.time()
        if window is None or window.end <= now:
            raise Refused(f"no reservation {name}", retryable=True, scope="job")
        if needs.user not in window.users:
            raise Refused(f"reservation {name} is for {', '.join(window.users)}", scope="job")
        if needs.cpus > window.cpus:  # by --exclusive: it would wait for the whole window
            problem = f"{needs.cpus} processors needed; reservation {name} has {window.cpus}"
            raise Refused(problem, scope="job")
        remaining = window.end - max(now, window.start)
        return remaining if needs.limit is None else min(needs.limit, remaining)

    def survey(self, instance: str) -> Survey:
        """Return the use of the processors over time, and the reservations of an instance."""
        now = time.time()
        self.forget_ended(now)
        reservations = tuple(
            ManagerReservation(name, window.start, window.end, self._table.hosts, window.cpus)
            for name, window in self._stored.items()
            if reservation_id(name, instance) is not None
        )
        pool = ProcessorPool(self._table.hosts, self._cpus, tuple(self._uses(now)))
        return Survey(now, (), reservations, (pool,), self.guard)

    def _uses(self, now: float, excluding: str | None = None) -> list[tuple[float, float, int]]:
        """Return start, end and processors of windows, and of jobs outside those that are open.

        `excluding`: without this window and its jobs.
        """
        uses = [
            (window.start, window.end, window.cpus)
            for name, window in self._stored.items()
            if name != excluding
        ]
        within = {excluding, *self.use(now).held}
        for task in self._table.started.values():
            if task.requirements.reservation not in within:
                end = self._latest_end(task) + self.guard
                started = task.status.started or task.launch_decided or now
                uses.append((started, end if end > now else now + 1.0, task.requirements.cpus))
        return uses

    # Decisions of the scheduler.

    def next_change(self, now: float) -> float | None:
        """Return when the next window begins or ends, in epoch seconds; None: there is none."""
        times = (t for window in self._stored.values() for t in (window.start, window.end))
        return min((moment for moment in times if moment > now), default=None)

    def use(self, now: float) -> WindowUse:
        """Return the windows, and what started jobs hold in them."""
        held = Counter[str]()
        if self._stored:
            for task in self._table.started.values():
                held[task.requirements.reservation] += task.requirements.cpus
        windows = {
            name: ReservedWindow(window.start, window.end, window.cpus)
            for name, window in self._stored.items()
        }
        return WindowUse(now, windows, held)

    def has_time(self, task: LocalTask, now: float) -> bool:
        """Return whether enough of its window is left for a job to start there."""
        remaining = self._stored[task.requirements.reservation].end - now
        return remaining > _longest(task.requirements) * LEAST_SHARE

    def limit_in_window(self, task: LocalTask, now: float) -> float:
        """Return the seconds after which a job that starts in its window is ended."""
        remaining = self._stored[task.requirements.reservation].end - now
        return min(_longest(task.requirements), remaining + BACKSTOP_SECONDS)

    def for_policy(self, use: WindowUse) -> list[ReservedWindow]:
        """Return the windows that jobs outside must leave free by their limits."""
        return [window._replace(start=window.start - self.guard) for window in use.unended]

    def unlimited_room(self, now: float) -> int:
        """Return the processors that no window takes: all that a job without a limit may use."""
        windows = [(window.start, window.end, window.cpus) for window in self._stored.values()]
        return self._cpus - peak_use(windows, now, math.inf)

    def upcoming(self, use: WindowUse) -> tuple[tuple[float, int], ...]:
        """Return `ClusterInfo.upcoming_windows`."""
        running = [
            (self._latest_end(task) + self.guard, task.requirements.cpus)
            for task in self._table.started.values()
            if task.requirements.reservation not in use.held
        ]
        return tuple(
            (start - self.guard, cpus) for start, cpus in use.upcoming(self._cpus, running)
        )

    def released(self, task: LocalTask, now: float) -> float:
        """Return when jobs outside windows may use the processors of a started task."""
        window = self._stored.get(task.requirements.reservation)
        is_inside = window is not None and window.start <= now < window.end
        return window.end if window is not None and is_inside else task.running.end

    def waiting(self, task: LocalTask) -> WaitingJob:
        """Return a queued task with its limit as its estimate."""
        return task.waiting._replace(estimated=_longest(task.requirements))

    def running(self, task: LocalTask) -> RunningJob:
        """Return a started task that ends at its limit."""
        return task.running._replace(end=self._latest_end(task))

    def _latest_end(self, task: LocalTask) -> float:
        started = task.status.started or task.launch_decided or 0.0
        return started + _longest(task.requirements)


def _longest(requirements: Requirements) -> float:
    """Return the seconds for which a task may run."""
    return UNLIMITED_SECONDS if requirements.limit is None else requirements.limit
