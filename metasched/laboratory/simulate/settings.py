"""Settings of `metasched simulate`: a workload, policies, `--set key=value`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from metasched.errors import UserError
from metasched.laboratory.simulate import swf, synthetic
from metasched.laboratory.simulate.cluster_specs import (
    parse_clusters,
    parse_fair_share,
    parse_licence_pools,
    parse_limits,
    pool_licences,
)
from metasched.laboratory.simulate.clusters import SimulatedCluster
from metasched.laboratory.simulate.engine import (
    THROUGH_METASCHED,
    LocalPolicyFactory,
    Schedule,
    Simulation,
)
from metasched.laboratory.simulate.schemes import SubmissionScheme
from metasched.laboratory.simulate.workload import Overlay, WindowRequest, Workload, from_trace
from metasched.model.fair_share import FairShareSettings
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings
from metasched.model.units import ParseError, parse_duration, quote_for_error
from metasched.policies.classify import Classifier
from metasched.policies.local.queueing import LocalPolicy
from metasched.policies.local.registry import (
    DEFAULT_POLICY,
    PARAMETERS,
    TEXT_PARAMETERS,
    has_parameter,
    make_excludable,
)
from metasched.policies.plug_in_ratings import PlugInError, PlugInKind, load_all, plug_ins_of
from metasched.policies.policy import Policy, SelfOptimisation
from metasched.policies.policy_keys import POLICY_KEYS
from metasched.policies.tuned_strategies import make_optimisers

LUBLIN = "lublin"
OPTIMISING = "self_optimising"  # key of --set: parameters, with the default settings
GENERATORS = (*synthetic.TABLES, LUBLIN)
# keys of --set
_META_FIELDS = {
    f.name: f
    for f in fields(Policy)
    if f.name not in ("weights", "classes", "seed", OPTIMISING, *PlugInKind)
}
_OVERLAY_FIELDS = {f.name: f for f in fields(Overlay)}
_GENERATOR_FIELDS = {
    f.name: f
    for f in fields(synthetic.UniformGenerator)
    if f.name not in ("machines", "licences", "each", "shared")
}
_DURATIONS = (
    "pull_after",
    "age",
    "default_time",
    "period",
    "half_life",
    "starving_after",
    "reserved_ahead",
    "reserved_slack",
)  # keys


class SettingError(UserError):
    """An argument of the command that cannot be used."""


@dataclass(frozen=True)
class SimulationSettings:
    """The settings of a simulation without its workload."""

    policy: str = DEFAULT_POLICY  # name of the local policy
    meta_policy: Policy = field(default_factory=Policy)  # of metasched
    parameters: dict[str, float | str] = field(default_factory=dict)  # of the local policy
    overlay: Overlay = field(default_factory=Overlay)
    generator_settings: dict[str, Any] = field(default_factory=dict)  # of a generated workload
    seed: int = 0  # of all draws
    pooled: bool = False  # make pools of the licences of the clusters
    licence_pools: tuple[LicencePool, ...] = ()  # leased by metasched, for all clusters
    fair_share: FairShareSettings | None = None  # None: users take turns
    limits: LimitSettings = field(default_factory=LimitSettings)  # of the site
    windows: tuple[WindowRequest, ...] = ()  # requested besides those of the workload's jobs

    def policy_factory(self) -> LocalPolicyFactory:
        """Return a factory of local policies. SettingError if a setting is invalid."""

        def make_local_policy(cluster: SimulatedCluster) -> LocalPolicy:
            name = cluster.policy or self.policy
            parameters = {
                key: value
                for key, value in self.parameters.items()
                if not cluster.policy or has_parameter(name, key, value)
            }
            try:
                return make_excludable(name, parameters, cluster.licences)
            except ValueError as error:
                source = f'cluster "{cluster.name}"' if cluster.policy else "--policy or --set"
                raise SettingError(f"{error}, {source}") from None

        return make_local_policy


def read_settings(
    policy: str | None,
    assignments: Sequence[str],
    seed: int,
    clusters: str | None = None,
    local: str | None = None,
    reservations: Path | None = None,
) -> SimulationSettings:
    """Read the settings of the command line: `policy` is a name or a policy file. SettingError.

    With a policy file `local` is the name of the local policy. `reservations` is a file.
    """
    name, meta_policy = policy or local or DEFAULT_POLICY, Policy()
    if name.endswith(".toml"):
        from metasched.config.policy_file import read_policy  # imports half of the daemon

        name, meta_policy = local or DEFAULT_POLICY, read_policy(Path(name))
    licence_pools = parse_licence_pools(clusters) if clusters is not None else ()
    settings = SimulationSettings(
        policy=name,
        meta_policy=replace(meta_policy, seed=seed),
        seed=seed,
        licence_pools=licence_pools,
        fair_share=parse_fair_share(clusters) if clusters is not None else None,
    )
    if reservations is not None:
        from metasched.laboratory.simulate.reservation_file import (
            read_reservations,  # imports pydantic
        )

        settings = replace(settings, windows=read_reservations(reservations))
    for assignment in assignments:
        settings = _apply_assignment(settings, assignment)
    if clusters is not None:
        licences = settings.overlay.licence_names
        limits = parse_limits(clusters, settings.meta_policy.classes, licences)
        settings = replace(settings, limits=limits)
    settings.policy_factory()(SimulatedCluster(name="c1", cpus=1))
    _check_self_optimising(settings.meta_policy)
    check_heuristics(settings.meta_policy, "--policy")
    return settings


def check_heuristics(policy: Policy, origin: str) -> None:
    """Raise SettingError, which names the origin, if a heuristic of the site cannot be used."""
    for plug_in, loaded in load_all(plug_ins_of(policy)):
        if isinstance(loaded, PlugInError):
            raise SettingError(f"{loaded}, {plug_in} of {origin}")


def _check_self_optimising(policy: Policy) -> None:
    try:
        classifier = Classifier(policy.max_priority, weights=policy.weights)
        make_optimisers(classifier, policy.self_optimising, {})
    except ValueError as error:
        raise SettingError(f"{error}, --set {OPTIMISING} or --policy") from None


def _apply_assignment(settings: SimulationSettings, assignment: str) -> SimulationSettings:
    key, separator, text = assignment.partition("=")
    if not separator or not text:
        raise SettingError(
            f"{quote_for_error(assignment)} sets nothing, --set; write it as load=paper"
        )
    policy_parameters = PARAMETERS.get(settings.policy, ())
    try:
        if key in policy_parameters:
            value: Any = text if key in TEXT_PARAMETERS else _parse_number(key, text)
            return replace(settings, parameters={**settings.parameters, key: value})
        if key == "pooled":
            return replace(settings, pooled=_parse_value("bool", key, text))
        if key == OPTIMISING:
            optimising = {name: SelfOptimisation() for name in text.split(",")}
            meta_policy = replace(settings.meta_policy, self_optimising=optimising)
            return replace(settings, meta_policy=meta_policy)
        if key in _META_FIELDS:
            return replace(settings, meta_policy=_replace_field(settings.meta_policy, key, text))
        if key in _OVERLAY_FIELDS:
            return replace(settings, overlay=_replace_field(settings.overlay, key, text))
        if key in _GENERATOR_FIELDS or key in ("jobs", "cpus"):
            value = _parse_value(
                _GENERATOR_FIELDS[key].type if key in _GENERATOR_FIELDS else "int", key, text
            )
            return replace(settings, generator_settings={**settings.generator_settings, key: value})
    except (ValueError, ParseError) as error:
        raise SettingError(f"{error}, --set {key}") from None
    known_keys = (
        *policy_parameters,
        "pooled",
        OPTIMISING,
        *_META_FIELDS,
        *_OVERLAY_FIELDS,
        *_GENERATOR_FIELDS,
    )
    close = get_close_matches(key, known_keys, n=1)
    remedy = f"write {close[0]}" if close else f"available are {', '.join(sorted(set(known_keys)))}"
    raise SettingError(f"unknown key {quote_for_error(key)}, --set; {remedy}")


Record = TypeVar("Record", Policy, Overlay)


def _replace_field(record: Record, key: str, text: str) -> Record:
    annotation = {f.name: f.type for f in fields(record)}[key]
    return replace(record, **{key: _parse_value(annotation, key, text)})


def _parse_value(annotation: object, key: str, text: str) -> Any:
    """Convert the text to the type of the field; `annotation` is the field's annotation."""
    match str(annotation):
        case "bool":
            if text not in ("true", "false"):
                raise ValueError(
                    f'{quote_for_error(text)} is neither "true" nor "false"; write one of them'
                )
            return text == "true"
        case "int":
            number = _parse_number(key, text)
            if number != int(number):
                raise ValueError(f"{quote_for_error(text)} is not a whole number; write one")
            return int(number)
        case "float":
            return _parse_number(key, text)
        case "Range" | "tuple[float, float]" | "tuple[int, int]":
            low, separator, high = text.partition(":")
            bounds = (_parse_number(key, low), _parse_number(key, high if separator else low))
            are_whole = "int" in str(annotation)
            return (int(bounds[0]), int(bounds[1])) if are_whole else bounds
        case _:
            choices = POLICY_KEYS[key].choices
            if text not in choices:
                raise ValueError(
                    f"{quote_for_error(text)} is unknown; write {' or '.join(choices)}"
                )
            return text


def _parse_number(key: str, text: str) -> float:
    if key in _DURATIONS and not text.replace(".", "", 1).isdecimal():
        return parse_duration(text)
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{quote_for_error(text)} is not a number; write one") from None
    if not 0 <= number < 1e12:
        raise ValueError(f"{quote_for_error(text)} is out of range; write 0 or more")
    return number


# Workloads and clusters


def read_workload(
    source: str, clusters: str | None, jobs: str | None, settings: SimulationSettings
) -> tuple[Workload, tuple[SimulatedCluster, ...]]:
    """Return the workload of a file or generator, and the clusters that it runs on.

    UserError if it is missing, or there are no clusters.
    """
    if source in GENERATORS and not Path(source).exists():
        workload, default_clusters = _generate(source, settings)
    else:
        if settings.generator_settings:
            key = next(iter(settings.generator_settings))
            raise SettingError(
                f"{key} applies only to generated workloads, --set; "
                f"{source} is a trace, remove the setting"
            )
        workload, default_clusters = from_trace(Path(source).name, swf.read_trace(Path(source))), ()
        if workload.processors is not None:
            default_clusters = (SimulatedCluster(name="c1", cpus=workload.processors),)
    selected = parse_clusters(clusters) if clusters is not None else default_clusters
    if not selected:
        raise SettingError(f"{source} has no number of processors; add --clusters")
    workload = workload.subset(*_parse_range(jobs)) if jobs is not None else workload
    if not workload.entries:
        if jobs is None:
            raise SettingError(f"{source} has no jobs to simulate; take another trace")
        raise SettingError(f"{source} has no jobs in this range, --jobs {jobs}; write another")
    workload = settings.overlay.apply(workload, settings.seed)
    if settings.windows:
        workload = replace(workload, windows=settings.windows)
    return workload, _add_licences(selected, settings.overlay)


def _add_licences(
    clusters: tuple[SimulatedCluster, ...], overlay: Overlay
) -> tuple[SimulatedCluster, ...]:
    """Add the licences of the overlay: on each cluster a copy per 16 processors."""
    if not overlay.licences:
        return clusters
    return tuple(
        replace(
            cluster,
            licences={
                **{name: max(1, cluster.cpus // 16) for name in overlay.licence_names},
                **cluster.licences,
            },
        )
        for cluster in clusters
    )


def _generate(
    name: str, settings: SimulationSettings
) -> tuple[Workload, tuple[SimulatedCluster, ...]]:
    arguments = settings.generator_settings
    if name == LUBLIN:
        if unknown := [key for key in arguments if key not in ("jobs", "cpus")]:
            raise SettingError(f"lublin has no {unknown[0]}, --set; it has jobs and cpus")
        jobs, cpus = arguments.get("jobs", 10000), arguments.get("cpus", 128)
        if isinstance(cpus, tuple):
            cpus = cpus[1]
        if not 1 <= cpus <= 10**6:
            raise SettingError(f"{cpus} processors, --set cpus; write 1 to 1000000")
        try:
            return synthetic.generate_lublin(jobs, cpus, settings.seed)
        except ValueError as error:
            raise SettingError(f"{error}, --set") from None
    try:
        generator = replace(synthetic.TABLES[name], **arguments)
    except ValueError as error:
        raise SettingError(f"{error}, --set") from None
    return generator.generate(name, settings.seed)


def _parse_range(text: str) -> tuple[int | None, int | None]:
    first, separator, last = text.partition(":")
    if not separator or not all(
        bound == "" or (bound.isascii() and bound.isdecimal()) for bound in (first, last)
    ):
        raise SettingError(
            f"{quote_for_error(text)} is not a range, --jobs; write 0:1000 for the first thousand"
        )
    return int(first) if first else None, int(last) if last else None


def simulate(
    workload: Workload,
    clusters: Sequence[SimulatedCluster],
    settings: SimulationSettings,
    progress: Callable[[int], None] | None = None,
    scheme: SubmissionScheme = THROUGH_METASCHED,
    clock: Callable[[], float] | None = None,
) -> Schedule:
    """Run a simulation; `clock` times the local policies. UserError if it is impossible."""
    licence_pools = settings.licence_pools
    if settings.pooled:
        clusters, licence_pools = pool_licences(clusters)
        if not licence_pools:
            raise SettingError(
                "no cluster has licences, --set pooled; remove the setting or add licences"
            )
    return Simulation(
        workload,
        clusters,
        settings.meta_policy,
        settings.policy_factory(),
        progress,
        scheme,
        licence_pools,
        settings.fair_share,
        settings.limits,
        clock,
    ).run()
