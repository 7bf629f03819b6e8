"""The presets, formulas and constants of the policies in an experiment, to be printed beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from metasched.experiments.harness import ExperimentCase, SimulationCase
from metasched.experiments.knapsacks import KnapsackCase
from metasched.experiments.pass_times import PassTimesCase
from metasched.policies.local.convergent.weights import (
    PREEMPTIVE_OPTIMAL,
    VARIANT_NAMES,
    ConvergentWeights,
)
from metasched.policies.local.weights import MODIFIED, UNMODIFIED, Weights, make_weights

_RUN_TIMES = {  # nxt, by `run`
    "estimate": "the estimate",
    "fastest": "estimate x benchmark / benchmark of the cluster's fastest machine",
    "best": "the time on the fastest machine that can run the job",
}
_LATE = {"zero": "0", "least": "`least`"}
_LATE_MACHINES = {
    "none": "machines that miss the deadline have no share while another meets it",
    "printed": "machines that miss the deadline have a share, as printed",
}


def describe_formulas(cases: Sequence[ExperimentCase]) -> list[str]:
    """Return a line of Markdown for each reading of a policy, with the columns that have it.

    Policies with a single reading have none.
    """
    columns: dict[str, dict[str, None]] = {}
    for case in cases:
        policy, parameters = _local_policy(case)
        if policy in (MODIFIED, UNMODIFIED):
            formula = _flexible(parameters)
        elif policy in VARIANT_NAMES:
            formula = _convergent(ConvergentWeights(**parameters))
        else:
            continue
        columns.setdefault(formula, {})[f"`{case.column}`"] = None
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


def _flexible(parameters: dict[str, Any]) -> str:
    weights, preset = make_weights(parameters), parameters.get("preset")
    return (
        f"Flexible Backfilling, {f'preset `{preset}`' if preset else 'no preset'}. A deadline is "
        f"worth `least` while now + nxt <= deadline - lead x nxt. From there it rises to `most` at "
        f"the deadline; after it, it is worth {_LATE[weights.late]}. nxt is "
        f"{_RUN_TIMES[weights.run]}. {_constants(weights)}."
    )


def _convergent(weights: ConvergentWeights) -> str:
    return (
        f"Convergent Scheduling. A deadline has the urgency `least` while now + nxt <= deadline - "
        f"lead x nxt. From there it rises to `most` at the deadline; after it, it is `least`. nxt "
        f"is the time on each machine. (3.10) divides it; {_LATE_MACHINES[weights.late]}. "
        f"Shortness is relative to the longest time of all jobs. {_constants(weights)}."
    )


def _constants(weights: Weights | ConvergentWeights) -> str:
    values = ((field.name, getattr(weights, field.name)) for field in fields(weights))
    return ", ".join(f"{name} {value:g}" for name, value in values if isinstance(value, float))
