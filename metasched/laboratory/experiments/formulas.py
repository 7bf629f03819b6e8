"""The presets, formulas and constants of the policies in an experiment, to be printed beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from metasched.laboratory.experiments.harness import ExperimentCase, SimulationCase
from metasched.laboratory.experiments.knapsacks import KnapsackCase
from metasched.laboratory.experiments.pass_times import PassTimesCase
from metasched.policies.local.convergent.weights import (
    PREEMPTIVE_OPTIMAL,
    VARIANT_NAMES,
    ConvergentWeights,
)
from metasched.policies.local.planning import EarliestGap, OptimisedPlan, TabuPlan
from metasched.policies.local.presets import expand_preset
from metasched.policies.local.weights import MODIFIED, UNMODIFIED, Weights, make_weights

_RUN_TIMES = {  # nxt, by `run`
    "estimate": "the estimate",
    "fastest": "estimate x benchmark / benchmark of the cluster's fastest machine",
    "best": "the time on the fastest machine that can run the job",
}
_LATE = {"zero": "0", "least": "`least`"}
_LONGEST = {"queue": "the longest time of all jobs", "job": "the job's longest time"}
_DISCARDED = {"return": "return where they fit", "wait": "wait for the next plan"}
_LATE_MACHINES = {
    "none": "machines that miss the deadline have no share while another meets it",
    "printed": "machines that miss the deadline have a share, as printed",
}


_PLANS = {
    EarliestGap.name: "EG-EDF",
    TabuPlan.name: "EG-EDF and Tabu Search",
    OptimisedPlan.name: "EG-EDF and RCBO",
}
_COMPARED = {"plan": "with the plan without the job", "pairs": "in pairs with the best so far"}
_STOP = {"late": "ends", "rounds": "begins again with all machines"}


def describe_formulas(cases: Sequence[ExperimentCase]) -> list[str]:
    """Return a line of Markdown for each reading of a policy, with the columns that have it.

    Policies with a single reading have none.
    """
    columns: dict[str, dict[str, None]] = {}
    for case in cases:
        policy, parameters = _local_policy(case)
        if formula := _describe(policy, expand_preset(policy, parameters)):
            preset = f"preset `{parameters['preset']}`" if "preset" in parameters else "no preset"
            named = f"{formula[0]}, {preset}. {formula[1]}."
            columns.setdefault(named, {})[f"`{case.column}`"] = None
    return [f"{', '.join(named)}: {formula}" for formula, named in columns.items()]


def _local_policy(case: ExperimentCase) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters of the local policy; an empty name if there is none."""
    match case:
        case SimulationCase():
            return case.settings.policy, case.settings.parameters
        case PassTimesCase():
            return case.column, {}
        case KnapsackCase():
            return PREEMPTIVE_OPTIMAL, {}
    return "", {}


def _describe(policy: str, parameters: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the title of a policy and its formula; None if it has a single reading."""
    if policy in (MODIFIED, UNMODIFIED):
        return "Flexible Backfilling", _flexible(make_weights(parameters))
    if policy in VARIANT_NAMES:
        return "Convergent Scheduling", _convergent(ConvergentWeights(**parameters))
    if policy in _PLANS:
        return _PLANS[policy], _plan(policy, parameters)
    return None


def _flexible(weights: Weights) -> str:
    return (
        f"A deadline is worth `least` while now + nxt <= deadline - lead x nxt. From there it "
        f"rises to `most` at the deadline; after it, it is worth {_LATE[weights.late]}. nxt is "
        f"{_RUN_TIMES[weights.run]}. {_constants(weights)}"
    )


def _convergent(weights: ConvergentWeights) -> str:
    return (
        f"A deadline has the urgency `least` while now + nxt <= deadline - lead x nxt. From there "
        f"it rises to `most` at the deadline; after it, it is `least`. nxt is the time on each "
        f"machine. (3.10) divides it; {_LATE_MACHINES[weights.late]}. Shortness is relative to "
        f"{_LONGEST[weights.longest]}. Jobs that the knapsack discards "
        f"{_DISCARDED[weights.discarded]}. {_constants(weights)}"
    )


def _plan(policy: str, parameters: Mapping[str, Any]) -> str:
    compared = _COMPARED[parameters.get("compare", "plan")]
    text = (
        f"Candidates of an insertion are compared {compared} by (makespan gain) / makespan + "
        f"(gain of jobs in time) / max(1, jobs in time)"
    )
    if policy == OptimisedPlan.name:
        return f"{text}; those of a move with late jobs in place of jobs in time"
    if policy == TabuPlan.name:
        return f"{text}. Without late jobs a search {_STOP[parameters.get('stop', 'late')]}"
    return text


def _constants(weights: Weights | ConvergentWeights) -> str:
    values = ((field.name, getattr(weights, field.name)) for field in fields(weights))
    return ", ".join(f"{name} {value:g}" for name, value in values if isinstance(value, float))
