"""Experiments: tables of Pasquali 2008 (thesis), and two of Kurowski et al. 2011, reproduced.

The thesis is about two-level scheduling, the paper about hierarchical scheduling on the SDSC SP2
trace. docs/experiments/settings.md documents the choices that their texts leave open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random

from msgspec import structs

from metasched.laboratory.experiments.harness import (
    Experiment,
    SimulationCase,
    late_percent,
    load_trace,
)
from metasched.laboratory.simulate import metrics, synthetic
from metasched.laboratory.simulate.cluster_specs import parse_clusters
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.settings import SimulationSettings
from metasched.laboratory.simulate.synthetic import Scenario
from metasched.policies.local.convergent.weights import (
    GREEDY,
    INCREMENTAL,
    OPTIMAL,
    PREEMPTIVE_INCREMENTAL,
    PREEMPTIVE_OPTIMAL,
)
from metasched.policies.local.weights import MODIFIED, UNMODIFIED
from metasched.policies.policy import Policy

PUSH_POLICY = Policy(load="paper", pull=False)  # of both: jobs never move
INTER_ARRIVAL = "mean inter-arrival, s"

# Figures, in the units of the papers.


def mean_flow(schedule: Schedule) -> float:
    """Return F of Kurowski et al.: mean seconds from submission to end."""
    return metrics.mean(scheduled.flow for scheduled in schedule.jobs)


def utilisation(schedule: Schedule) -> float:
    """Return U of Kurowski et al.: mean utilisation of providers until the last ending of all."""
    span = metrics.makespan(schedule.jobs)
    return metrics.mean(
        sum(
            (scheduled.end - scheduled.start) * scheduled.cpus
            for scheduled in schedule.jobs
            if scheduled.cluster == index
        )
        / (cluster.cpus * span)
        for index, cluster in enumerate(schedule.clusters)
    )


def _work_percent(cluster_index: int) -> Callable[[Schedule], float]:
    """Make a figure: percent of the work that a cluster did."""

    def percent(schedule: Schedule) -> float:
        figures = metrics.summary(schedule, "", 1.0)
        return 100 * float(list(figures["load_share"].values())[cluster_index])

    return percent


# Pasquali 2008


def _percent(low: int, high: int) -> tuple[float, float]:
    return low / 100, high / 100


_COLUMNS = ("fcfs", "easy", UNMODIFIED, MODIFIED)  # of both tables
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


def _local_settings_of_thesis(policy: str, **parameters: float) -> SimulationSettings:
    """Return the settings of a local policy with the formulas of the thesis."""
    named: dict[str, float | str] = {"preset": "thesis"} if policy in (MODIFIED, UNMODIFIED) else {}
    return SimulationSettings(
        policy=policy, meta_policy=PUSH_POLICY, parameters={**named, **parameters}
    )


def _licence_ratios() -> list[SimulationCase]:
    return [
        SimulationCase(
            f"ratio {low}-{high}%",
            column,
            SeededScenario(replace(synthetic.FLEXIBLE, ratio=_percent(low, high))),
            _local_settings_of_thesis(column),
            {"licence_usage": _TABLE_2[low, high][index], "late": _TABLE_3[low, high][index]},
        )
        for low, high in _TABLE_2
        for index, column in enumerate(_COLUMNS)
    ]


def _contention() -> list[SimulationCase]:
    return [
        SimulationCase(
            f"inter-arrival {seconds}",
            column,
            SeededScenario(replace(synthetic.FLEXIBLE, inter_arrival=seconds)),
            _local_settings_of_thesis(column),
        )
        for seconds in (4, 6, 12, 24, 48)
        for column in _COLUMNS
    ]


_DEADLINE_READINGS: dict[str, tuple[str, dict[str, float | str]]] = {  # policy, parameters
    "easy": ("easy", {}),
    "thesis": ("fb-unmod", {"preset": "thesis"}),
    "paper": ("fb-unmod", {"preset": "paper"}),
    "metasched": ("fb-unmod", {}),
}


def _deadline_readings() -> list[SimulationCase]:
    return [
        SimulationCase(
            f"inter-arrival {seconds}",
            column,
            SeededScenario(replace(synthetic.FLEXIBLE, inter_arrival=seconds)),
            SimulationSettings(policy=policy, meta_policy=PUSH_POLICY, parameters=parameters),
        )
        for seconds in (4, 6, 12)
        for column, (policy, parameters) in _DEADLINE_READINGS.items()
    ]


@dataclass(frozen=True)
class SeededScenario:
    """The scenarios of a generator, by seed; unlike a lambda it can be sent to other processes."""

    generator: synthetic.UniformGenerator

    def __call__(self, seed: int) -> Scenario:
        return self.generator.generate("uniform", seed)


_LEAD = 2.0  # k of local policies under a meta-scheduler
_CASE_SETTINGS = {  # by the thesis's names of the cases
    "MS": SimulationSettings(policy="priority", meta_policy=PUSH_POLICY),
    "LS": _local_settings_of_thesis(UNMODIFIED, lead=_LEAD),
    "LS-paper": SimulationSettings(
        policy=UNMODIFIED, meta_policy=PUSH_POLICY, parameters={"preset": "paper", "lead": _LEAD}
    ),
    "LS-metasched": SimulationSettings(
        policy=UNMODIFIED, meta_policy=PUSH_POLICY, parameters={"lead": _LEAD}
    ),
    "NO": SimulationSettings(policy="easy", meta_policy=replace(PUSH_POLICY, max_priority=1)),
}


def _load_shares() -> list[SimulationCase]:
    equal = {f"share_c{number}": 25.0 for number in range(1, 5)}
    by_power = {"share_c1": 53.0, "share_c2": 27.0, "share_c3": 13.0, "share_c4": 7.0}
    published = {0: equal, 5: by_power, 15: {"share_c1": 70.0}}
    return [
        SimulationCase(
            f"inter-arrival {seconds}",
            "LS",
            SeededScenario(replace(synthetic.TWO_LEVEL, inter_arrival=seconds)),
            _CASE_SETTINGS["LS"],
            published.get(seconds, {}),
        )
        for seconds in (0, 5, 10, 15)
    ]


def _at_inter_arrivals(
    seconds: Iterable[int],
    scenario: synthetic.UniformGenerator,
    columns: Mapping[str, SimulationSettings],
) -> list[SimulationCase]:
    """Return a row for each inter-arrival time."""
    return [
        SimulationCase(
            f"inter-arrival {each}",
            column,
            SeededScenario(replace(scenario, inter_arrival=each)),
            settings,
        )
        for each in seconds
        for column, settings in columns.items()
    ]


def _two_level() -> list[SimulationCase]:
    return _at_inter_arrivals((5, 10), synthetic.TWO_LEVEL, _CASE_SETTINGS)


_CONVERGENT_COLUMNS = (
    *("easy", "edf", MODIFIED, UNMODIFIED),
    *(INCREMENTAL, OPTIMAL, GREEDY, PREEMPTIVE_INCREMENTAL, PREEMPTIVE_OPTIMAL),
)
_CONVERGENT_ROWS = (4, 6, 8, 10, 12, 16, 20)  # inter-arrival times in seconds
_TIMED_JOBS = 300  # a fifth of those of the thesis
_TIMED_COLUMNS = tuple(c for c in _CONVERGENT_COLUMNS if c not in (MODIFIED, GREEDY))
_TWO_LEVEL_CONVERGENT = {  # §4.3.2; the age factor of Flexible Backfilling is that of its note
    "fcfs": _local_settings_of_thesis("fcfs"),
    "easy": _local_settings_of_thesis("easy"),
    UNMODIFIED: _local_settings_of_thesis(UNMODIFIED, lead=_LEAD, age_factor=1.1),
    OPTIMAL: _local_settings_of_thesis(OPTIMAL),
}


def _convergent_policies() -> list[SimulationCase]:
    columns = {column: _local_settings_of_thesis(column) for column in _CONVERGENT_COLUMNS}
    return _at_inter_arrivals(_CONVERGENT_ROWS, synthetic.CONVERGENT, columns)


def _convergent_readings() -> list[SimulationCase]:
    columns = {column: _local_settings_of_thesis(column) for column in ("edf", UNMODIFIED, OPTIMAL)}
    printed: dict[str, dict[str, float | str]] = {
        f"{OPTIMAL}, late printed": {"late": "printed"},
        f"{OPTIMAL}, longest printed": {"longest": "job"},
        f"{OPTIMAL}, discarded printed": {"discarded": "wait"},
        f"{OPTIMAL}, thesis": {"preset": "thesis"},
    }
    columns |= {
        column: replace(columns[OPTIMAL], parameters=parameters)
        for column, parameters in printed.items()
    }
    return _at_inter_arrivals(_CONVERGENT_ROWS, synthetic.CONVERGENT, columns)


def _scheduling_times() -> list[SimulationCase]:
    return [
        SimulationCase(
            f"inter-arrival {seconds}",
            column,
            SeededScenario(replace(synthetic.CONVERGENT, jobs=_TIMED_JOBS, inter_arrival=seconds)),
            _local_settings_of_thesis(column),
        )
        for seconds in (4, 8, 12, 16, 20)
        for column in _TIMED_COLUMNS
    ]


def _two_level_convergent() -> list[SimulationCase]:
    return [
        SimulationCase(
            f"inter-arrival {seconds}",
            column,
            SeededScenario(replace(synthetic.TWO_LEVEL, inter_arrival=seconds)),
            settings,
        )
        for seconds in (0, 5, 10, 15)
        for column, settings in _TWO_LEVEL_CONVERGENT.items()
    ]


# Kurowski et al. 2011


@dataclass(frozen=True)
class _RandomQueues:
    """The trace on equal clusters: each job goes to a random cluster and is cut to its size."""

    clusters: str

    def __call__(self, seed: int) -> Scenario:
        workload, clusters = load_trace("S1-jobs-0-1000.swf"), parse_clusters(self.clusters)
        size = clusters[0].cpus
        names = [cluster.name for cluster in clusters]
        entries = tuple(
            entry._replace(
                job=structs.replace(
                    entry.job,
                    cpus=min(entry.job.cpus, size),
                    clusters=(Random(f"{seed}/{entry.number}").choice(names),),
                )
            )
            for entry in workload.entries
        )
        return Scenario(replace(workload, entries=entries), clusters)


def _local_settings(policy: str, period: int = 0) -> SimulationSettings:
    return SimulationSettings(
        policy=policy,
        meta_policy=PUSH_POLICY,
        parameters={"period": float(period)} if period else {},
    )


def _local_periods() -> list[SimulationCase]:
    published = {  # U and F, by period in seconds
        0: (0.587, 16228),
        10: (0.587, 15314),
        60: (0.587, 15956),
        600: (0.58, 19051),
        3600: (0.532, 141727),
    }
    return [
        SimulationCase(
            "1 x 128",
            f"LSF-{period}" if period else "FCFS",
            _RandomQueues("128"),
            _local_settings("lsf" if period else "first-fit", period),
            {"U": published_use, "F": published_flow},
        )
        for period, (published_use, published_flow) in published.items()
    ]


def _random_queues() -> list[SimulationCase]:
    published = {  # U and F of each strategy, by number of clusters
        2: ((0.592, 44559), (0.644, 64175)),
        4: ((0.391, 17481), (0.391, 15287)),
        8: ((0.203, 9865), (0.209, 10675)),
    }
    return [
        SimulationCase(
            f"{count} x 64",
            column,
            _RandomQueues(f"{count}x64"),
            _local_settings(policy, period),
            {"U": published[count][index][0], "F": published[count][index][1]},
        )
        for count in published
        for index, (column, policy, period) in enumerate(
            [("FCFS", "first-fit", 0), ("LSF-600", "lsf", 600)]
        )
    ]


_LICENCE_FIGURES = {"licence_usage": lambda s: 100 * metrics.licence_usage(s), "late": late_percent}
PUBLISHED = (
    Experiment(
        name="licence-ratios",
        about="Flexible Backfilling with scarce licences, inter-arrival 12",
        source="Pasquali 2008, Tables 1, 2, 3",
        runs=20,
        baseline="easy",
        figures=_LICENCE_FIGURES,
        cases=_licence_ratios,
    ),
    Experiment(
        name="contention",
        about="Flexible Backfilling under five loads",
        source="Pasquali 2008, Table 1, Figures 16-18",
        runs=20,
        baseline="easy",
        figures={
            "late": late_percent,
            "system_usage": lambda s: 100 * metrics.system_usage(s),
            "slowdown": lambda s: metrics.mean(map(metrics.slowdown, s.jobs)),
        },
        cases=_contention,
        quantity=INTER_ARRIVAL,
    ),
    Experiment(
        name="load-shares",
        about="Share of the work of clusters of 120, 60, 30 and 15 machines",
        source="Pasquali 2008, Table 6, Figure 25",
        runs=20,
        baseline="LS",
        figures={f"share_c{index + 1}": _work_percent(index) for index in range(4)},
        cases=_load_shares,
        quantity=INTER_ARRIVAL,
    ),
    Experiment(
        name="two-level",
        about="Fixed priorities (MS), local ones (LS) or none (NO)",
        source="Pasquali 2008, Table 6, Figures 26-29",
        runs=20,
        baseline="NO",
        figures={
            "late": late_percent,
            "system_usage": lambda s: 100 * metrics.system_usage(s),
            "slowdown_without_deadline": metrics.slowdown_without_deadline,
        },
        cases=_two_level,
    ),
    Experiment(
        name="deadline-readings",
        about="Flexible Backfilling with the deadline's formula of each source",
        source="Pasquali 2008, Table 1",
        runs=20,
        baseline="easy",
        figures={
            "late": late_percent,
            "slowdown": lambda s: metrics.mean(map(metrics.slowdown, s.jobs)),
        },
        cases=_deadline_readings,
        quantity=INTER_ARRIVAL,
    ),
    Experiment(
        name="convergent-policies",
        about="Convergent Scheduling, with preemption and without, under seven loads",
        source="Pasquali 2008, Table 4, Figures 20-22",
        runs=20,
        baseline="easy",
        figures={
            "late": late_percent,
            "slowdown_without_deadline": metrics.slowdown_without_deadline,
            "system_usage": lambda s: 100 * metrics.system_usage(s),
            "licence_usage": lambda s: 100 * metrics.licence_usage(s),
            "input_transfer": metrics.input_transfer,
        },
        cases=_convergent_policies,
        quantity=INTER_ARRIVAL,
    ),
    Experiment(
        name="convergent-readings",
        about="Convergent Scheduling beside EDF and Flexible Backfilling, and as printed",
        source="Pasquali 2008, §3.2.2, Table 4, Figure 20",
        runs=20,
        baseline=OPTIMAL,
        figures={
            "late": late_percent,
            "slowdown_without_deadline": metrics.slowdown_without_deadline,
        },
        cases=_convergent_readings,
        quantity=INTER_ARRIVAL,
    ),
    Experiment(
        name="scheduling-times",
        about="Processor time of schedulers, 300 jobs",
        source="Pasquali 2008, Table 4, Figure 23",
        runs=20,
        baseline="easy",
        figures={
            "scheduler, s": lambda s: s.policy_seconds,
            "pass, ms": lambda s: 1e3 * s.policy_seconds / s.pass_count,
        },
        cases=_scheduling_times,
        quantity=INTER_ARRIVAL,
    ),
    Experiment(
        name="two-level-convergent",
        about="Load and Ordering above FCFS, EASY, Flexible Backfilling, Convergent Scheduling",
        source="Pasquali 2008, Table 7, Figures 30-32",
        runs=20,
        baseline="easy",
        figures={
            **{f"share_c{index + 1}": _work_percent(index) for index in range(4)},
            "late": late_percent,
            "slowdown_without_deadline": metrics.slowdown_without_deadline,
        },
        cases=_two_level_convergent,
        quantity=INTER_ARRIVAL,
    ),
    Experiment(
        name="local-periods",
        about="First fit against largest size first at ticks, tasks 1-1000",
        source="Kurowski et al. 2011, Table 2",
        runs=1,
        baseline="FCFS",
        figures={"U": utilisation, "F": mean_flow},
        cases=_local_periods,
    ),
    Experiment(
        name="random-queues",
        about="Tasks 1-1000 dispatched at random to 2, 4 and 8 queues",
        source="Kurowski et al. 2011, Table 3",
        runs=20,
        baseline="FCFS",
        figures={"U": utilisation, "F": mean_flow},
        cases=_random_queues,
    ),
)
