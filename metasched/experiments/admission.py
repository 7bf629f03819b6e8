"""Experiment: reservation requests for one week, accepted or rejected at once.

It compares units assigned at the start of a reservation with units assigned at its request. No
batch jobs run. Requests are for windows at random times of the week and arrive in no order of
their start, as from users who plan ahead. In `kurowski2011`, by contrast, no request is rejected.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple, get_args

from metasched.experiments.harness import Experiment
from metasched.experiments.reserved_providers import ProcessorBinding, make_timeline
from metasched.model.job import Job
from metasched.simulate.cluster_specs import parse_clusters
from metasched.simulate.engine import Schedule, ScheduledJob
from metasched.simulate.synthetic import Scenario
from metasched.simulate.workload import Workload, WorkloadEntry

_HOUR, _WEEK = 3600.0, 7 * 24 * 3600.0  # seconds
_HOURS = (1, 2, 4, 8, 24)  # durations of requests
_SIZES = {4: (1,), 16: (1, 2, 4), 64: (1, 2, 4, 8, 16)}  # of requests, by units of the cluster
_LOADS = (0.5, 0.8, 1.2, 2.0)
_REJECTED = "refused"  # key of `Schedule.dropped`


class AdmissionCase(NamedTuple):
    """Requests for `load` times the capacity of a cluster over a week."""

    row: str
    column: ProcessorBinding
    units: int  # nodes or processors of the cluster
    load: float
    published: dict[str, float] = {}  # noqa: RUF012 - read only

    def scenario(self, seed: int) -> Scenario:
        """Draw the requests in the order of arrival, with the requested start as `begin`."""
        rng, requested, entries = Random(seed), 0.0, list[WorkloadEntry]()
        while requested < self.load * self.units * _WEEK:  # unit seconds
            size, duration = rng.choice(_SIZES[self.units]), rng.choice(_HOURS) * _HOUR
            start = rng.uniform(0.0, _WEEK - duration)
            job_id = len(entries) + 1
            job = Job(id=job_id, submitted=0.0, estimated=duration, cpus=size, begin=start)
            entries.append(WorkloadEntry(job, duration, job_id))
            requested += size * duration
        return Scenario(Workload("windows", tuple(entries)), parse_clusters(str(self.units)))

    def run(self, seed: int) -> Schedule:
        """Book the requests in their order; the schedule has the accepted requests."""
        workload, clusters = self.scenario(seed)
        timeline, accepted = make_timeline(self.column, self.units, 0.0), []
        for entry in workload.entries:
            job, start = entry.job, entry.job.begin
            assert start is not None
            end = start + entry.run_time
            if timeline.free(start, end) >= job.cpus:
                timeline.book(job.id, start, end, job.cpus)
                accepted.append(
                    ScheduledJob(entry, start, end, job.cpus, 0, 0, priority=0, moves=0)
                )
        rejected_count = len(workload.entries) - len(accepted)
        return Schedule(
            clusters, tuple(accepted), {_REJECTED: rejected_count}, len(workload.entries), 0
        )


def _rejected_share(schedule: Schedule) -> float:
    """Return the share of requests that were rejected."""
    return schedule.dropped[_REJECTED] / schedule.event_count


def _booked_share(schedule: Schedule) -> float:
    """Return the share of the week's capacity that is reserved."""
    booked = sum(p.cpus * (p.end - p.start) for p in schedule.jobs)
    return booked / (schedule.clusters[0].cpus * _WEEK)


def _cases() -> list[AdmissionCase]:
    return [
        AdmissionCase(f"{units} units, {load:.0%} asked for", binding, units, load)
        for units in _SIZES
        for load in _LOADS
        for binding in get_args(ProcessorBinding)[:2]
    ]


ADMISSION = Experiment(
    name="reservation-admission",
    about="Requests accepted or rejected: units assigned at the start or at the request",
    source="drawn requests",
    runs=60,
    baseline="late",
    figures={"refused": _rejected_share, "booked": _booked_share},
    cases=_cases,
)
