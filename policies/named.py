"""Local policies by the names that configuration and commands know them by. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches

from metasched.policies.flexible import FlexibleBackfilling, KeptReservation, Weights
from metasched.policies.planning import Conservative
from metasched.policies.queueing import (
    EASY,
    EDF,
    FCFS,
    LSF,
    SJF,
    FairShare,
    FirstFit,
    Policy,
    Priority,
)

Parameters = Mapping[str, float | str]

DEFAULT = KeptReservation.name
WEIGHTS = tuple(field.name for field in fields(Weights))
POLICIES: dict[str, Callable[[], Policy]] = {
    policy.name: policy
    for policy in (
        FCFS,
        FirstFit,
        LSF,
        SJF,
        EDF,
        EASY,
        Conservative,
        Priority,
        FairShare,
        FlexibleBackfilling,
        KeptReservation,
    )
}
PARAMETERS: dict[str, tuple[str, ...]] = {
    LSF.name: ("period",),
    FairShare.name: ("half_life",),
    FlexibleBackfilling.name: WEIGHTS,
    KeptReservation.name: WEIGHTS,
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
        flexible = KeptReservation if name == KeptReservation.name else FlexibleBackfilling
        return flexible(Weights(**given), licences)  # type: ignore[arg-type]
    return POLICIES[name](**given)
