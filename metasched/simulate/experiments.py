"""The published experiments, run again: their settings, their figures, ours beside them.

Pasquali 2008 (thesis, two-level scheduling) and Kurowski et al. 2011 (hierarchical scheduling on
the SDSC SP2 trace). What their texts leave open is said in docs/experiments.md.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from metasched.errors import UserError
from metasched.events import Policy
from metasched.simulate import metrics, swf, synthetic
from metasched.simulate.clusters import parse
from metasched.simulate.engine import Schedule
from metasched.simulate.settings import Settings, simulate
from metasched.simulate.synthetic import Grid
from metasched.simulate.workload import Workload, from_trace

TRACES = "METASCHED_TRACES"  # the folder of traces that are no part of the project
PUSH = Policy(load="paper", pull=False)
# Student's t: standard errors on both sides of a mean that hold 95 of 100, by degrees of freedom
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class ExperimentError(UserError):
    """An experiment that cannot be run; the message says why and what to do."""


class Case(NamedTuple):
    """One cell of a table: a setting (`row`) run with a policy (`column`).

    `published` has the paper's figures by the names of the experiment's.
    """

    row: str
    column: str
    grid: Callable[[int], Grid]  # of a seed
    settings: Settings
    published: Mapping[str, float] = {}


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
    cases: Callable[[], list[Case]]


class Result(NamedTuple):
    """A figure of one case over all seeds. `paired` is the mean of its differences from the
    baseline with the same seed and its 95% interval, None for the baseline itself."""

    row: str
    column: str
    figure: str
    values: tuple[float, ...]
    published: float | None
    paired: tuple[float, float] | None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def difference(self) -> float | None:
        """Percent from the published figure."""
        if not self.published:
            return None
        return 100 * (self.mean - self.published) / self.published


# Figures, in the papers' units.


def _late(schedule: Schedule) -> float:
    bound = [p for p in schedule.placed if p.job.deadline is not None]
    return 100 * metrics.mean(metrics.tardiness(p) > 0 for p in bound)


def _flow(schedule: Schedule) -> float:
    return metrics.mean(p.flow for p in schedule.placed)


def _utilisation(schedule: Schedule) -> float:
    """U of Kurowski et al.: of each provider until the last ending of all, their mean."""
    span = metrics.makespan(schedule.placed)
    return metrics.mean(
        sum((p.end - p.start) * p.cpus for p in schedule.placed if p.cluster == place)
        / (cluster.cpus * span)
        for place, cluster in enumerate(schedule.clusters)
    )


def _share(place: int) -> Callable[[Schedule], float]:
    def share(schedule: Schedule) -> float:
        figures = metrics.summary(schedule, "", 1.0)
        return 100 * float(list(figures["load_share"].values())[place])

    return share


# Pasquali 2008


def _percent(low: int, high: int) -> tuple[float, float]:
    return low / 100, high / 100


_COLUMNS = ("fcfs", "easy", "fb-unmod", "fb-mod")
_TABLE_2 = {  # licence usage, percent
    (30, 50): (55.7, 78.5, 80.5, 79.7),
    (40, 60): (52.1, 76.1, 75.5, 76.3),
    (50, 70): (49.5, 74.8, 72.2, 72.4),
}
_TABLE_3 = {  # jobs past their deadline, percent
    (30, 50): (95.6, 78.9, 74.5, 73.5),
    (40, 60): (95.5, 74.8, 69.4, 69.0),
    (50, 70): (95.5, 74.6, 66.2, 66.2),
}


def _licence_ratios() -> list[Case]:
    return [
        Case(
            f"ratio {low}-{high}%",
            column,
            _Uniform(replace(synthetic.FLEXIBLE, ratio=_percent(low, high))),
            Settings(policy=column, meta=PUSH),
            {"licence_usage": _TABLE_2[low, high][place], "late": _TABLE_3[low, high][place]},
        )
        for low, high in _TABLE_2
        for place, column in enumerate(_COLUMNS)
    ]


def _contention() -> list[Case]:
    return [
        Case(
            f"inter-arrival {gap}",
            column,
            _Uniform(replace(synthetic.FLEXIBLE, inter_arrival=gap)),
            Settings(policy=column, meta=PUSH),
        )
        for gap in (4, 6, 12, 24, 48)
        for column in _COLUMNS
    ]


@dataclass(frozen=True)
class _Uniform:
    """The grid of a seed, drawn from uniform ranges."""

    uniform: synthetic.Uniform

    def __call__(self, seed: int) -> Grid:
        return self.uniform.grid("uniform", seed)


_UNDER = {"lead": 2.0}  # k under the meta-scheduler
_CASES = {
    "MS": Settings(policy="priority", meta=PUSH),
    "LS": Settings(policy="fb-unmod", meta=PUSH, parameters=dict(_UNDER)),
    "NO": Settings(policy="easy", meta=replace(PUSH, max_priority=1)),
}


def _shares() -> list[Case]:
    even = {f"share_c{place}": 25.0 for place in range(1, 5)}
    power = {"share_c1": 53.0, "share_c2": 27.0, "share_c3": 13.0, "share_c4": 7.0}
    published = {0: even, 5: power, 15: {"share_c1": 70.0}}
    return [
        Case(
            f"inter-arrival {gap}",
            "LS",
            _Uniform(replace(synthetic.TWO_LEVEL, inter_arrival=gap)),
            _CASES["LS"],
            published.get(gap, {}),
        )
        for gap in (0, 5, 10, 15)
    ]


def _three_cases() -> list[Case]:
    return [
        Case(
            f"inter-arrival {gap}",
            column,
            _Uniform(replace(synthetic.TWO_LEVEL, inter_arrival=gap)),
            settings,
        )
        for gap in (5, 10)
        for column, settings in _CASES.items()
    ]


# Kurowski et al. 2011


@cache
def _kurowski() -> Workload:
    name = "S1-jobs-0-1000.swf"
    path = Path(os.environ.get(TRACES, "traces")) / name
    if not path.is_file():
        raise ExperimentError(f"no trace {path}; name the folder that has {name} in {TRACES}")
    return from_trace(name, swf.read(path))


@dataclass(frozen=True)
class _Queues:
    """The trace on so many equal queues, each job sent to one at random; jobs are cut to fit."""

    clusters: str

    def __call__(self, seed: int) -> Grid:
        workload, clusters = _kurowski(), parse(self.clusters)
        size = clusters[0].cpus
        names = [cluster.name for cluster in clusters]
        requests = tuple(
            request._replace(
                job=replace(
                    request.job,
                    cpus=min(request.job.cpus, size),
                    clusters=(Random(f"{seed}/{request.number}").choice(names),),
                )
            )
            for request in workload.requests
        )
        return Grid(replace(workload, requests=requests), clusters)


def _local(policy: str, period: int = 0) -> Settings:
    return Settings(
        policy=policy, meta=PUSH, parameters={"period": float(period)} if period else {}
    )


def _periods() -> list[Case]:
    published = {0: (0.587, 16228), 10: (0.587, 15314), 60: (0.587, 15956), 600: (0.58, 19051)}
    published[3600] = (0.532, 141727)
    return [
        Case(
            "1 x 128",
            f"LSF-{period}" if period else "FCFS",
            _Queues("128"),
            _local("lsf" if period else "first-fit", period),
            {"U": usage, "F": flow},
        )
        for period, (usage, flow) in published.items()
    ]


def _queues() -> list[Case]:
    published = {
        2: ((0.592, 44559), (0.644, 64175)),
        4: ((0.391, 17481), (0.391, 15287)),
        8: ((0.203, 9865), (0.209, 10675)),
    }
    return [
        Case(
            f"{number} x 64",
            column,
            _Queues(f"{number}x64"),
            _local(policy, period),
            {"U": published[number][place][0], "F": published[number][place][1]},
        )
        for number in published
        for place, (column, policy, period) in enumerate(
            [("FCFS", "first-fit", 0), ("LSF-600", "lsf", 600)]
        )
    ]


_LATE_AND_LICENCES = {"licence_usage": lambda s: 100 * metrics.licence_usage(s), "late": _late}
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "licence-ratios",
            "Flexible Backfilling with scarce licences, inter-arrival 12",
            "Pasquali 2008, Tables 1, 2, 3",
            20,
            "easy",
            _LATE_AND_LICENCES,
            _licence_ratios,
        ),
        Experiment(
            "contention",
            "Flexible Backfilling under five loads",
            "Pasquali 2008, Table 1, Figures 16-18",
            20,
            "easy",
            {
                "late": _late,
                "system_usage": lambda s: 100 * metrics.system_usage(s),
                "slowdown": lambda s: metrics.mean(map(metrics.slowdown, s.placed)),
            },
            _contention,
        ),
        Experiment(
            "load-shares",
            "Share of the work of clusters of 120, 60, 30 and 15 machines",
            "Pasquali 2008, Table 6, Figure 25",
            20,
            "LS",
            {f"share_c{place + 1}": _share(place) for place in range(4)},
            _shares,
        ),
        Experiment(
            "two-level",
            "Fixed priorities (MS), local ones (LS) or none (NO)",
            "Pasquali 2008, Table 6, Figures 26-29",
            20,
            "NO",
            {
                "late": _late,
                "system_usage": lambda s: 100 * metrics.system_usage(s),
                "slowdown_without_deadline": metrics.slowdown_without_deadline,
            },
            _three_cases,
        ),
        Experiment(
            "local-periods",
            "First fit against largest size first at ticks, tasks 1-1000",
            "Kurowski et al. 2011, Table 2",
            1,
            "FCFS",
            {"U": _utilisation, "F": _flow},
            _periods,
        ),
        Experiment(
            "random-queues",
            "Tasks 1-1000 sent at random to 2, 4 and 8 queues",
            "Kurowski et al. 2011, Table 3",
            20,
            "FCFS",
            {"U": _utilisation, "F": _flow},
            _queues,
        ),
    )
}


def find(name: str) -> Experiment:
    """The experiment of that name. ExperimentError if there is none."""
    if name not in EXPERIMENTS:
        close = get_close_matches(name, EXPERIMENTS, n=1)
        mend = f"write {close[0]}" if close else "see metasched experiment --list"
        raise ExperimentError(f'unknown experiment "{name}"; {mend}')
    return EXPERIMENTS[name]


def run(
    experiment: Experiment, runs: int, progress: Callable[[int], None] | None = None
) -> list[Result]:
    """Run every case with seeds 1..runs, on all cores; in the order of the cases."""
    cases = experiment.cases()
    for case in cases[:1]:
        case.grid(1)  # what is missing is told before processes are started
    values: dict[tuple[int, int], dict[str, float]] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = {
            pool.submit(_one, experiment.name, place, seed): (place, seed)
            for seed in range(1, runs + 1)
            for place in range(len(cases))
        }
        for done in as_completed(waiting):
            values[waiting[done]] = done.result()
            if progress is not None:
                progress(1)
    return list(_results(experiment, cases, runs, values))


def _one(name: str, place: int, seed: int) -> dict[str, float]:
    """The figures of one case with one seed, in a process of the pool."""
    experiment = EXPERIMENTS[name]
    case = experiment.cases()[place]
    workload, clusters = case.grid(seed)
    settings = replace(case.settings, meta=replace(case.settings.meta, seed=seed), seed=seed)
    schedule = simulate(workload, clusters, settings)
    return {name: figure(schedule) for name, figure in experiment.figures.items()}


def _results(
    experiment: Experiment,
    cases: Sequence[Case],
    runs: int,
    values: Mapping[tuple[int, int], Mapping[str, float]],
) -> Iterator[Result]:
    seeds = range(1, runs + 1)
    for place, case in enumerate(cases):
        base = next(
            (
                p
                for p, other in enumerate(cases)
                if other.row == case.row and other.column == experiment.baseline
            ),
            place,
        )
        for figure in experiment.figures:
            ours = tuple(values[place, seed][figure] for seed in seeds)
            paired = None
            if base != place:
                paired = interval(
                    [values[place, seed][figure] - values[base, seed][figure] for seed in seeds]
                )
            yield Result(case.row, case.column, figure, ours, case.published.get(figure), paired)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The mean of paired differences, and half the width of its 95% interval (inf for one)."""
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return mean, math.inf
    free = len(differences) - 1
    errors = _STUDENT[free - 1] if free <= len(_STUDENT) else 1.96 + 2.5 / free
    return mean, errors * statistics.stdev(differences) / math.sqrt(len(differences))
