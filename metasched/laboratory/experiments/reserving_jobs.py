"""Experiment: a share of the jobs of a trace reserves, through the daemon's core.

Those of `kurowski2011`, by contrast, take a later window rather than a refusal.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

from metasched.laboratory.experiments.harness import Experiment, load_trace
from metasched.laboratory.simulate import metrics
from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.settings import SimulationSettings, simulate
from metasched.laboratory.simulate.synthetic import Scenario
from metasched.laboratory.simulate.workload import Overlay, Workload

_TRACE, _CLUSTERS, _JOBS = "SDSC-SP2.swf.gz", "2x64", 1000
_NONE = "none"  # the column without reservations
_COLUMNS = {  # share of the jobs, and seconds of slack
    _NONE: (0.0, 0.0),
    "10%": (0.1, 0.0),
    "20%": (0.2, 0.0),
    "30%": (0.3, 0.0),
    "10%, slack of 4 h": (0.1, 4 * 3600.0),
}
_POLICIES = ("easy", "fb-unmod")  # local


@cache
def _fitting_jobs() -> Workload:
    """Return the jobs of the trace that fit on a cluster."""
    workload, size = load_trace(_TRACE), parse_clusters(_CLUSTERS)[0].cpus
    entries = tuple(entry for entry in workload.entries if entry.job.cpus <= size)
    return Workload(workload.name, entries)


class ReservingCase(NamedTuple):
    """Consecutive jobs of the trace from a drawn position on."""

    row: str  # local policy
    column: str
    share: float  # of jobs that ask for a reservation
    slack: float = 0.0  # most delay of the start, in seconds
    published: dict[str, float] = {}  # noqa: RUF012 - read only

    def scenario(self, seed: int) -> Scenario:
        jobs = _fitting_jobs()
        first = Random(seed).randrange(len(jobs.entries) - _JOBS)
        overlay = Overlay(reserved=self.share, reserved_slack=(self.slack, self.slack))
        window = overlay.apply(jobs.subset(first, first + _JOBS), seed)
        return Scenario(window, parse_clusters(_CLUSTERS))

    def run(self, seed: int) -> Schedule:
        workload, clusters = self.scenario(seed)
        return simulate(workload, clusters, SimulationSettings(policy=self.row, seed=seed))


def _percent(schedule: Schedule, count: str, of: str) -> float:
    """Return a figure of the reservations in percent of another; 0 without reservations."""
    if not schedule.reservations:
        return 0.0
    figures = metrics.reservation_figures(schedule)
    figures["not_kept"] = figures["accepted"] - figures["kept"]
    return 100 * float(figures[count]) / max(float(figures[of]), 1.0)


def _waits_of_others(schedule: Schedule) -> list[float]:
    inside = {result.job for result in schedule.reservations if result.granted}
    return [p.wait for p in schedule.jobs if p.job.id not in inside]


def _cases() -> list[ReservingCase]:
    return [
        ReservingCase(policy, column, share, slack)
        for policy in _POLICIES
        for column, (share, slack) in _COLUMNS.items()
    ]


RESERVING_JOBS = Experiment(
    name="reserving-jobs",
    about="A share of the jobs asks for a reservation 1 to 24 h ahead",
    source="SDSC-SP2 on two clusters of 64 processors",
    runs=6,
    baseline=_NONE,
    figures={
        "refused, %": lambda s: _percent(s, "refused", "requested"),
        "not kept, %": lambda s: _percent(s, "not_kept", "accepted"),
        "wait of others, s": lambda s: metrics.mean(_waits_of_others(s)),
        "longest wait of others, h": lambda s: max(_waits_of_others(s)) / 3600,
        "mean start after the wish, s": lambda s: metrics.mean(
            r.start - r.request.ready for r in s.reservations if r.granted
        ),
    },
    cases=_cases,
)
