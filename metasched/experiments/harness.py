"""What an experiment is: cases, settings with policies, run with many seeds, and its figures."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from metasched.errors import UserError
from metasched.simulate import metrics, swf
from metasched.simulate.engine import THROUGH_METASCHED, Schedule
from metasched.simulate.schemes import SubmissionScheme
from metasched.simulate.settings import SimulationSettings, simulate
from metasched.simulate.synthetic import Scenario
from metasched.simulate.workload import Workload, from_trace

TRACES_VARIABLE = "METASCHED_TRACES"  # the folder of traces that are no part of the project
# Student's t: standard errors on both sides of a mean that hold 95 of 100, by degrees of freedom
_STUDENT_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class ExperimentError(UserError):
    """An experiment that cannot be run; the message says why and what to do."""


class SimulationCase(NamedTuple):
    """One cell of a table: a setting (`row`) run with a policy (`column`).

    `published` has the paper's figures by the names of the experiment's.
    """

    row: str
    column: str
    scenario: Callable[[int], Scenario]  # of a seed
    settings: SimulationSettings
    published: Mapping[str, float] = {}
    scheme: SubmissionScheme = THROUGH_METASCHED

    def run(self, seed: int) -> Schedule:
        """One run: the seed is the grid's, the policy's and the settings'."""
        workload, clusters = self.scenario(seed)
        settings = replace(
            self.settings, meta_policy=replace(self.settings.meta_policy, seed=seed), seed=seed
        )
        return simulate(workload, clusters, settings, scheme=self.scheme)


class ExperimentCase(Protocol):
    """What an experiment needs of a case: where it stands in the table, its grid and its runs."""

    @property
    def row(self) -> str: ...
    @property
    def column(self) -> str: ...
    @property
    def published(self) -> Mapping[str, float]: ...

    def scenario(self, seed: int) -> Scenario: ...
    def run(self, seed: int) -> Schedule: ...


@dataclass(frozen=True)
class Experiment:
    """`runs` is the number of seeds in the paper; `baseline` the column that others are compared
    with, seed by seed. `figures` are computed from each schedule."""

    name: str
    about: str
    source: str
    runs: int
    baseline: str
    figures: Mapping[str, Callable[[Schedule], float]]
    cases: Callable[[], Sequence[ExperimentCase]]


class FigureResult(NamedTuple):
    """A figure of one case over all seeds; `baseline` has the baseline's values of the same
    seeds, None for the baseline itself."""

    row: str
    column: str
    figure: str
    values: tuple[float, ...]
    published: float | None
    baseline: tuple[float, ...] | None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def difference(self) -> float | None:
        """Percent from the published figure."""
        if not self.published:
            return None
        return 100 * (self.mean - self.published) / self.published

    @property
    def paired(self) -> tuple[float, float] | None:
        """The mean of the differences from the baseline with the same seed, and the half of its
        95% interval."""
        if self.baseline is None:
            return None
        return confidence_interval([a - b for a, b in zip(self.values, self.baseline, strict=True)])

    @property
    def ratio(self) -> float | None:
        """Of the mean to the baseline's; None if that is 0."""
        baseline_mean = statistics.fmean(self.baseline) if self.baseline else 0.0
        return self.mean / baseline_mean if baseline_mean else None


def confidence_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The mean of paired differences, and half the width of its 95% interval (inf for one)."""
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return mean, math.inf
    degrees_of_freedom = len(differences) - 1
    t_value = (
        _STUDENT_T[degrees_of_freedom - 1]
        if degrees_of_freedom <= len(_STUDENT_T)
        else 1.96 + 2.5 / degrees_of_freedom
    )
    return mean, t_value * statistics.stdev(differences) / math.sqrt(len(differences))


def load_trace(name: str, partitions: bool = False) -> Workload:
    """The jobs of a trace that is no part of the project. ExperimentError if it is not there."""
    path = Path(os.environ.get(TRACES_VARIABLE, "traces")) / name
    if not path.is_file():
        raise ExperimentError(
            f"no trace {path}; name the folder that has {name} in {TRACES_VARIABLE}"
        )
    return _read_trace(path, partitions)


@cache
def _read_trace(path: Path, partitions: bool) -> Workload:
    return from_trace(path.name, swf.read_trace(path), partitions)


# Figures, in the papers' units.


def late_percent(schedule: Schedule) -> float:
    """Percent of the jobs with a deadline that end after it."""
    with_deadline = [scheduled for scheduled in schedule.jobs if scheduled.job.deadline is not None]
    return 100 * metrics.mean(metrics.tardiness(scheduled) > 0 for scheduled in with_deadline)
