"""A simulated resource manager whose local policy may suspend running jobs, and resume them."""

from __future__ import annotations

from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.manager import ManagerPass, SimulatedManager, StartedJob
from metasched.policies.local.preemption import PreemptibleJob, PreemptivePolicy
from metasched.policies.local.queueing import JobStart, WaitingJob


class PreemptiveManager(SimulatedManager):
    """A manager that keeps the progress of suspended jobs, and resumes them on any machine.

    A suspended job is queued before all others and holds neither processors nor licences.
    Suspending, moving and resuming take no time.
    """

    def __init__(
        self, cluster: SimulatedCluster, policy: PreemptivePolicy, *, reports_plan: bool = False
    ) -> None:
        super().__init__(cluster, policy, reports_plan=reports_plan)
        self._preemptive_policy = policy
        self._preemptible: dict[int, PreemptibleJob] = {}  # as `running`

    def run_policy(self, now: float) -> ManagerPass:
        self._last_pass, self._reservation = now, None
        if not self.queue:
            return ManagerPass([])
        changes = self._preemptive_policy.choose_changes(
            now,
            self.queue.values(),
            self._preemptible.values(),
            self._free_resources(now),
        )
        if changes.suspended:
            suspended = {job_id: self._suspend(now, job_id) for job_id in changes.suspended}
            self.queue = {**suspended, **self.queue}
        started = [self._start(now, start) for start in changes.starts]
        return ManagerPass(started, changes.suspended)

    def end_job(self, job_id: int) -> None:
        super().end_job(job_id)
        del self._preemptible[job_id]

    def _start(self, now: float, start: JobStart) -> StartedJob:
        waiting = self.queue[start.id]
        started = super()._start(now, start)
        self._preemptible[start.id] = PreemptibleJob(waiting, self.running[start.id])
        return started

    def _suspend(self, now: float, job_id: int) -> WaitingJob:
        """Release the resources of a running job; return it as it is to be queued."""
        preemptible = self._preemptible[job_id]
        remaining = self._true_ends[job_id] - now
        if self.cluster.machines:
            remaining *= self.cluster.machines[preemptible.running.machine].benchmark
        self.end_job(job_id)
        self._true_run_times[job_id] = remaining
        return preemptible.suspended(now)
