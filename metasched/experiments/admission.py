"""Requests for windows of one week, kept or refused at once: what fits, by when units are chosen.

Nothing else runs there. Each request is for a window at a time drawn in the week, in no order, as
users who plan ahead ask. Beside `published_reservations`, where nobody is refused.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple, get_args

from metasched.experiments.harness import Experiment
from metasched.experiments.reserved_providers import Binding, slots_of
from metasched.model.job import Job
from metasched.simulate.cluster_specs import parse
from metasched.simulate.engine import Placed, Schedule
from metasched.simulate.synthetic import Grid
from metasched.simulate.workload import Request, Workload

_HOUR, _WEEK = 3600.0, 7 * 24 * 3600.0
_HOURS = (1, 2, 4, 8, 24)
_SIZES = {4: (1,), 16: (1, 2, 4), 64: (1, 2, 4, 8, 16)}
_LOADS = (0.5, 0.8, 1.2, 2.0)
_REFUSED = "refused"


class AdmissionCase(NamedTuple):
    """Requests for `load` times the hours that so many `units` (nodes, processors) have in all."""

    row: str
    column: Binding
    units: int
    load: float
    published: dict[str, float] = {}  # noqa: RUF012 - read only

    def grid(self, seed: int) -> Grid:
        """The requests in the order in which they are asked, with the start wanted as `begin`."""
        draw, asked, requests = Random(seed), 0.0, list[Request]()
        while asked < self.load * self.units * _WEEK:
            size, lasts = draw.choice(_SIZES[self.units]), draw.choice(_HOURS) * _HOUR
            begin = draw.uniform(0.0, _WEEK - lasts)
            id = len(requests) + 1
            job = Job(id=id, submitted=0.0, estimated=lasts, cpus=size, begin=begin)
            requests.append(Request(job, lasts, id))
            asked += size * lasts
        return Grid(Workload("windows", tuple(requests)), parse(str(self.units)))

    def play(self, seed: int) -> Schedule:
        workload, clusters = self.grid(seed)
        slots, kept = slots_of(self.column, self.units, 0.0), []
        for request in workload.requests:
            job, begin = request.job, request.job.begin
            assert begin is not None
            end = begin + request.ran
            if slots.free(begin, end) >= job.cpus:
                slots.book(job.id, begin, end, job.cpus)
                kept.append(Placed(request, begin, end, job.cpus, 0, 0, priority=0, moves=0))
        refused = len(workload.requests) - len(kept)
        return Schedule(clusters, tuple(kept), {_REFUSED: refused}, len(workload.requests), 0)


def _refused(run: Schedule) -> float:
    """The share of requests that were."""
    return run.dropped[_REFUSED] / run.events


def _booked(run: Schedule) -> float:
    """The share of the week that is booked."""
    return sum(p.cpus * (p.end - p.start) for p in run.placed) / (run.clusters[0].cpus * _WEEK)


def _cases() -> list[AdmissionCase]:
    return [
        AdmissionCase(f"{units} units, {load:.0%} asked for", binding, units, load)
        for units in _SIZES
        for load in _LOADS
        for binding in get_args(Binding)[:2]
    ]


ADMISSION = Experiment(
    "reservation-admission",
    "Windows kept or refused: units chosen as they begin, or when they are asked for",
    "drawn requests",
    60,
    "late",
    {"refused": _refused, "booked": _booked},
    _cases,
)
