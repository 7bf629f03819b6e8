"""Experiment: the time of a pass of Convergent Scheduling as its queue grows.

Pasquali 2008, Figure 24: whether the incremental version scales better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from metasched.laboratory.experiments.harness import Experiment
from metasched.laboratory.simulate import synthetic
from metasched.laboratory.simulate.manager import SimulatedManager
from metasched.laboratory.simulate.preemptive_manager import PreemptiveManager
from metasched.laboratory.simulate.synthetic import Scenario
from metasched.laboratory.simulate.workload import WorkloadEntry
from metasched.policies.local.convergent.weights import PREEMPTIVE_INCREMENTAL, PREEMPTIVE_OPTIMAL
from metasched.policies.local.preemption import PreemptivePolicy
from metasched.policies.local.registry import make_policy

BEGIN = 1000.0  # seconds from the first submission; all jobs but the arrivals are queued then
EVENTS = 9  # endings, and as many arrivals
_POLICIES = ("edf", PREEMPTIVE_INCREMENTAL, PREEMPTIVE_OPTIMAL)
_SIZES = (500, 1000, 2000, 5000, 10_000)


def full_queue(jobs: int, policy_name: str, seed: int = 1) -> SimulatedManager:
    """Return a manager of 150 idle machines (Table 4 of the thesis) with all jobs queued."""
    return _manager(_scenario(jobs, seed), policy_name, jobs)


def milliseconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    begun = time.process_time()
    call()
    return 1e3 * (time.process_time() - begun)


class PassTimes(NamedTuple):
    """Processor time of passes of a policy, in milliseconds; events are medians."""

    new: float  # all machines are idle
    ending: float
    arrival: float


@dataclass(frozen=True)
class PassTimesCase:
    """A policy beside a number of queued jobs."""

    jobs: int
    column: str  # policy

    @property
    def row(self) -> str:
        return f"{self.jobs:,} jobs"

    @property
    def published(self) -> Mapping[str, float]:
        return {}

    def scenario(self, seed: int) -> Scenario:
        """Return the queued jobs, and those that arrive later."""
        return _scenario(self.jobs + EVENTS, seed)

    def run(self, seed: int) -> PassTimes:
        scenario = self.scenario(seed)
        manager = _manager(scenario, self.column, self.jobs)
        new = milliseconds(lambda: manager.run_policy(BEGIN))
        endings, arrivals = [], []
        for entry in scenario.workload.entries[self.jobs :]:
            ended = min(manager.running.values(), key=lambda running: running.end)
            now = ended.end
            manager.end_job(ended.id)
            endings.append(milliseconds(lambda now=now: manager.run_policy(now)))  # type: ignore[misc]
            _submit(manager, entry)
            arrivals.append(milliseconds(lambda now=now: manager.run_policy(now)))  # type: ignore[misc]
        return PassTimes(new, median(endings), median(arrivals))


def _scenario(jobs: int, seed: int) -> Scenario:
    generator = replace(synthetic.CONVERGENT, jobs=jobs, inter_arrival=BEGIN / jobs)
    return generator.generate("passes", seed)


def _manager(scenario: Scenario, policy_name: str, jobs: int) -> SimulatedManager:
    """Return a manager of the cluster with the first jobs queued."""
    workload, (cluster,) = scenario
    policy = make_policy(policy_name, licences=cluster.licences)
    manager = (
        PreemptiveManager(cluster, policy)
        if isinstance(policy, PreemptivePolicy)
        else SimulatedManager(cluster, policy)
    )
    for entry in workload.entries[:jobs]:
        _submit(manager, entry)
    return manager


def _submit(manager: SimulatedManager, entry: WorkloadEntry) -> None:
    manager.submit(entry.job, 1, entry.run_time, entry.inputs)


CONVERGENT_SCALING = Experiment(
    name="convergent-scaling",
    about="Processor time of a pass by the number of queued jobs, 150 machines, with preemption",
    source="Pasquali 2008, Table 4, Figure 24",
    runs=5,
    baseline=PREEMPTIVE_OPTIMAL,
    figures={
        "new plan, ms": lambda times: times.new,
        "after an ending, ms": lambda times: times.ending,
        "after an arrival, ms": lambda times: times.arrival,
    },
    cases=lambda: [PassTimesCase(jobs, policy) for jobs in _SIZES for policy in _POLICIES],
    quantity="jobs",
)
