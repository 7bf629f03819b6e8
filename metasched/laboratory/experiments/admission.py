"""Experiment: reservation requests for one week, accepted or rejected at once.

It compares units assigned at the start of a reservation with units assigned at its request. No
batch jobs run. Requests are for windows at random times of the week and arrive in no order of
their start, as from users who plan ahead. In `kurowski2011`, by contrast, no request is rejected.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple, get_args

from metasched.laboratory.experiments.harness import Experiment
from metasched.laboratory.experiments.static_binding import (
    ProcessorBinding,
    simulate_static_binding,
)
from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.settings import SimulationSettings, simulate
from metasched.laboratory.simulate.synthetic import Scenario
from metasched.laboratory.simulate.workload import WindowRequest, Workload
from metasched.policies.policy import Policy

_HOUR, _WEEK = 3600.0, 7 * 24 * 3600.0  # seconds
_HOURS = (1, 2, 4, 8, 24)  # durations of requests
_SIZES = {4: (1,), 16: (1, 2, 4), 64: (1, 2, 4, 8, 16)}  # of requests, by units of the cluster
_LOADS = (0.5, 0.8, 1.2, 2.0)


class AdmissionCase(NamedTuple):
    """Requests for `load` times the capacity of a cluster over a week."""

    row: str
    column: ProcessorBinding
    units: int  # nodes or processors of the cluster
    load: float
    published: dict[str, float] = {}  # noqa: RUF012 - read only

    def scenario(self, seed: int) -> Scenario:
        """Draw the requests, in the order of arrival."""
        rng, requested, windows = Random(seed), 0.0, list[WindowRequest]()
        while requested < self.load * self.units * _WEEK:  # unit seconds
            size, duration = rng.choice(_SIZES[self.units]), rng.choice(_HOURS) * _HOUR
            start = rng.uniform(0.0, _WEEK - duration)
            windows.append(WindowRequest(0.0, start, duration, size))
            requested += size * duration
        clusters = parse_clusters(str(self.units))
        return Scenario(Workload("windows", (), windows=tuple(windows)), clusters)

    def run(self, seed: int) -> Schedule:
        """Request the windows in turn; nothing runs in them."""
        workload, clusters = self.scenario(seed)
        if self.column == "late":
            return simulate(workload, clusters, SimulationSettings(policy="first-fit", seed=seed))
        return simulate_static_binding(workload, clusters, Policy(seed=seed))


def _rejected_share(schedule: Schedule) -> float:
    """Return the share of requests that were rejected."""
    results = schedule.reservations
    return sum(not result.granted for result in results) / len(results)


def _booked_share(schedule: Schedule) -> float:
    """Return the share of the week's capacity that is reserved."""
    booked = sum(
        result.request.cpus * (result.end - result.start)
        for result in schedule.reservations
        if result.granted
    )
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
