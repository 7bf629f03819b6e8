"""Providers with batch jobs and reservations, through the daemon's core: Kurowski et al. 2011.

A batch job goes to the provider with the fewest waiting jobs. It starts first fit, in the order of
arrival or the largest first (LSF), and never runs into a reservation by its limit. The core grants
each reservation at its request. Its processors are chosen when it starts (dynamic binding), so
checking amounts is enough, or, for comparison, at the request (`static_binding`). A reservation
that does not fit into its window gets the first later time; none is refused. Decisions are made as
tasks arrive, or every `period` seconds for all tasks that arrived (sections 4 and 4.4.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from msgspec import structs

from metasched.laboratory.experiments.static_binding import (
    ProcessorBinding,
    simulate_static_binding,
)
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.schemes import SubmissionScheme
from metasched.laboratory.simulate.settings import SimulationSettings, simulate
from metasched.laboratory.simulate.workload import Workload, WorkloadEntry
from metasched.policies.policy import Policy


@dataclass(frozen=True, kw_only=True)
class ProviderStrategy:
    """How providers share their processors between batch jobs and reservations.

    Jobs and windows restricted to disjoint clusters give a static partition.
    """

    # provider of a reservation: with the earliest start, or the first in order that can keep it
    reserve: Literal["earliest", "first"] = "earliest"
    period: float = 0.0  # seconds between decisions about arrivals; 0: at once
    # within one decision, grant reservations before batch jobs start; else in the order of arrival
    reserved_first: bool = True
    largest_first: bool = False  # order of a provider's batch queue; else the order of arrival
    binding: ProcessorBinding = "late"


def simulate_providers(
    workload: Workload, clusters: Sequence[SimulatedCluster], strategy: ProviderStrategy, seed: int
) -> Schedule:
    """Simulate the workload; ties between providers of a reservation are drawn by the seed.

    Jobs with a window run in it. Limits must not be below run times.
    """
    policy = Policy(load="paper", pull=False, reserve=strategy.reserve, seed=seed)
    scheme = SubmissionScheme("shortest queue", in_turn=not strategy.reserved_first)
    decided = _decided_together(workload, strategy.period) if strategy.period else workload
    if strategy.binding == "late":
        local = "lsf" if strategy.largest_first else "first-fit"
        settings = SimulationSettings(policy=local, meta_policy=policy, seed=seed)
        schedule = simulate(decided, clusters, settings, scheme=scheme)
    else:
        apart = strategy.binding == "early, apart"
        schedule = simulate_static_binding(decided, clusters, policy, scheme, apart=apart)
    results = {scheduled.job.id: scheduled for scheduled in schedule.jobs}
    jobs = [results[entry.job.id]._replace(entry=entry) for entry in workload.entries]
    return schedule._replace(jobs=tuple(jobs))


def _decided_together(workload: Workload, period: float) -> Workload:
    """Return the jobs submitted when they are decided about: at the end of their period."""
    origin = workload.entries[0].job.submitted if workload.entries else 0.0

    def delay(entry: WorkloadEntry) -> WorkloadEntry:
        periods = ceil((entry.job.submitted - origin) / period)
        job = structs.replace(entry.job, submitted=origin + periods * period)
        return entry._replace(job=job)

    return replace(workload, entries=tuple(map(delay, workload.entries)))
