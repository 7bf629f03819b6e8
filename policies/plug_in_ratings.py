"""Heuristics of the site: plug-ins by entry point, and which of their values count. Pure.

Each is asked once per job, at its submission. It is excluded for a job if it raises or returns a
value out of range; it is excluded for all jobs if it cannot be loaded. The daemon asks in a process
(`metasched.plug_ins`), the simulator directly. The same rules hold for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from numbers import Real
from typing import Any, Final

import msgspec

from metasched.model.job import Job
from metasched.model.ratings import SiteRatings
from metasched.policies.heuristic import (
    ClusterTraits,
    Heuristic,
    PlacementHeuristic,
    RunTimeEstimator,
)
from metasched.policies.policy import PlugInSettings, Policy

MAX_PLUG_INS = 20  # of a policy
MAX_ERROR = 200  # characters of the reason of an exclusion
MIN_RUN_TIME = 1e-3  # seconds
MAX_RUN_TIME = 10 * 366 * 86400.0  # seconds


class PlugInKind(StrEnum):
    """What plug-ins decide on: their tables in the policy file, which are fields of `Policy`."""

    PRIORITY = "heuristics"
    PLACEMENT = "placement"
    RUN_TIME = "run_times"


ENTRY_POINT_GROUPS: Final[Mapping[PlugInKind, str]] = {
    PlugInKind.PRIORITY: "metasched.heuristics",
    PlugInKind.PLACEMENT: "metasched.placement",
    PlugInKind.RUN_TIME: "metasched.run_times",
}
INTERFACES: Final[Mapping[PlugInKind, type]] = {
    PlugInKind.PRIORITY: Heuristic,
    PlugInKind.PLACEMENT: PlacementHeuristic,
    PlugInKind.RUN_TIME: RunTimeEstimator,
}


class PlugInError(Exception):
    """A plug-in that cannot be used; the message gives problem and remedy in a line."""


class PlugIn(msgspec.Struct, frozen=True):
    """A plug-in as the policy names it."""

    kind: PlugInKind
    name: str  # of the entry point
    max_priority: int
    parameters: tuple[tuple[str, float], ...] = ()  # keywords of its class, with their values

    def __str__(self) -> str:
        return f"[{self.kind}.{self.name}]"


class Rating(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a plug-in for a job: a value, values by cluster, or an error."""

    value: float | None = None
    by_cluster: Mapping[str, float] | None = None
    error: str = ""  # why it is excluded


def plug_ins_of(policy: Policy) -> tuple[PlugIn, ...]:
    """Return the plug-ins of a policy that count: those with a weight above 0."""
    return tuple(
        PlugIn(kind, name, policy.max_priority, tuple(settings.parameters.items()))
        for kind in PlugInKind
        for name, settings in settings_of(policy, kind).items()
        if settings.weight > 0
    )


def settings_of(policy: Policy, kind: PlugInKind) -> Mapping[str, PlugInSettings]:
    """Return the plug-ins of a kind by name."""
    return {
        PlugInKind.PRIORITY: policy.heuristics,
        PlugInKind.PLACEMENT: policy.placement,
        PlugInKind.RUN_TIME: policy.run_times,
    }[kind]


def installed(kind: PlugInKind) -> tuple[str, ...]:
    """Return the names of the installed plug-ins of a kind; none is imported."""
    from importlib.metadata import entry_points  # all packages are searched

    return tuple(sorted(entry_points(group=ENTRY_POINT_GROUPS[kind]).names))


def load(plug_in: PlugIn) -> Any:
    """Import a plug-in and create it. PlugInError if that fails, whatever it raises."""
    from importlib.metadata import entry_points

    group = ENTRY_POINT_GROUPS[plug_in.kind]
    matches = list(entry_points(group=group, name=plug_in.name))
    if not matches:
        raise PlugInError(f"no entry point {plug_in.name} of {group}; install its package")
    try:
        created = matches[0].load()(**dict(plug_in.parameters))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as SystemExit
        raise PlugInError(f"{matches[0].value} cannot be created: {_line_of(error)}") from error
    interface = INTERFACES[plug_in.kind]
    if not isinstance(created, interface):
        raise PlugInError(
            f"{matches[0].value} is no {interface.__name__}; derive it from that class"
        )
    if isinstance(created, Heuristic):
        created.max_priority = plug_in.max_priority
    return created


def ask(plug_in: PlugIn, loaded: Any, job: Job, clusters: Sequence[ClusterTraits]) -> Rating:
    """Return the answer of a plug-in for a job; an error if it raises or its value is invalid."""
    try:
        if plug_in.kind is PlugInKind.PLACEMENT:
            rated = {
                cluster.name: _number(loaded.rating(job, cluster), str(cluster.name))
                for cluster in clusters
            }
            return checked(plug_in, Rating(by_cluster=rated), clusters)
        method = loaded.contribution if plug_in.kind is PlugInKind.PRIORITY else loaded.seconds
        return checked(plug_in, Rating(_number(method(job), "its value")), clusters)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as SystemExit
        return Rating(error=_line_of(error))


def checked(plug_in: PlugIn, rating: Rating, clusters: Sequence[ClusterTraits]) -> Rating:
    """Return a rating, or an error in its place if it has a value out of range."""
    if rating.error:
        return Rating(error=_shortened(rating.error))
    if plug_in.kind is PlugInKind.PLACEMENT:
        names, values = {cluster.name for cluster in clusters}, rating.by_cluster or {}
        if rating.value is not None or values.keys() != names:
            return Rating(error="it did not rate each cluster")
        for name, rated in values.items():
            if not 0 <= rated <= 1:
                return Rating(error=f"its rating of {name} is {rated:g}, not 0 to 1")
        return rating
    value = rating.value
    if value is None or rating.by_cluster is not None:
        return Rating(error="it returned no number")
    if plug_in.kind is PlugInKind.PRIORITY and not 0 <= value <= plug_in.max_priority:
        return Rating(error=f"its value is {value:g}, not 0 to {plug_in.max_priority}")
    if plug_in.kind is PlugInKind.RUN_TIME and not MIN_RUN_TIME <= value <= MAX_RUN_TIME:
        return Rating(
            error=f"its run time is {value:g} s, not {MIN_RUN_TIME:g} to {MAX_RUN_TIME:g}"
        )
    return rating


def ask_all(
    loaded: Iterable[tuple[PlugIn, Any]], job: Job, clusters: Sequence[ClusterTraits]
) -> dict[PlugIn, Rating]:
    """Ask plug-ins for a job. In place of a plug-in may stand the PlugInError of its loading."""
    return {
        plug_in: Rating(error=_line_of(instance))
        if isinstance(instance, PlugInError)
        else ask(plug_in, instance, job, clusters)
        for plug_in, instance in loaded
    }


def load_all(plug_ins: Iterable[PlugIn]) -> list[tuple[PlugIn, Any]]:
    """Load plug-ins; in place of an unusable plug-in is its PlugInError."""
    loaded: list[tuple[PlugIn, Any]] = []
    for plug_in in plug_ins:
        try:
            loaded.append((plug_in, load(plug_in)))
        except PlugInError as error:
            loaded.append((plug_in, error))
    return loaded


def rated_job(job: Job, ratings: Mapping[PlugIn, Rating], policy: Policy) -> Job:
    """Return a submitted job with its ratings, and its run time as estimators expect it.

    They count for jobs with a limit: without, managers may enforce the default time.
    """
    if not ratings:
        return job
    values: dict[PlugInKind, dict[str, Any]] = {kind: {} for kind in PlugInKind}
    excluded = {}
    for plug_in, rating in ratings.items():
        if rating.error:
            excluded[plug_in.name] = rating.error
        else:
            values[plug_in.kind][plug_in.name] = (
                rating.by_cluster if plug_in.kind is PlugInKind.PLACEMENT else rating.value
            )
    estimated, run_times = job.estimated, values[PlugInKind.RUN_TIME]
    if run_times and job.time_limit is not None:
        weights = {name: policy.run_times[name].weight for name in run_times}
        largest = max(weights.values())  # products of tiny weights would be 0
        shares = {name: weight / largest for name, weight in weights.items()}
        mean = math.fsum(shares[name] * run_times[name] for name in run_times)
        estimated = min(mean / math.fsum(shares.values()), job.estimated)
    return msgspec.structs.replace(
        job,
        estimated=estimated,
        ratings=SiteRatings(
            values[PlugInKind.PRIORITY], values[PlugInKind.PLACEMENT], run_times, excluded
        ),
    )


def _number(value: object, quantity: str) -> float:
    """Return a number as float, also a number of NumPy. TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{quantity} is {type(value).__name__}, not a number")
    return float(value)


def _line_of(error: BaseException) -> str:
    if isinstance(error, PlugInError):
        return _shortened(str(error))
    try:
        text = f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # of its own class, which may be broken as well
        text = type(error).__name__
    return _shortened(text)


def _shortened(text: str) -> str:
    """Return a text of a plug-in as a line without control characters."""
    line = "".join(c if c.isprintable() else " " for c in text[: MAX_ERROR + 1])
    return line if len(line) <= MAX_ERROR else line[: MAX_ERROR - 3] + "..."
