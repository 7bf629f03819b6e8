"""The comparison of knapsacks: instances of a simulation, and the figures of both choices."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest

pytest.importorskip("scipy")

from metasched.laboratory.experiments.catalogue import EXPERIMENTS
from metasched.laboratory.experiments.knapsacks import (
    KnapsackInstance,
    meet_instances,
    solve_instance,
)
from metasched.laboratory.simulate import synthetic
from metasched.policies.local.convergent.knapsack import choose_exact, choose_greedy


def test_instances_are_those_of_a_simulation() -> None:
    small = replace(
        synthetic.CONVERGENT, machines=(6,), jobs=40, inter_arrival=20, ratio=(0.3, 0.4)
    )
    instances = meet_instances(small.generate("small", 1), count=5)
    assert len(instances) == 5
    for values, amounts, capacities in instances:
        assert len(values) == len(amounts) <= 40
        assert (amounts <= capacities).all()  # each fits alone ...
        assert (amounts.sum(axis=0) > capacities).all()  # ... and all together fit no licence


def test_both_choices_of_an_instance_are_compared() -> None:
    instance = KnapsackInstance(
        np.array([10.0, 9.0, 9.0]), np.array([[2.0], [1.0], [1.0]]), np.array([2.0])
    )
    best = max(
        instance.values[list(chosen)].sum()
        for chosen in chain.from_iterable(combinations(range(3), size) for size in range(1, 4))
        if instance.amounts[list(chosen)].sum() <= 2
    )
    assert instance.values[choose_exact(*instance)].sum() == best == 18
    solved = solve_instance(instance)
    assert solved.value == pytest.approx(100 * instance.values[choose_greedy(*instance)].sum() / 18)
    assert (solved.usage, solved.exact_usage) == (100, 100)


def test_the_experiment_has_the_ratios_of_the_thesis() -> None:
    cases = EXPERIMENTS["convergent-exact"].cases()
    assert [case.row for case in cases] == [f"ratio {low}-{low + 5}%" for low in (40, 45, 50, 55)]
    workload, (cluster,) = cases[0].scenario(1)
    assert (len(workload.entries), len(cluster.machines), len(cluster.licences)) == (1000, 100, 40)
