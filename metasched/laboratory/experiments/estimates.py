"""Estimated starts compared with the true starts, on traces that are simulated with EASY.

The traces record no waits, so their jobs are simulated with true run times; the local policy sees
limits only. Estimates are made when a job arrives, in the last tenth of the trace. All jobs that
have ended by then, also in that tenth, are known to the model of run times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import ClassVar, NamedTuple

from metasched.forecast.estimates import estimate_starts
from metasched.forecast.forward_run import ForwardRun
from metasched.forecast.run_times import RunTimeModel
from metasched.forecast.snapshot import ForecastCluster, RunningTask, Snapshot, WaitingTasks
from metasched.laboratory.experiments.binomial_bounds import BinomialBounds
from metasched.laboratory.experiments.harness import (
    Experiment,
    ExperimentError,
    TraceFile,
    load_trace,
    read_workload,
)
from metasched.laboratory.simulate.clusters import MAX_CPUS, SimulatedCluster
from metasched.laboratory.simulate.engine import ScheduledJob
from metasched.laboratory.simulate.metrics import mean
from metasched.laboratory.simulate.settings import SimulationSettings, simulate
from metasched.laboratory.simulate.workload import Workload
from metasched.policies.local.orders import EASY
from metasched.policies.local.queueing import NEVER

ARRIVALS = 600  # at which a run makes estimates, drawn from the last tenth
HELD_OUT = 10  # 1 / share of the jobs
TOLERANCE = 1.0  # most seconds between a start and an interval that counts as hit
_TRACES = {"KTH-SP2": ("KTH-SP2.swf.gz", 100), "SDSC-SP2": ("SDSC-SP2.swf.gz", 128)}


class Prediction(NamedTuple):
    """The wait of a job, true and estimated at its arrival, in seconds."""

    wait: float
    early: float  # 10% quantile, or a bound of it
    median: float
    late: float

    @property
    def covered(self) -> bool:
        return self.early - TOLERANCE <= self.wait <= self.late + TOLERANCE

    @property
    def error(self) -> float:
        return abs(self.wait - self.median)


class _Arrival(NamedTuple):
    """The state at the arrival of a job."""

    job: ScheduledJob
    snapshot: Snapshot  # the job is the last that waits
    run_times: RunTimeModel
    waits: BinomialBounds


def _by_forecast(arrival: _Arrival, seed: str) -> Prediction:
    last, now = len(arrival.snapshot.waiting) - 1, arrival.snapshot.now
    estimates = estimate_starts(
        arrival.snapshot, arrival.run_times, seed, targets=frozenset({last})
    )
    assert estimates is not None  # the time is not limited
    early, median, late = estimates.tasks[last][0]
    return Prediction(arrival.job.wait, early - now, median - now, late - now)


def _by_limits(arrival: _Arrival, seed: str) -> Prediction:
    """Return the start if all jobs run as long as their limits, as Slurm's backfill plans it."""
    snapshot = arrival.snapshot
    last, running = len(snapshot.waiting) - 1, snapshot.running
    run = ForwardRun(
        snapshot,
        lambda index: max(snapshot.now, running[index].start + running[index].limit),
        lambda _, limit: limit,
        targets=frozenset({last}),
    )
    run.run()
    wait = run.starts[last][0] - snapshot.now
    return Prediction(arrival.job.wait, wait, wait, wait)


def _by_past_waits(arrival: _Arrival, seed: str) -> Prediction:
    return Prediction(arrival.job.wait, *arrival.waits.bounds(arrival.job.cpus))


_METHODS: dict[str, Callable[[_Arrival, str], Prediction]] = {
    "forecast": _by_forecast,
    "limits": _by_limits,
    "past waits": _by_past_waits,
}


@dataclass(frozen=True)
class EstimateCase:
    """A method on a trace. A seed draws the arrivals and the run times."""

    row: str
    column: str
    file: TraceFile
    published: ClassVar[Mapping[str, float]] = {}

    def scenario(self, seed: int) -> Workload:
        """Read the trace. ExperimentError if it is missing, or too few jobs fit."""
        return _read(self.file)

    def run(self, seed: int) -> list[Prediction]:
        predict = _METHODS[self.column]
        return [
            predict(arrival, f"{seed}/{arrival.job.job.id}")
            for arrival in _arrivals(_simulated(self.file), self.file.cpus, seed)
        ]


def _read(file: TraceFile) -> Workload:
    path, cpus = file
    if not 0 < cpus <= MAX_CPUS:
        raise ExperimentError(f"{cpus} processors, --cpus; write 1 to {MAX_CPUS}")
    workload = read_workload(path) if path.is_absolute() else load_trace(path.name)
    fitting = sum(entry.job.cpus <= cpus for entry in workload.entries)
    if fitting < HELD_OUT:
        raise ExperimentError(
            f"{fitting} jobs need at most {cpus} processors, {path}; {HELD_OUT} are needed"
        )
    return workload


@cache  # the methods share a schedule
def _simulated(file: TraceFile) -> tuple[ScheduledJob, ...]:
    cluster = SimulatedCluster(name="alone", cpus=file.cpus)
    return simulate(_read(file), (cluster,), SimulationSettings(policy=EASY.name)).jobs


def _arrivals(jobs: Sequence[ScheduledJob], cpus: int, seed: int) -> Iterator[_Arrival]:
    """Yield the states at a sample of the arrivals of the last tenth."""
    first = len(jobs) - len(jobs) // HELD_OUT
    held_out = range(first, len(jobs))
    sample = {*Random(seed).sample(held_out, min(ARRIVALS, len(held_out)))}
    run_times, waits = RunTimeModel(), BinomialBounds()
    changes: list[tuple[float, int, int]] = []  # (time, 0: end or 1: start, index of the job)
    present: list[int] = []  # jobs that have arrived and perhaps not ended
    for index, job in enumerate(jobs):
        now = job.job.submitted
        while changes and changes[0][0] <= now:
            _, is_start, other = heappop(changes)
            changed = jobs[other]
            if is_start:
                waits.add(changed.cpus, changed.wait)
            else:
                run_times.add(changed.job.user, "", changed.job.estimated, changed.run_time)
        heappush(changes, (job.end, 0, index))
        heappush(changes, (job.start, 1, index))
        present.append(index)
        if index in sample:
            present = [other for other in present if jobs[other].end > now or other == index]
            snapshot = _snapshot_at(now, [jobs[other] for other in present], cpus)
            yield _Arrival(job, snapshot, run_times, waits)


def _snapshot_at(now: float, present: Sequence[ScheduledJob], cpus: int) -> Snapshot:
    """Return the state after all ends of that time, before any start."""
    running = [job for job in present if job.start < now < job.end]
    return Snapshot(
        now,
        (ForecastCluster(cpus - sum(job.cpus for job in running), EASY),),
        tuple(
            RunningTask(0, job.cpus, job.start, job.job.estimated, job.job.user) for job in running
        ),
        tuple(
            WaitingTasks(job.cpus, {0: job.job.estimated}, user=job.job.user)
            for job in present
            if job.start >= now
        ),
    )


def _of_waiting(
    figure: Callable[[Prediction], float], summary: Callable[[list[float]], float]
) -> Callable[[list[Prediction]], float]:
    """Make a figure over the jobs that did not start at once; 0 without such jobs.

    Widths without a bound, for want of past waits, are left out.
    """

    def of_predictions(predictions: list[Prediction]) -> float:
        values = [figure(each) for each in predictions if each.wait > TOLERANCE]
        finite = [value for value in values if value < NEVER]
        return summary(finite) if finite else 0.0

    return of_predictions


def _percent(values: list[float]) -> float:
    return 100 * mean(values)


def _within(seconds: float) -> Callable[[Prediction], float]:
    return lambda prediction: prediction.error <= seconds


def _width(prediction: Prediction) -> float:
    """Return minutes."""
    return (prediction.late - prediction.early) / 60


def _cases() -> list[EstimateCase]:
    return [
        EstimateCase(row, column, TraceFile(Path(name), cpus))
        for row, (name, cpus) in _TRACES.items()
        for column in _METHODS
    ]


def _cases_of(file: TraceFile) -> list[EstimateCase]:
    return [EstimateCase(file.path.name, column, file) for column in _METHODS]


ESTIMATES = Experiment(
    name="estimates",
    about="Starts estimated at the arrival, in the last tenth of a trace simulated with EASY",
    source="KTH-SP2, SDSC-SP2; past waits as Brevik et al. 2006",
    runs=5,
    baseline="limits",
    figures={
        "in interval, %": _of_waiting(lambda each: each.covered, _percent),
        "median width, min": _of_waiting(_width, statistics.median),
        "within 1 min, %": _of_waiting(_within(60.0), _percent),
        "within 10 min, %": _of_waiting(_within(600.0), _percent),
        "median error, min": _of_waiting(lambda each: each.error / 60, statistics.median),
        "in interval of all, %": lambda all_: _percent([each.covered for each in all_]),
        "within 10 min of all, %": lambda all_: _percent([each.error <= 600 for each in all_]),
        "waiting, %": lambda all_: _percent([each.wait > TOLERANCE for each in all_]),
    },
    cases=_cases,
    cases_of_trace=_cases_of,
)
