"""Self-optimisation of priorities on real traces with drawn deadlines and classes of users."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from metasched.laboratory.experiments.federations import Federation
from metasched.laboratory.experiments.harness import Experiment, SimulationCase, late_percent
from metasched.laboratory.experiments.local_policies import JOBS, NAMES, SITES
from metasched.laboratory.experiments.pasquali2008 import PUSH_POLICY
from metasched.laboratory.simulate import metrics
from metasched.laboratory.simulate.engine import Schedule
from metasched.laboratory.simulate.settings import SimulationSettings
from metasched.policies.policy import SelfOptimisation

_LOAD = 0.90
_TUNED = {  # parameter, by column
    "fixed": "",
    "adh": "base",
    "base-span": "base-span",
    "weight-deadline": "weight-deadline",
}


def _cases() -> list[SimulationCase]:
    cases = []
    for site in SITES:
        name = next(iter(site.clusters))
        window = Federation(name, (site,), JOBS, _LOAD)
        for column, parameter in _TUNED.items():
            tuned = {parameter: SelfOptimisation()} if parameter else {}
            policy = replace(PUSH_POLICY, self_optimising=tuned)
            settings = SimulationSettings(policy="priority", meta_policy=policy)
            cases.append(SimulationCase(f"{NAMES[name]} {_LOAD:.2f}", column, window, settings))
    return cases


def _commonest(schedule: Schedule) -> float:
    """Return the percentage of the jobs that have the commonest priority."""
    numbers = Counter(scheduled.priority for scheduled in schedule.jobs)
    return 100 * max(numbers.values()) / len(schedule.jobs)


SELF_OPTIMISED_TRACES = Experiment(
    name="self-optimising-traces",
    about="Self-optimised priorities on real traces with drawn deadlines and classes",
    source="SDSC-SP2, KTH-SP2, CERIT; a cluster each, local policy priority",
    runs=12,
    baseline="fixed",
    figures={
        "late, %": late_percent,
        "wait, s": lambda s: metrics.mean(p.wait for p in s.jobs),
        "longest wait, h": lambda s: max(p.wait for p in s.jobs) / 3600,
        "commonest priority, %": _commonest,
    },
    cases=_cases,
)
