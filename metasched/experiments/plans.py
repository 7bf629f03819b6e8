"""Experiment: policies with a plan of the whole queue; Pasquali 2008, §5.2, Figures 39 and 40.

docs/experiments/settings.md documents the choices that the text leaves open.
"""

from __future__ import annotations

from dataclasses import replace

from metasched.experiments.harness import Experiment, SimulationCase, late_percent
from metasched.experiments.pasquali2008 import PUSH_POLICY, SeededScenario
from metasched.simulate import metrics, synthetic
from metasched.simulate.settings import SimulationSettings

_DEPTH = 100_000.0  # more jobs than there are: the papers plan all
_PARAMETERS: dict[str, dict[str, float | str]] = {  # of each policy
    "fcfs": {},
    "easy": {},
    "fb-unmod": {"preset": "thesis"},
    "eg-edf": {"depth": _DEPTH},
    "tabu": {"depth": _DEPTH},
}


def _plans() -> list[SimulationCase]:
    return [
        SimulationCase(
            f"inter-arrival {seconds}",
            policy,
            SeededScenario(replace(synthetic.PLANS, inter_arrival=seconds)),
            SimulationSettings(policy=policy, meta_policy=PUSH_POLICY, parameters=parameters),
        )
        for seconds in (1, 2, 3, 4, 5)
        for policy, parameters in _PARAMETERS.items()
    ]


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
    cases=_plans,
)
