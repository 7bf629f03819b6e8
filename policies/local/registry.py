"""Registry of local policies, by the names used in configuration and commands. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from metasched.policies.local.conservative import Conservative
from metasched.policies.local.convergent.weights import (
    INCREMENTAL,
    OPTIMAL,
    PREEMPTIVE_INCREMENTAL,
    PREEMPTIVE_OPTIMAL,
    VARIANT_NAMES,
    ConvergentWeights,
)
from metasched.policies.local.exclusion import ExcludablePolicy
from metasched.policies.local.orders import (
    EASY,
    EDF,
    FCFS,
    LSF,
    SJF,
    BoundedEDF,
    BoundedSJF,
    FairShare,
    FirstFit,
    Priority,
)
from metasched.policies.local.planning import EarliestGap, OptimisedPlan, TabuPlan
from metasched.policies.local.preemption import PreemptivePolicy
from metasched.policies.local.preemptive_orders import (
    PreemptiveEDF,
    PreemptiveLSF,
    PreemptivePriority,
    PreemptiveSJF,
)
from metasched.policies.local.presets import PRESETS, expand_preset
from metasched.policies.local.queueing import LocalPolicy
from metasched.policies.local.weights import MODIFIED, UNMODIFIED, Weights, make_weights

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Parameters = Mapping[str, float | str]

DEFAULT_POLICY = UNMODIFIED
POLICY_GROUP = "metasched.policies"  # entry points of policies of other packages
_WEIGHT_NAMES = tuple(field.name for field in fields(Weights))
_CONVERGENT_WEIGHT_NAMES = tuple(field.name for field in fields(ConvergentWeights))


def _make_flexible(
    name: str, weights: Weights | None = None, licences: Mapping[str, int] | None = None
) -> LocalPolicy:
    # imported here because only these policies need numpy
    from metasched.policies.local.flexible_backfilling import (
        FlexibleBackfilling,
        UnmodifiedFlexibleBackfilling,
    )

    policy_class = UnmodifiedFlexibleBackfilling if name == UNMODIFIED else FlexibleBackfilling
    return policy_class(weights, licences)


def _make_convergent(
    name: str,
    weights: ConvergentWeights | None = None,
    licences: Mapping[str, int] | None = None,
) -> LocalPolicy:
    from metasched.policies.local.convergent.policies import VARIANTS  # needs SciPy

    return VARIANTS[name](weights, licences)


_PREEMPTIVE_ORDERS = (PreemptivePriority, PreemptiveEDF, PreemptiveSJF, PreemptiveLSF)
WITHOUT_PREEMPTION = {  # the nearest policy that suspends no job, by preemptive policy
    PreemptivePriority.name: Priority.name,
    PreemptiveEDF.name: EDF.name,
    PreemptiveSJF.name: SJF.name,
    PreemptiveLSF.name: LSF.name,
    PREEMPTIVE_INCREMENTAL: INCREMENTAL,
    PREEMPTIVE_OPTIMAL: OPTIMAL,
}
POLICIES: dict[str, Callable[[], LocalPolicy]] = {
    **{
        policy.name: policy
        for policy in (
            *(FCFS, FirstFit, LSF, SJF, EDF, BoundedSJF, BoundedEDF),
            *(EASY, Conservative, Priority, FairShare),
            *(EarliestGap, TabuPlan, OptimisedPlan),
            *_PREEMPTIVE_ORDERS,
        )
    },
    **{name: partial(_make_flexible, name) for name in (MODIFIED, UNMODIFIED)},
    **{name: partial(_make_convergent, name) for name in VARIANT_NAMES},
}
_PLAN = ("compare", "depth")
_SEARCH = (*_PLAN, "every", "iterations", "memory")
_PARAMETERS: dict[str, tuple[str, ...]] = {
    LSF.name: ("period",),
    FairShare.name: ("half_life",),
    BoundedSJF.name: ("starving_after",),
    BoundedEDF.name: ("starving_after",),
    EarliestGap.name: _PLAN,
    TabuPlan.name: (*_SEARCH, "stop"),
    OptimisedPlan.name: _SEARCH,
    MODIFIED: _WEIGHT_NAMES,
    UNMODIFIED: _WEIGHT_NAMES,
    **dict.fromkeys(VARIANT_NAMES, _CONVERGENT_WEIGHT_NAMES),
}
PARAMETERS = {
    policy: ("preset", *names) if policy in PRESETS else names
    for policy, names in _PARAMETERS.items()
}
TEXT_PARAMETERS = (  # whose values are words
    *("preset", "run", "late", "longest", "discarded", "knapsack", "compare", "stop"),
)


def _find_factory(name: str) -> Callable[..., LocalPolicy] | None:
    """Return the factory of a policy, of metasched or of another installed package.

    ValueError if the package cannot be imported.
    """
    return POLICIES[name] if name in POLICIES else _load_factory(name)


@cache  # all installed packages are searched
def _entry_points(name: str) -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # imported here: few sites have such packages

    return tuple(entry_points(group=POLICY_GROUP, name=name))


@cache
def _load_factory(name: str) -> Callable[..., LocalPolicy] | None:
    for entry in _entry_points(name):
        try:
            factory: Callable[..., LocalPolicy] = entry.load()
        except Exception as error:
            problem = f"policy {name} of {entry.value} cannot be imported"
            raise ValueError(f"{problem} ({type(error).__name__}: {error})") from error
        return factory
    return None


def check_policy_name(name: str) -> None:
    """Raise ValueError for an unknown name, or if the policy needs SciPy and it is missing.

    No policy of another package is imported.
    """
    if name not in POLICIES and not _entry_points(name):
        close = get_close_matches(name, POLICIES, n=1)
        remedy = f'write "{close[0]}"' if close else f"available are {', '.join(POLICIES)}"
        raise ValueError(f'unknown policy "{name}"; {remedy}')
    # SciPy is only searched for: its import takes 30 MB, which a cluster without jobs does not need
    if name in VARIANT_NAMES and find_spec("scipy") is None:
        raise ValueError(f"policy {name} needs SciPy; install it with pip install 'metasched[lab]'")


def check_suspends_none(name: str) -> None:
    """Raise ValueError if the policy suspends jobs, for clusters that cannot."""
    if substitute := WITHOUT_PREEMPTION.get(name):
        raise ValueError(
            f"policy {name} suspends running jobs, which only simulated clusters can; "
            f'write "{substitute}"'
        )


def has_parameter(name: str, key: str, value: float | str) -> bool:
    """Return whether the policy of that name has a parameter; a preset must be one of its own."""
    return value in PRESETS.get(name, ()) if key == "preset" else key in PARAMETERS.get(name, ())


def keeps_order(name: str) -> bool:
    """Return whether no job overtakes another under the policy of that name."""
    return getattr(_find_factory(name), "in_order", False)


def keeps_windows(name: str) -> bool:
    """Return whether jobs stay out of reserved windows under the policy of that name."""
    is_flexible = name in (MODIFIED, UNMODIFIED)  # their class needs numpy
    return is_flexible or getattr(_find_factory(name), "keeps_windows", False)


def make_excludable(
    name: str, parameters: Parameters | None = None, licences: Mapping[str, int] | None = None
) -> LocalPolicy:
    """Create a policy for a simulation; FCFS decides where a policy of another package fails.

    ValueError as `make_policy`.
    """
    policy = make_policy(name, parameters, licences)
    if name in POLICIES or isinstance(policy, PreemptivePolicy):
        return policy
    return ExcludablePolicy(name, policy)


def make_policy(
    name: str, parameters: Parameters | None = None, licences: Mapping[str, int] | None = None
) -> LocalPolicy:
    """Create the policy for a cluster with these numbers of licences.

    ValueError for an unknown name, a parameter that the policy does not have, or a bad value.
    """
    arguments = dict(parameters or {})
    check_policy_name(name)
    allowed = PARAMETERS.get(name, ())
    if unknown := [key for key in arguments if key not in allowed]:
        remedy = f"it has {', '.join(allowed)}" if allowed else "it has none"
        raise ValueError(f'policy {name} has no parameter "{unknown[0]}"; {remedy}')
    expanded: dict[str, Any] = expand_preset(name, arguments)
    if name in (MODIFIED, UNMODIFIED):
        return _make_flexible(name, make_weights(expanded), licences)
    if name in VARIANT_NAMES:
        return _make_convergent(name, ConvergentWeights(**expanded), licences)
    factory = _find_factory(name)
    assert factory is not None  # the name was checked
    return factory(**expanded)
