"""The published experiments, run again: their settings, their figures.

Pasquali 2008 (thesis, two-level scheduling) and Kurowski et al. 2011 (hierarchical scheduling on
the SDSC SP2 trace). What their texts leave open is said in docs/experiments.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from metasched.experiments.harness import Case, Experiment, late, trace
from metasched.policies.policy import Policy
from metasched.simulate import metrics, synthetic
from metasched.simulate.cluster_specs import parse
from metasched.simulate.engine import Schedule
from metasched.simulate.settings import Settings
from metasched.simulate.synthetic import Grid

PUSH = Policy(load="paper", pull=False)

# Figures, in the papers' units.


def flow(schedule: Schedule) -> float:
    return metrics.mean(p.flow for p in schedule.placed)


def utilisation(schedule: Schedule) -> float:
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
            Drawn(replace(synthetic.FLEXIBLE, ratio=_percent(low, high))),
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
            Drawn(replace(synthetic.FLEXIBLE, inter_arrival=gap)),
            Settings(policy=column, meta=PUSH),
        )
        for gap in (4, 6, 12, 24, 48)
        for column in _COLUMNS
    ]


@dataclass(frozen=True)
class Drawn:
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
            Drawn(replace(synthetic.TWO_LEVEL, inter_arrival=gap)),
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
            Drawn(replace(synthetic.TWO_LEVEL, inter_arrival=gap)),
            settings,
        )
        for gap in (5, 10)
        for column, settings in _CASES.items()
    ]


# Kurowski et al. 2011


@dataclass(frozen=True)
class _Queues:
    """The trace on so many equal queues, each job sent to one at random; jobs are cut to fit."""

    clusters: str

    def __call__(self, seed: int) -> Grid:
        workload, clusters = trace("S1-jobs-0-1000.swf"), parse(self.clusters)
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


_LATE_AND_LICENCES = {"licence_usage": lambda s: 100 * metrics.licence_usage(s), "late": late}
PUBLISHED = (
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
            "late": late,
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
            "late": late,
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
        {"U": utilisation, "F": flow},
        _periods,
    ),
    Experiment(
        "random-queues",
        "Tasks 1-1000 sent at random to 2, 4 and 8 queues",
        "Kurowski et al. 2011, Table 3",
        20,
        "FCFS",
        {"U": utilisation, "F": flow},
        _queues,
    ),
)
