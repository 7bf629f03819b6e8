"""Several policies on the same workloads, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metasched.experiments.harness import Result
from metasched.simulate import metrics
from metasched.simulate.settings import SettingError, read_settings, read_workload, simulate

COMPARED = (
    "makespan",
    "mean_wait",
    "mean_flow",
    "mean_bounded_slowdown",
    "longest_wait",
    "utilisation",
    "missed_deadlines",
    "mean_tardiness",
    "licence_usage",
    "moves",
)


def compare(
    workload: str,
    policies: Sequence[str],
    words: Sequence[str],
    clusters: str | None,
    jobs: str | None,
    seeds: Sequence[int],
    progress: Callable[[int], None] | None = None,
) -> list[Result]:
    """The figures of each policy with each seed; the first policy is what others are set beside.

    The words are those of the command. UserError if one is wrong, or a policy is named twice.
    """
    if twice := next((name for name in policies if policies.count(name) > 1), None):
        raise SettingError(f"{twice} is named twice, --policy; name each once")
    values: dict[str, list[dict[str, Any]]] = {name: [] for name in policies}
    chosen = [
        (name, read_settings(name, words, seed, clusters)) for name in policies for seed in seeds
    ]
    for name, settings in chosen:
        read, described = read_workload(workload, clusters, jobs, settings)
        schedule = simulate(read, described, settings)
        values[name].append(metrics.summary(schedule, name, 0.0))
        if progress is not None:
            progress(1)
    first = policies[0]
    return [
        Result(
            *("", name, figure),
            tuple(float(figures[figure]) for figures in values[name]),
            None,
            None if name == first else tuple(float(figures[figure]) for figures in values[first]),
        )
        for figure in COMPARED
        for name in policies
    ]
