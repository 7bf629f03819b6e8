"""The reserved windows of a simulated cluster, with the jobs that wait for them or run in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.model.survey import ManagerReservation, ProcessorPool, Survey
from metasched.policies.local.capacity import expected_end
from metasched.policies.local.queueing import ReservedWindow, RunningJob, WaitingJob
from metasched.policies.local.reserved_windows import CpuUse, WindowUse, peak_use


class KeptWindows:
    """The windows that a simulated manager keeps: those of the cluster, and reservations.

    Reservations have names. Windows of the cluster have none: no jobs run in them.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cpus, self._location = cluster.cpus, (cluster.name,)
        self._permanent = {f"{number}": window for number, window in enumerate(cluster.windows)}
        self._reserved: dict[str, ReservedWindow] = {}
        self.waiting: dict[int, tuple[str, WaitingJob]] = {}  # window and job, by id, in order
        self._window_of: dict[int, str] = {}  # of running jobs, by id
        self._held: dict[str, int] = {}  # processors of running jobs, by window

    def __bool__(self) -> bool:
        return bool(self._permanent or self._reserved)

    def use(self, now: float) -> WindowUse:
        """Return the windows and what jobs hold in them."""
        return WindowUse(now, {**self._permanent, **self._reserved}, self._held)

    def end_of(self, name: str) -> float:
        return self._reserved[name].end

    def reserve(
        self, name: str, window: ReservedWindow, now: float, running: Iterable[RunningJob]
    ) -> bool:
        """Keep a window; return False, and change nothing, if its processors are not free."""
        uses = self._uses(now, running)
        if peak_use(uses, max(window.start, now), window.end) + window.cpus > self._cpus:
            return False
        self._reserved[name] = window
        return True

    def delete(self, name: str) -> None:
        """Forget a window. Its running jobs continue."""
        self._reserved.pop(name, None)

    def survey(self, now: float, running: Iterable[RunningJob]) -> Survey:
        """Return the manager's report of its reservations and jobs, by estimates."""
        pool = ProcessorPool(self._location, self._cpus, tuple(self._uses(now, running)))
        reservations = tuple(
            ManagerReservation(name, w.start, w.end, self._location, w.cpus)
            for name, w in self._reserved.items()
            if w.end > now
        )
        return Survey(now, (), reservations, (pool,), guard=0.0)

    def _uses(self, now: float, running: Iterable[RunningJob]) -> list[CpuUse]:
        windows = (*self._permanent.values(), *self._reserved.values())
        uses = [(w.start, w.end, w.cpus) for w in windows if w.end > now]
        return uses + [(now, expected_end(r, now), r.cpus) for r in self.outside(now, running)]

    def outside(self, now: float, running: Iterable[RunningJob]) -> Collection[RunningJob]:
        """Return the running jobs without those in open windows."""
        if not self._window_of:
            return list(running)
        held, window_of = self.use(now).held, self._window_of
        return [job for job in running if window_of.get(job.id) not in held]

    def start(self, job_id: int, name: str, cpus: int) -> None:
        """Record the start of a job in its window."""
        del self.waiting[job_id]
        self._window_of[job_id] = name
        self._held[name] = self._held.get(name, 0) + cpus

    def end(self, job_id: int, cpus: int) -> None:
        """Record the end of a job, if it ran in a window."""
        if (name := self._window_of.pop(job_id, None)) is not None:
            self._held[name] -= cpus
