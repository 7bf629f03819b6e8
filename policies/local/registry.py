"""Local policies by the names that configuration and commands know them by. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import partial

from metasched.policies.local.conservative import Conservative
from metasched.policies.local.orders import EASY, EDF, FCFS, LSF, SJF, FairShare, FirstFit, Priority
from metasched.policies.local.queueing import Policy
from metasched.policies.local.weights import MODIFIED, UNMODIFIED, Weights

Parameters = Mapping[str, float | str]

DEFAULT = UNMODIFIED
WEIGHTS = tuple(field.name for field in fields(Weights))


def _flexible(
    name: str, weights: Weights | None = None, licences: Mapping[str, int] | None = None
) -> Policy:
    # with numpy, which only these need
    from metasched.policies.local.flexible_backfilling import FlexibleBackfilling, KeptReservation

    kind = KeptReservation if name == UNMODIFIED else FlexibleBackfilling
    return kind(weights, licences)


POLICIES: dict[str, Callable[[], Policy]] = {
    **{
        policy.name: policy
        for policy in (FCFS, FirstFit, LSF, SJF, EDF, EASY, Conservative, Priority, FairShare)
    },
    **{name: partial(_flexible, name) for name in (MODIFIED, UNMODIFIED)},
}
PARAMETERS: dict[str, tuple[str, ...]] = {
    LSF.name: ("period",),
    FairShare.name: ("half_life",),
    MODIFIED: WEIGHTS,
    UNMODIFIED: WEIGHTS,
}


def make(
    name: str, parameters: Parameters | None = None, licences: Mapping[str, int] | None = None
) -> Policy:
    """A new object of the policy, for one cluster with these copies of licences.

    ValueError for an unknown name, a parameter that the policy does not have, or a bad value.
    """
    given = dict(parameters or {})
    if name not in POLICIES:
        close = get_close_matches(name, POLICIES, n=1)
        mend = f'write "{close[0]}"' if close else f"known are {', '.join(POLICIES)}"
        raise ValueError(f'unknown policy "{name}"; {mend}')
    known = PARAMETERS.get(name, ())
    if foreign := [key for key in given if key not in known]:
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise ValueError(f'policy {name} has no parameter "{foreign[0]}"; {there}')
    if known is WEIGHTS:
        return _flexible(name, Weights(**given), licences)  # type: ignore[arg-type]
    return POLICIES[name](**given)
