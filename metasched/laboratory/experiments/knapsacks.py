"""The greedy knapsack of Convergent Scheduling against an exact knapsack, on the same instances.

Pasquali 2008, Table 5. The instances are those that CS_ni_p meets in a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from metasched.laboratory.experiments.harness import Experiment
from metasched.laboratory.experiments.pasquali2008 import PUSH_POLICY
from metasched.laboratory.simulate import synthetic
from metasched.laboratory.simulate.engine import Simulation
from metasched.laboratory.simulate.metrics import mean
from metasched.laboratory.simulate.synthetic import Scenario

if TYPE_CHECKING:
    from metasched.policies.local.convergent.table import FloatArray, Mask

INSTANCES = 10  # of a run, evenly spread over its passes
_PUBLISHED = {  # percent of the copies in use, by ratio: greedy and exact, as far as legible
    (40, 45): {"usage": 82.0, "exact_usage": 87.0},
    (45, 50): {"usage": 84.0, "exact_usage": 88.0},
    (50, 55): {"usage": 87.0, "exact_usage": 89.0},
    (55, 60): {"exact_usage": 88.0},
}


@dataclass(frozen=True)
class KnapsackCase:
    """The instances of a ratio of licences to machines, solved by both."""

    low: int  # percent
    high: int

    @property
    def row(self) -> str:
        return f"ratio {self.low}-{self.high}%"

    @property
    def column(self) -> str:
        return "greedy"

    @property
    def published(self) -> Mapping[str, float]:
        return _PUBLISHED[self.low, self.high]

    def scenario(self, seed: int) -> Scenario:
        generator = replace(
            synthetic.CONVERGENT,
            machines=(100,),
            licences=40,
            jobs=1000,
            ratio=(self.low / 100, self.high / 100),
        )
        return generator.generate("table5", seed)

    def run(self, seed: int) -> list[SolvedInstance]:
        return [solve_instance(instance) for instance in meet_instances(self.scenario(seed))]


class KnapsackInstance(NamedTuple):
    """Jobs that ask for the same scarce licences: N jobs, L licences."""

    values: FloatArray  # N: mean preferences
    amounts: FloatArray  # N x L: requested copies
    capacities: FloatArray  # L: copies


class SolvedInstance(NamedTuple):
    """The greedy choice relative to the exact choice, in percent."""

    value: float  # of the exact choice's value
    usage: float  # copies in use, mean over licences
    exact_usage: float


def solve_instance(instance: KnapsackInstance) -> SolvedInstance:
    """Solve an instance with both. The exact choice may take half a minute."""
    from metasched.policies.local.convergent.knapsack import choose_exact, choose_greedy

    values, amounts, capacities = instance
    greedy, exact = choose_greedy(*instance), choose_exact(*instance)

    def usage(chosen: Mask) -> float:
        return 100 * float((amounts[chosen].sum(axis=0) / capacities).mean())

    value = 100 * float(values[greedy].sum() / values[exact].sum())
    return SolvedInstance(value, usage(greedy), usage(exact))


def meet_instances(scenario: Scenario, count: int = INSTANCES) -> list[KnapsackInstance]:
    """Return `count` of the instances in a simulation of CS_ni_p with the greedy knapsack."""
    from metasched.policies.local.convergent.knapsack import choose_greedy  # needs SciPy
    from metasched.policies.local.convergent.policies import PreemptiveOptimalConvergent

    met: list[KnapsackInstance] = []

    def solve(values: FloatArray, amounts: FloatArray, capacities: FloatArray) -> Mask:
        met.append(KnapsackInstance(values, amounts, capacities))
        return choose_greedy(values, amounts, capacities)

    workload, clusters = scenario
    Simulation(
        workload,
        clusters,
        PUSH_POLICY,
        lambda cluster: PreemptiveOptimalConvergent(licences=cluster.licences, solve=solve),
    ).run()
    step = max(1, len(met) // count)
    return met[step // 2 :: step][:count]


def _smallest(results: Sequence[SolvedInstance]) -> float:
    return min(result.value for result in results)


CONVERGENT_EXACT = Experiment(
    name="convergent-exact",
    about="The greedy knapsack of licences in percent of the exact one, on the same instances",
    source="Pasquali 2008, Tables 4, 5",
    runs=3,
    baseline="greedy",
    figures={
        "value": lambda results: mean(result.value for result in results),
        "smallest": _smallest,
        "usage": lambda results: mean(result.usage for result in results),
        "exact_usage": lambda results: mean(result.exact_usage for result in results),
    },
    cases=lambda: [KnapsackCase(low, high) for low, high in _PUBLISHED],
)
