"""Experiments: policies with a plan of the whole queue.

Pasquali 2008, §5.2, Figures 39 and 40; Du 2010, Tables 5-2 to 5-5.

docs/experiments/settings.md documents the choices that the text leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from metasched.laboratory.experiments.harness import Experiment, SimulationCase, late_percent
from metasched.laboratory.experiments.pasquali2008 import INTER_ARRIVAL, PUSH_POLICY, SeededScenario
from metasched.laboratory.simulate import metrics, synthetic
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.settings import SimulationSettings

_Columns = Mapping[str, tuple[str, dict[str, float | str]]]  # policy and parameters, by column

_DEPTH = 100_000.0  # more jobs than there are: the papers plan all
_THESIS: dict[str, float | str] = {"preset": "thesis", "depth": _DEPTH}
_DU_2010: dict[str, float | str] = {"preset": "du2010", "depth": _DEPTH}
_COLUMNS: _Columns = {
    "fcfs": ("fcfs", {}),
    "easy": ("easy", {}),
    "fb-unmod": ("fb-unmod", {"preset": "thesis"}),
    "eg-edf": ("eg-edf", _THESIS),
    "tabu": ("tabu", _THESIS),
}
_READINGS: _Columns = {
    **{policy: _COLUMNS[policy] for policy in ("easy", "fb-unmod", "eg-edf")},
    "eg-edf, pairs": ("eg-edf", _DU_2010),
}
_TABU_READINGS: _Columns = {
    f"tabu, {stop}": ("tabu", {**_THESIS, "stop": stop}) for stop in ("late", "rounds")
}
# Du 2010 states no inter-arrival. At 7 s about as many of 3,000 jobs are late as there.
_GRID_INTER_ARRIVAL = 7
# an insertion takes a tenth of the time if candidates are compared as in the thesis
_SEARCHES_WITH_PLAN: _Columns = {
    f"{policy}, plan": (policy, {**_DU_2010, "compare": "plan"}) for policy in ("tabu", "rcbo")
}
_SEARCHES: _Columns = {
    **{policy: (policy, _DU_2010) for policy in ("tabu", "rcbo")},
    **_SEARCHES_WITH_PLAN,
}


def _cases(
    generators: Mapping[str, synthetic.UniformGenerator], columns: _Columns
) -> list[SimulationCase]:
    return [
        SimulationCase(
            row,
            column,
            SeededScenario(generator),
            SimulationSettings(policy=policy, meta_policy=PUSH_POLICY, parameters=parameters),
        )
        for row, generator in generators.items()
        for column, (policy, parameters) in columns.items()
    ]


def _cases_of_table_13(
    inter_arrivals: Sequence[int], columns: _Columns, jobs: int = synthetic.PLANS.jobs
) -> list[SimulationCase]:
    generators = {
        f"inter-arrival {seconds}": replace(synthetic.PLANS, jobs=jobs, inter_arrival=seconds)
        for seconds in inter_arrivals
    }
    return _cases(generators, columns)


_TIMED_JOBS = 600  # a fifth of those of the thesis


PLANS = Experiment(
    name="plans",
    about="Plans against queues under five loads",
    source="Pasquali 2008, Table 13, Figures 39 and 40",
    runs=20,
    baseline="fb-unmod",
    figures={
        "late": late_percent,
        "system_usage": lambda s: 100 * metrics.system_usage(s),
        "slowdown": lambda s: metrics.mean(map(metrics.slowdown, s.jobs)),
    },
    cases=partial(_cases_of_table_13, (1, 2, 3, 4, 5), _COLUMNS),
    quantity=INTER_ARRIVAL,
)


PLAN_TIMES = replace(
    PLANS,
    name="plan-times",
    about=f"Processor time of plans and queues, {_TIMED_JOBS} jobs",
    source="Pasquali 2008, Table 13, Figure 40",
    figures={
        "scheduler, s": lambda s: s.policy_seconds,
        "pass, ms": lambda s: 1e3 * s.policy_seconds / s.pass_count,
    },
    cases=partial(_cases_of_table_13, (1, 3, 5), _COLUMNS, _TIMED_JOBS),
)


PLAN_READINGS = replace(
    PLANS,
    name="plan-readings",
    about="EG-EDF with candidates compared as each source prints it",
    source="Pasquali 2008, §5.2, Table 13; Du 2010, §2.3.3",
    cases=partial(_cases_of_table_13, (2, 5), _READINGS),
)


TABU_READINGS = replace(
    PLANS,
    name="tabu-readings",
    about="Tabu Search that ends as each source prints it",
    source="Pasquali 2008, §5.2.2, Table 13; Du 2010, §4",
    baseline="tabu, late",
    figures={**PLANS.figures, "iterations": lambda s: s.search_iterations},
    cases=partial(_cases_of_table_13, (_GRID_INTER_ARRIVAL,), _TABU_READINGS),
)


def _grid_cases(sizes: Sequence[int], columns: _Columns) -> list[SimulationCase]:
    generators = {
        f"{number:,} jobs": replace(synthetic.PLANS, jobs=number, inter_arrival=_GRID_INTER_ARRIVAL)
        for number in sizes
    }
    return _cases(generators, columns)


def _utilisation(schedule: Schedule) -> float:
    """Return the percentage of processor seconds in use from the first to the last job."""
    used = sum(p.cpus * p.run_time for p in schedule.jobs)
    cpus = sum(cluster.cpus for cluster in schedule.clusters)
    return 100 * used / (cpus * metrics.makespan(schedule.jobs))


GRID_PLANS = Experiment(
    name="grid-plans",
    about="Tabu Search against RCBO",
    source="Du 2010, Tables 5-1 to 5-5",
    runs=10,
    baseline="tabu",
    figures={
        "makespan, s": lambda s: metrics.makespan(s.jobs),
        "nondelayed": lambda s: sum(metrics.tardiness(p) == 0 for p in s.jobs),
        "tardiness, s": lambda s: sum(map(metrics.tardiness, s.jobs)),
        "utilisation, %": _utilisation,
        "iterations": lambda s: s.search_iterations,
        "planning, s of CPU": lambda s: s.policy_seconds,
    },
    cases=partial(_grid_cases, (3_000, 12_000), _SEARCHES),
    quantity="jobs",
)
GRID_PLANS_LARGE = replace(
    GRID_PLANS,
    name="grid-plans-large",
    about="Tabu Search against RCBO, 30,000 and 60,000 jobs",
    baseline="tabu, plan",
    cases=partial(_grid_cases, (30_000, 60_000), _SEARCHES_WITH_PLAN),
)
