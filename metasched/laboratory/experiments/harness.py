"""The harness of experiments: cases, run with many seeds, and their figures."""

from __future__ import annotations

import gc
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple, Protocol

from metasched.errors import UserError
from metasched.laboratory.simulate import metrics, swf
from metasched.laboratory.simulate.engine import THROUGH_METASCHED, Schedule
from metasched.laboratory.simulate.schemes import SubmissionScheme
from metasched.laboratory.simulate.settings import SimulationSettings, simulate
from metasched.laboratory.simulate.synthetic import Scenario
from metasched.laboratory.simulate.workload import Workload, from_trace

TRACES_VARIABLE = "METASCHED_TRACES"  # environment variable: the folder of traces
# Student's t: 97.5% quantiles, by degrees of freedom
# fmt: off
_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on


class ExperimentError(UserError):
    """An experiment that cannot be run."""


class SimulationCase(NamedTuple):
    """One cell of a table: a setting simulated with a policy."""

    row: str  # the setting
    column: str  # the policy
    scenario: Callable[[int], Scenario]  # from a seed
    settings: SimulationSettings
    published: Mapping[str, float] = {}  # figures of the paper, by name
    scheme: SubmissionScheme = THROUGH_METASCHED

    def run(self, seed: int) -> Schedule:
        """Run the case; the seed is that of the scenario, the policy and the settings."""
        workload, clusters = self.scenario(seed)
        settings = replace(
            self.settings, meta_policy=replace(self.settings.meta_policy, seed=seed), seed=seed
        )
        with without_collection():
            return simulate(workload, clusters, settings, scheme=self.scheme, clock=process_time)


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect no cycles for the time of a run: a collection would visit all jobs of the traces."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class ExperimentCase(Protocol):
    """The interface of a case: its cell in the table, its scenario and its runs."""

    @property
    def row(self) -> str: ...
    @property
    def column(self) -> str: ...
    @property
    def published(self) -> Mapping[str, float]: ...

    def scenario(self, seed: int) -> Any: ...
    def run(self, seed: int) -> Any: ...  # a Schedule, if clusters are simulated


class TraceFile(NamedTuple):
    """A trace and the processors of its machine."""

    path: Path
    cpus: int


CaseSource = TraceFile | Path | None  # Path: a federation, a TOML file


class Curves(NamedTuple):
    """What changes during a run, for a plot of lines below each other."""

    name: str  # of the plot
    about: str  # unit of the positions, below the x axis
    panels: Mapping[str, Mapping[str, Sequence[float]]]  # values by position, label and y label


@dataclass(frozen=True)
class Experiment:
    """A table of cases."""

    name: str
    about: str  # title
    source: str  # paper and table, or traces
    runs: int  # default number of seeds, as in the paper
    baseline: str  # column that the others are compared with, seed by seed
    figures: Mapping[str, Callable[[Any], float]]  # of the result of a run, by name
    cases: Callable[[], Sequence[ExperimentCase]]
    quantity: str = ""  # quantity of the settings, with its unit: lines are plotted over it
    curves: Callable[[int], Iterable[Curves]] | None = None  # of a run with a seed
    # cases of another trace; None: it has its own workloads only
    cases_of_trace: Callable[[TraceFile], Sequence[ExperimentCase]] | None = None

    # cases of a federation of the user's own, a TOML file; None: as above
    cases_of_federation: Callable[[Path], Sequence[ExperimentCase]] | None = None

    def select_cases(self, source: CaseSource = None) -> Sequence[ExperimentCase]:
        """Return the cases, or those of a given file. ExperimentError if it takes no file."""
        if source is None:
            return self.cases()
        if isinstance(source, Path):
            if self.cases_of_federation is None:
                raise ExperimentError(
                    f"{self.name} takes no federation, --federation; leave it out"
                )
            return self.cases_of_federation(source)
        if self.cases_of_trace is None:
            raise ExperimentError(f"{self.name} takes no trace, --trace; leave it out")
        return self.cases_of_trace(source)


class FigureResult(NamedTuple):
    """A figure of a case over all seeds."""

    row: str
    column: str
    figure: str  # name
    values: tuple[float, ...]  # by seed
    published: float | None
    baseline: tuple[float, ...] | None  # the baseline's values by seed; None: this is the baseline

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def difference(self) -> float | None:
        """Percent from the published value."""
        if not self.published:
            return None
        return 100 * (self.mean - self.published) / self.published

    @property
    def paired(self) -> tuple[float, float] | None:
        """Mean difference from the baseline per seed, and the half-width of its 95% interval."""
        if self.baseline is None:
            return None
        return confidence_interval([a - b for a, b in zip(self.values, self.baseline, strict=True)])

    @property
    def ratio(self) -> float | None:
        """Mean divided by the baseline's mean; None if that is 0."""
        baseline_mean = statistics.fmean(self.baseline) if self.baseline else 0.0
        return self.mean / baseline_mean if baseline_mean else None


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the half-width of its 95% interval (inf for a single value)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    freedom = len(values) - 1
    quantile = _STUDENT_T[freedom - 1] if freedom <= len(_STUDENT_T) else 1.96 + 2.5 / freedom
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))


def load_trace(name: str, partitions: bool = False) -> Workload:
    """Read a trace from the folder METASCHED_TRACES. ExperimentError if it is missing."""
    path = Path(os.environ.get(TRACES_VARIABLE, "traces")) / name
    if not path.is_file():
        raise ExperimentError(
            f"no trace {path}; name the folder that has {name} in {TRACES_VARIABLE}"
        )
    return read_workload(path, partitions)


@cache
def read_workload(path: Path, partitions: bool = False) -> Workload:
    """Read a trace, once in each process. WorkloadError if it cannot be read."""
    return from_trace(path.name, swf.read_trace(path), partitions)


# Figures, in the units of the papers.


def late_percent(schedule: Schedule) -> float:
    """Return the percentage of late jobs among jobs with a deadline."""
    with_deadline = [scheduled for scheduled in schedule.jobs if scheduled.job.deadline is not None]
    return 100 * metrics.mean(metrics.tardiness(scheduled) > 0 for scheduled in with_deadline)
