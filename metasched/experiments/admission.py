"""Reservation requests for one week, accepted or rejected at once, by when units are assigned.

No batch jobs run. Each request is for a window at a random time of the week; requests arrive in
random order of their start, as from users who plan ahead. Complements `kurowski2011`, where no
request is rejected.
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

_HOUR, _WEEK = 3600.0, 7 * 24 * 3600.0
_HOURS = (1, 2, 4, 8, 24)
_SIZES = {4: (1,), 16: (1, 2, 4), 64: (1, 2, 4, 8, 16)}
_LOADS = (0.5, 0.8, 1.2, 2.0)
_REJECTED = "refused"


class AdmissionCase(NamedTuple):
    """Requests for `load` times the capacity of `units` (nodes or processors) over a week."""

    row: str
    column: ProcessorBinding
    units: int
    load: float
    published: dict[str, float] = {}  # noqa: RUF012 - read only

    def scenario(self, seed: int) -> Scenario:
        """Draw the requests in the order of arrival, with the requested start as `begin`."""
        rng, requested_seconds, entries = Random(seed), 0.0, list[WorkloadEntry]()
        while requested_seconds < self.load * self.units * _WEEK:
            size, duration = rng.choice(_SIZES[self.units]), rng.choice(_HOURS) * _HOUR
            start = rng.uniform(0.0, _WEEK - duration)
            job_id = len(entries) + 1
            job = Job(id=job_id, submitted=0.0, estimated=duration, cpus=size, begin=start)
            entries.append(WorkloadEntry(job, duration, job_id))
            requested_seconds += size * duration
        return Scenario(Workload("windows", tuple(entries)), parse_clusters(str(self.units)))

    def run(self, seed: int) -> Schedule:
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
    return sum(
        scheduled.cpus * (scheduled.end - scheduled.start) for scheduled in schedule.jobs
    ) / (schedule.clusters[0].cpus * _WEEK)


def _cases() -> list[AdmissionCase]:
    return [
        AdmissionCase(f"{units} units, {load:.0%} asked for", binding, units, load)
        for units in _SIZES
        for load in _LOADS
        for binding in get_args(ProcessorBinding)[:2]
    ]


ADMISSION = Experiment(
    "reservation-admission",
    "Requests accepted or rejected: units assigned at the start or at the request",
    "drawn requests",
    60,
    "late",
    {"refused": _rejected_share, "booked": _booked_share},
    _cases,
)
