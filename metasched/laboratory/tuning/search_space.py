"""The search space of tuning: which keys of a policy are tried, with which values. Pure.

Values are round numbers on a grid, so that a tuned policy can be read and discussed. The present
policy lies on the grid too. Keys that change nothing for the jobs and clusters are left out: each
would make the search longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from metasched.config.policy_words import values_of
from metasched.errors import UserError, quote_for_error
from metasched.laboratory.tuning.inputs import TuningInputs
from metasched.policies.policy import Policy
from metasched.policies.policy_keys import POLICY_KEYS

Value = float | str | bool
_WEIGHTS: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
# Keys whose best values depend on the jobs. Base values of classes, `max_priority` and `reserve`
# are decisions of a site about whom it serves.
GRID: Final[Mapping[str, tuple[Value, ...]]] = {
    "weights.deadline": _WEIGHTS,
    "weights.licence": _WEIGHTS,
    "weights.user": _WEIGHTS,
    "window": (10, 30, 100, 300, 1000),
    "load": tuple(POLICY_KEYS["load"].choices),
    "ordering": tuple(POLICY_KEYS["ordering"].choices),
    "tolerance": (0.0, 0.01, 0.03, 0.1, 0.3),
    "pull": (False, True),
    "pull_after": (3.0, 30.0, 300.0, 1800.0),
    "send": tuple(POLICY_KEYS["send"].choices),
    "patience": (60.0, 600.0, 3600.0),
    "age": (0.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 48 * 3600.0),
}


@dataclass(frozen=True)
class SearchSpace:
    """The grid of a study: the values of each tried key, numbers in ascending order."""

    present: Policy
    grid: Mapping[str, tuple[Value, ...]]

    def present_indexes(self) -> dict[str, int]:
        """Return the point of the present policy."""
        values = values_of(self.present)
        return {key: options.index(values[key]) for key, options in self.grid.items()}

    def values(self, indexes: Mapping[str, int]) -> dict[str, Value]:
        """Return the values of a point. ValueError if it is outside the grid."""
        if indexes.keys() != self.grid.keys() or any(
            not 0 <= index < len(self.grid[key]) for key, index in indexes.items()
        ):
            raise ValueError("a trial outside the search space")
        return {key: self.grid[key][index] for key, index in indexes.items()}

    def policy(self, indexes: Mapping[str, int]) -> Policy:
        """Return the policy of a point; ValueError as of `values`.

        Keys that are not tried keep their values, and so do those without effect beside the others.
        """
        changes: dict[str, Any] = {}
        weights = dict(self.present.weights)
        for key, value in self.values(indexes).items():
            table, _, name = key.partition(".")
            if name:
                weights[name] = float(value)
            else:
                changes[table] = value
        policy = replace(self.present, **changes, weights=weights)
        if policy.send == "late":
            policy = replace(policy, pull=self.present.pull)
        if not policy.pull_enabled:
            policy = replace(policy, pull_after=self.present.pull_after)
        if not weights.get("deadline", 1.0):
            policy = replace(policy, window=self.present.window)
        return policy


def make_search_space(inputs: TuningInputs, keys: Sequence[str] = ()) -> SearchSpace:
    """Return the grid of these keys; (): of all that can matter. UserError for an unknown key."""
    for key in keys:
        if key not in GRID:
            close = get_close_matches(key, GRID, n=1)
            remedy = f"write {close[0]}" if close else f"available are {', '.join(GRID)}"
            raise UserError(f"unknown key {quote_for_error(key)}, --keys; {remedy}")
    present = values_of(inputs.present)
    return SearchSpace(
        inputs.present,
        {key: _with_present(GRID[key], present[key]) for key in (keys or _useful_keys(inputs))},
    )


def _with_present(options: tuple[Value, ...], value: Value) -> tuple[Value, ...]:
    if value in options:
        return options
    # words and booleans are all in the grid
    return tuple(sorted((*options, value)))


def _useful_keys(inputs: TuningInputs) -> list[str]:
    jobs = [entry.job for entry in inputs.workload.entries]
    has_deadlines = any(job.deadline is not None for job in jobs)
    useless = set()
    if not has_deadlines:
        useless |= {"weights.deadline", "window"}
    if not any(job.licences for job in jobs):
        useless.add("weights.licence")
    if len({(job.user_class, job.owner_priority) for job in jobs}) < 2:
        useless.add("weights.user")
    if len(inputs.clusters) < 2:
        useless |= {"load", "ordering", "tolerance", "pull", "pull_after"}
    if not inputs.settings.licence_pools and not inputs.settings.pooled:
        useless.add("patience")
    return [key for key in GRID if key not in useless]
