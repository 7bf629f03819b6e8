"""Comparison of several policies on the same workloads, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from metasched.laboratory.experiments.harness import FigureResult
from metasched.laboratory.simulate import metrics
from metasched.laboratory.simulate.settings import (
    SettingError,
    read_settings,
    read_workload,
    simulate,
)

COMPARED_FIGURES = (
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
RESERVATION_FIGURES = ("refused_share", "kept_share", "mean_wait_of_others")


def compare(
    workload: str,
    policies: Sequence[str],
    assignments: Sequence[str],
    clusters: str | None,
    jobs: str | None,
    seeds: Sequence[int],
    progress: Callable[[int], None] | None = None,
    reservations: Path | None = None,
) -> list[FigureResult]:
    """Simulate each policy with each seed; return its figures, with the first policy as baseline.

    The arguments come from the command. UserError for an invalid argument or a repeated policy.
    """
    if duplicate := next((name for name in policies if policies.count(name) > 1), None):
        raise SettingError(f"{duplicate} is named twice, --policy; name each once")
    values: dict[str, list[dict[str, Any]]] = {name: [] for name in policies}
    simulations = [
        (name, read_settings(name, assignments, seed, clusters, reservations=reservations))
        for name in policies
        for seed in seeds
    ]
    for name, settings in simulations:
        loaded_workload, loaded_clusters = read_workload(workload, clusters, jobs, settings)
        schedule = simulate(loaded_workload, loaded_clusters, settings)
        summary = metrics.summary(schedule, name, 0.0)
        values[name].append(summary | summary.get("reservations", {}))
        if progress is not None:
            progress(1)
    baseline = policies[0]
    figures: tuple[str, ...] = COMPARED_FIGURES
    if all("kept_share" in summary for name in policies for summary in values[name]):
        figures += RESERVATION_FIGURES

    def values_of(name: str, figure: str) -> tuple[float, ...]:
        return tuple(float(figures[figure]) for figures in values[name])

    return [
        FigureResult(
            row="",
            column=name,
            figure=figure,
            values=values_of(name, figure),
            published=None,
            baseline=None if name == baseline else values_of(baseline, figure),
        )
        for figure in figures
        for name in policies
    ]
