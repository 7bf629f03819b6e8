"""Experiments: dispatch by metasched compared with choices of users, on federations of traces.

Also on the clusters of Pasquali 2008, Table 6. Measurements are in docs/experiments/tables.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from metasched.laboratory.experiments.federation_file import read_federation
from metasched.laboratory.experiments.federations import SITES, Federation
from metasched.laboratory.experiments.harness import Experiment, SimulationCase, late_percent
from metasched.laboratory.experiments.pasquali2008 import SeededScenario
from metasched.laboratory.simulate import metrics, synthetic
from metasched.laboratory.simulate.engine import Schedule, ScheduledJob
from metasched.laboratory.simulate.schemes import SubmissionScheme
from metasched.laboratory.simulate.settings import SimulationSettings
from metasched.laboratory.simulate.synthetic import Scenario
from metasched.policies.policy import Policy

JOBS, SEEDS = 3000, 20
LOADS = (0.70, 0.85, 0.95)
_PAPER_LOAD, _OBSERVED_LOAD = Policy(load="paper"), Policy(load="observed")
SCHEMES: Mapping[str, tuple[Policy, SubmissionScheme]] = {
    # without metasched: users choose
    "sbatch -M": (_PAPER_LOAD, SubmissionScheme(user_choice="sbatch")),
    "foreseen": (_PAPER_LOAD, SubmissionScheme(user_choice="foreseen")),
    "home": (_PAPER_LOAD, SubmissionScheme(user_choice="home")),
    "random": (_PAPER_LOAD, SubmissionScheme(user_choice="random")),
    "duplicates": (_PAPER_LOAD, SubmissionScheme(user_choice="duplicates")),
    # metasched
    "paper": (replace(_PAPER_LOAD, pull=False), SubmissionScheme()),
    "observed": (replace(_OBSERVED_LOAD, pull=False), SubmissionScheme()),
    "plan": (replace(_PAPER_LOAD, pull=False), SubmissionScheme(planned_dispatch=True)),
    "paper+pull": (_PAPER_LOAD, SubmissionScheme()),
    "observed+pull": (_OBSERVED_LOAD, SubmissionScheme()),
    "plan+pull": (_PAPER_LOAD, SubmissionScheme(planned_dispatch=True)),
    "late": (replace(_OBSERVED_LOAD, send="late"), SubmissionScheme()),
}
_BASELINE = "sbatch -M"
_TABLE_6_SCHEMES = tuple(
    name for name in SCHEMES if name not in ("foreseen", "home", "plan", "plan+pull")
)
_LEASED_SCHEMES = ("paper", "observed", "paper+pull", "observed+pull")


def _cases(
    rows: Mapping[str, Callable[[int], Scenario]], local: SimulationSettings, names: Sequence[str]
) -> list[SimulationCase]:
    return [
        SimulationCase(
            row, name, scenario, replace(local, meta_policy=SCHEMES[name][0]), {}, SCHEMES[name][1]
        )
        for row, scenario in rows.items()
        for name in names
    ]


def _federations() -> list[SimulationCase]:
    rows = {
        f"{name} {load:.2f}": Federation(name, tuple(sites), JOBS, load)
        for name, sites in SITES.items()
        for load in LOADS
    }
    return _cases(rows, SimulationSettings(policy="easy"), list(SCHEMES))


def _cases_of_federation(path: Path) -> list[SimulationCase]:
    """Return cases on a federation of the user's own. UserError if the file is invalid."""
    file = read_federation(path, tuple(SCHEMES), _BASELINE)
    local = SimulationSettings(policy=file.local)
    policies = [
        SimulationCase(row, name, scenario, replace(local, meta_policy=policy))
        for row, scenario in file.rows.items()
        for name, policy in file.policies.items()
    ]
    return [*_cases(file.rows, local, file.schemes), *policies]


def _forecast_loads() -> list[SimulationCase]:
    """Return cases that compare placing by expected waits with placing by observed work."""
    rows = {
        f"{name} {LOADS[1]:.2f}": Federation(name, tuple(sites), JOBS, LOADS[1])
        for name, sites in SITES.items()
    }
    return [
        SimulationCase(
            row,
            f"{load}+pull" if pull else load,
            scenario,
            SimulationSettings(policy="easy", meta_policy=Policy(load=load, pull=pull)),
        )
        for row, scenario in rows.items()
        for load in ("observed", "forecast")
        for pull in (False, True)
    ]


def _half_direct() -> list[SimulationCase]:
    rows = {
        f"{name} {LOADS[1]:.2f}": Federation(name, tuple(sites), JOBS, LOADS[1], direct_share=0.5)
        for name, sites in SITES.items()
    }
    return _cases(rows, SimulationSettings(policy="easy"), list(SCHEMES))


def _machine_clusters() -> list[SimulationCase]:
    """Return cases on machines: each cluster has its own licences; leased licences are shared."""
    rows = {
        f"inter-arrival {seconds}": SeededScenario(
            replace(synthetic.TWO_LEVEL, inter_arrival=seconds)
        )
        for seconds in (5, 10)
    }
    local = SimulationSettings(policy="fb-unmod", parameters={"lead": 2.0})
    leased = [
        case._replace(column=f"{case.column}, leased", settings=replace(case.settings, pooled=True))
        for case in _cases(rows, local, _LEASED_SCHEMES)
    ]
    return [*_cases(rows, local, _TABLE_6_SCHEMES), *leased]


def _late_percent_by_margin(lowest: float, highest: float) -> Callable[[Schedule], float]:
    """Make a figure: percent late of the jobs whose margin / estimate is in [lowest, highest)."""

    def in_range(scheduled: ScheduledJob) -> bool:
        margin = scheduled.job.margin
        return margin is not None and lowest <= margin / scheduled.job.estimated < highest

    def figure(schedule: Schedule) -> float:
        return 100 * metrics.mean(
            metrics.tardiness(scheduled) > 0 for scheduled in schedule.jobs if in_range(scheduled)
        )

    return figure


def _mean_wait(direct: bool) -> Callable[[Schedule], float]:
    """Make a figure: mean wait in seconds of the jobs that bypass metasched, or of the others."""

    def figure(schedule: Schedule) -> float:
        return metrics.mean(
            scheduled.wait for scheduled in schedule.jobs if scheduled.entry.direct == direct
        )

    return figure


_WAIT_FIGURES: dict[str, Callable[[Schedule], float]] = {
    "wait, s": lambda s: metrics.mean(p.wait for p in s.jobs),
    "bounded slowdown": lambda s: metrics.mean(map(metrics.bounded_slowdown, s.jobs)),
    "late, %": late_percent,
}


def _left_out(schedule: Schedule) -> float:
    """Return the number of jobs that no cluster can run, or that a limit refuses."""
    return float(sum(schedule.dropped.values()))


_OTHER_FIGURES: dict[str, Callable[[Schedule], float]] = {
    "longest wait, h": lambda s: max(p.wait for p in s.jobs) / 3600,
    "moves per job": lambda s: metrics.mean(p.moves for p in s.jobs),
}
_MARGIN_FIGURES = {
    "late, margin < 2 limits, %": _late_percent_by_margin(0.0, 2.0),
    "late, margin 2-5 limits, %": _late_percent_by_margin(2.0, 5.0),
    "late, margin > 5 limits, %": _late_percent_by_margin(5.0, 1e9),
}
FEDERATED = (
    Experiment(
        name="better",
        about="Ways to choose a cluster, on federations of real traces at three loads",
        source="federations of SDSC-SP2 and KTH-SP2, of CERIT, of LCG",
        runs=SEEDS,
        baseline=_BASELINE,
        figures={**_WAIT_FIGURES, **_MARGIN_FIGURES, **_OTHER_FIGURES, "jobs left out": _left_out},
        cases=_federations,
        cases_of_federation=_cases_of_federation,
    ),
    Experiment(
        name="better-half",
        about="The same, half of the users submitting to their home cluster directly",
        source="federations of SDSC-SP2 and KTH-SP2, of CERIT, of LCG",
        runs=SEEDS,
        baseline=_BASELINE,
        figures={
            **_WAIT_FIGURES,
            "wait of those through us, s": _mean_wait(False),
            "wait of those past us, s": _mean_wait(True),
            **_OTHER_FIGURES,
        },
        cases=_half_direct,
    ),
    Experiment(
        name="better-forecast",
        about="The same, placing jobs by their expected waits",
        source="federations of SDSC-SP2 and KTH-SP2, of CERIT, of LCG",
        runs=10,
        baseline="observed+pull",
        figures={**_WAIT_FIGURES, **_OTHER_FIGURES},
        cases=_forecast_loads,
    ),
    Experiment(
        name="better-table6",
        about="The same on clusters of machines with licences",
        source="Pasquali 2008, Table 6",
        runs=SEEDS,
        baseline=_BASELINE,
        figures={**_WAIT_FIGURES, **_OTHER_FIGURES},
        cases=_machine_clusters,
    ),
)
