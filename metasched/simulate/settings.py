"""What `metasched simulate` may be told by name: a workload, policies, `--set key=value`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from metasched.errors import UserError
from metasched.model.licence import LicencePool
from metasched.policies.local import queueing
from metasched.policies.local import registry as named
from metasched.policies.local.registry import make
from metasched.policies.policy import WORDS, Policy
from metasched.simulate import swf, synthetic
from metasched.simulate.cluster_specs import parse, parse_pools, pooled
from metasched.simulate.clusters import SimulatedCluster
from metasched.simulate.engine import THROUGH_US, Engine, Local, Schedule
from metasched.simulate.schemes import Scheme
from metasched.simulate.workload import Overlay, Workload, from_trace
from metasched.units import Unreadable, parse_duration, shown

LUBLIN = "lublin"
GENERATED = (*synthetic.TABLES, LUBLIN)
_META = {f.name: f for f in fields(Policy) if f.name not in ("weights", "classes", "seed")}
_OVERLAY = {f.name: f for f in fields(Overlay)}
_UNIFORM = {
    f.name: f
    for f in fields(synthetic.Uniform)
    if f.name not in ("machines", "licences", "each", "shared")
}
_DURATIONS = ("pull_after", "age", "default_time", "period", "half_life")


class SettingError(UserError):
    """A word of the command that cannot be used; the message says what, where, what to do."""


@dataclass(frozen=True)
class Settings:
    """A whole simulation, before its workload is read. `seed` is of everything that is drawn.

    `pools` are licences that the meta-scheduler leases, for all clusters; `pooled` makes such of
    those that clusters have of their own.
    """

    policy: str = named.DEFAULT
    meta: Policy = field(default_factory=Policy)
    parameters: dict[str, float | str] = field(default_factory=dict)
    overlay: Overlay = field(default_factory=Overlay)
    generated: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    pooled: bool = False
    pools: tuple[LicencePool, ...] = ()

    def local(self) -> Local:
        """What makes the policy object of a cluster. SettingError if a word is wrong."""

        def made(cluster: SimulatedCluster) -> queueing.Policy:
            name = cluster.policy or self.policy
            parameters = {
                key: value
                for key, value in self.parameters.items()
                if not cluster.policy or key in named.PARAMETERS.get(name, ())
            }
            try:
                return make(name, parameters, cluster.licences)
            except ValueError as error:
                raise SettingError(f"{error}, --policy or --set") from None

        return made


def read_settings(
    policy: str | None, words: Sequence[str], seed: int, clusters: str | None = None
) -> Settings:
    """Settings from the command line: `policy` is a name or a policy file. SettingError."""
    name, meta = policy or named.DEFAULT, Policy()
    if name.endswith(".toml"):
        from metasched.config.reading import read_policy

        name, meta = named.DEFAULT, read_policy(Path(name))
    pools = parse_pools(clusters) if clusters is not None else ()
    settings = Settings(policy=name, meta=replace(meta, seed=seed), seed=seed, pools=pools)
    for word in words:
        settings = _set(settings, word)
    settings.local()(SimulatedCluster(name="c1", cpus=1))
    return settings


def _set(settings: Settings, word: str) -> Settings:
    key, equals, text = word.partition("=")
    if not equals or not text:
        raise SettingError(f"{shown(word)} sets nothing, --set; write it as load=paper")
    own = named.PARAMETERS.get(settings.policy, ())
    try:
        if key in own:
            value: Any = text if key in ("run", "late") else _number(key, text)
            return replace(settings, parameters={**settings.parameters, key: value})
        if key == "pooled":
            return replace(settings, pooled=_value("bool", key, text))
        if key in _META:
            return replace(settings, meta=_changed(settings.meta, key, text))
        if key in _OVERLAY:
            return replace(settings, overlay=_changed(settings.overlay, key, text))
        if key in _UNIFORM or key in ("jobs", "cpus"):
            value = _value(_UNIFORM[key].type if key in _UNIFORM else "int", key, text)
            return replace(settings, generated={**settings.generated, key: value})
    except (ValueError, Unreadable) as error:
        raise SettingError(f"{error}, --set {key}") from None
    known = (*own, "pooled", *_META, *_OVERLAY, *_UNIFORM)
    close = get_close_matches(key, known, n=1)
    mend = f"write {close[0]}" if close else f"known are {', '.join(sorted(set(known)))}"
    raise SettingError(f"unknown key {shown(key)}, --set; {mend}")


T = TypeVar("T", Policy, Overlay)


def _changed(of: T, key: str, text: str) -> T:
    kind = {f.name: f.type for f in fields(of)}[key]
    return replace(of, **{key: _value(kind, key, text)})


def _value(kind: object, key: str, text: str) -> Any:
    """The word as what the field holds; `kind` is the annotation as written."""
    match str(kind):
        case "bool":
            if text not in ("true", "false"):
                raise ValueError(f'{shown(text)} is neither "true" nor "false"; write one of them')
            return text == "true"
        case "int":
            number = _number(key, text)
            if number != int(number):
                raise ValueError(f"{shown(text)} is no whole number; write one")
            return int(number)
        case "float":
            return _number(key, text)
        case "Range" | "tuple[float, float]" | "tuple[int, int]":
            low, mark, high = text.partition(":")
            bounds = (_number(key, low), _number(key, high if mark else low))
            whole = "int" in str(kind)
            return (int(bounds[0]), int(bounds[1])) if whole else bounds
        case _:
            if text not in WORDS[key]:
                raise ValueError(f"{shown(text)} is unknown; write {' or '.join(WORDS[key])}")
            return text


def _number(key: str, text: str) -> float:
    if key in _DURATIONS and not text.replace(".", "", 1).isdecimal():
        return parse_duration(text)
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is no number; write one") from None
    if not 0 <= number < 1e12:
        raise ValueError(f"{shown(text)} is no sensible number; write 0 or more")
    return number


# Workloads and clusters


def read_workload(
    word: str, clusters: str | None, jobs: str | None, settings: Settings
) -> tuple[Workload, tuple[SimulatedCluster, ...]]:
    """The workload that a word means, a file or a generator, and what it runs on.

    UserError in one line if there is none, or nothing to run it on.
    """
    if word in GENERATED and not Path(word).exists():
        workload, own = _generated(word, settings)
    else:
        if settings.generated:
            key = next(iter(settings.generated))
            raise SettingError(
                f"{key} belongs to generated workloads, --set; {word} is a trace, leave it out"
            )
        workload, own = from_trace(Path(word).name, swf.read(Path(word))), ()
        if workload.processors is not None:
            own = (SimulatedCluster(name="c1", cpus=workload.processors),)
    chosen = parse(clusters) if clusters is not None else own
    if not chosen:
        raise SettingError(
            f"{word} does not say how many processors its machine had; add --clusters"
        )
    workload = workload.part(*_slice(jobs)) if jobs is not None else workload
    if not workload.requests:
        raise SettingError(f"no job is left of {word}, --jobs {jobs}; choose others")
    return settings.overlay.over(workload, settings.seed), _with_licences(chosen, settings.overlay)


def _with_licences(
    clusters: tuple[SimulatedCluster, ...], overlay: Overlay
) -> tuple[SimulatedCluster, ...]:
    """Licences that are laid over a workload have, on each cluster, a copy for 16 processors."""
    if not overlay.licences:
        return clusters
    return tuple(
        replace(
            cluster,
            licences={
                **{f"l{n}": max(1, cluster.cpus // 16) for n in range(1, overlay.licences + 1)},
                **cluster.licences,
            },
        )
        for cluster in clusters
    )


def _generated(word: str, settings: Settings) -> tuple[Workload, tuple[SimulatedCluster, ...]]:
    given = settings.generated
    if word == LUBLIN:
        if unknown := [key for key in given if key not in ("jobs", "cpus")]:
            raise SettingError(f"lublin has no {unknown[0]}, --set; it has jobs and cpus")
        jobs, cpus = given.get("jobs", 10000), given.get("cpus", 128)
        if isinstance(cpus, tuple):
            cpus = cpus[1]
        if not 1 <= cpus <= 10**6:
            raise SettingError(f"{cpus} processors, --set cpus; write 1 to 1000000")
        workload, clusters = synthetic.lublin(jobs, cpus, settings.seed)
        return workload, clusters
    uniform = replace(synthetic.TABLES[word], **given)
    workload, clusters = uniform.grid(word, settings.seed)
    return workload, clusters


def _slice(text: str) -> tuple[int | None, int | None]:
    first, colon, last = text.partition(":")
    if not colon or not all(w == "" or (w.isascii() and w.isdecimal()) for w in (first, last)):
        raise SettingError(
            f"{shown(text)} is no range, --jobs; write 0:1000 for the first thousand"
        )
    return int(first) if first else None, int(last) if last else None


def simulate(
    workload: Workload,
    clusters: Sequence[SimulatedCluster],
    settings: Settings,
    progress: Callable[[int], None] | None = None,
    scheme: Scheme = THROUGH_US,
) -> Schedule:
    """One run. UserError if it cannot be."""
    pools = settings.pools
    if settings.pooled:
        clusters, pools = pooled(clusters)
        if not pools:
            raise SettingError(
                "no cluster has licences of its own, --set pooled; leave it out or add licences"
            )
    return Engine(
        workload, clusters, settings.meta, settings.local(), progress, scheme, pools
    ).run()
