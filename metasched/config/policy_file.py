"""Reads a policy file: the policy, or a line for each mistake, and settings without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from metasched.config.mistakes import suggestion
from metasched.config.settings import ConfigError
from metasched.config.tables import PolicyFile, SelfOptimisationTable
from metasched.config.toml_files import examined, parse_toml, read_text
from metasched.errors import quote_for_error
from metasched.policies.classify import DEADLINE, Classifier
from metasched.policies.plug_in_ratings import (
    ENTRY_POINT_GROUPS,
    MAX_PLUG_INS,
    PlugInKind,
    installed,
    settings_of,
)
from metasched.policies.policy import PlugInSettings, Policy, SelfOptimisation
from metasched.policies.tuned_strategies import DeadlineBase, DeadlineBaseSpan, make_optimisers

MAX_POLICY_BYTES = 65536


@dataclass(frozen=True)
class PolicyReading:
    """A policy file as it was understood."""

    policy: Policy | None  # None: there are mistakes
    mistakes: tuple[str, ...] = ()  # each: problem, place; remedy
    # settings that the file has and that change nothing: problem, place; remedy
    notes: tuple[str, ...] = ()


def read_policy(path: Path | None, files: dict[Path, str] | None = None) -> Policy:
    """Return the policy of a file; None: the defaults. ConfigError for the first mistake.

    `files` receives the digest of the file.
    """
    return Policy() if path is None else parse_policy(read_policy_text(path, files), str(path))


def read_policy_text(path: Path, files: dict[Path, str] | None = None) -> str:
    """Return the text of a policy file. ConfigError if there is none, or too much."""
    return read_text(path, files, MAX_POLICY_BYTES)


def parse_policy(text: str, source: str) -> Policy:
    """Return the policy of a text that was read at `source`. ConfigError for the first mistake."""
    reading = examine_policy(text, source)
    if reading.policy is None:
        raise ConfigError(reading.mistakes[0])
    return reading.policy


def examine_policy(text: str, source: str) -> PolicyReading:
    """Return the policy of a text that was read at `source`, or all of its mistakes."""
    if len(text.encode()) > MAX_POLICY_BYTES:
        return PolicyReading(
            None, (f"it has more than {MAX_POLICY_BYTES} bytes, {source}; name a policy file",)
        )
    try:
        tables = parse_toml(text, source)
    except ConfigError as error:
        return PolicyReading(None, (str(error),))
    table, mistakes = examined(PolicyFile, tables, source)
    mistakes += _unknown_weights(tables.get("weights"), source)
    if table is None or mistakes:
        return PolicyReading(None, tuple(mistakes))
    mistakes = [*_mistakes(table, source)]
    optimising: Mapping[str, SelfOptimisation] = {}
    if not mistakes:  # else there is no classifier
        optimising, mistakes = _self_optimising(table, source)
    if mistakes:
        return PolicyReading(None, tuple(mistakes))
    values = {field.name: getattr(table, field.name) for field in fields(Policy)}
    plug_ins = {
        kind.value: {
            name: PlugInSettings(**dict(each)) for name, each in getattr(table, kind).items()
        }
        for kind in PlugInKind
    }
    policy = Policy(**{**values, **plug_ins, "self_optimising": optimising})
    return PolicyReading(policy, notes=tuple(_useless(table, policy, source)))


def _unknown_weights(weights: object, source: str) -> Iterator[str]:
    heuristics = tuple(Classifier().heuristics)
    for name in weights if isinstance(weights, dict) else ():
        if name not in heuristics:
            yield (
                f"unknown weight {quote_for_error(name)}, {source}, [weights]; "
                f"{suggestion(name, heuristics)}"
            )


def _mistakes(table: PolicyFile, source: str) -> Iterator[str]:
    """Yield the mistakes in combinations of values."""
    if "regular" not in table.classes:
        yield f'no class "regular", {source}, [classes]; add its base value'
    try:
        Classifier(weights=table.weights)
    except ValueError as error:
        problem, _, remedy = str(error).partition("; ")
        yield f"{problem}, {source}, [weights]; {remedy}"
    yield from _plug_in_mistakes(table, source)


def _plug_in_mistakes(table: PolicyFile, source: str) -> Iterator[str]:
    """Yield the mistakes in names of plug-ins; `explain` shows the names as heuristics."""
    taken, number = set(Classifier().heuristics), 0
    for kind in PlugInKind:
        for name in getattr(table, kind):
            number += 1
            if name in taken:
                yield f'"{name}" is there twice, {source}, [{kind}.{name}]; use another name'
            taken.add(name)
    if number > MAX_PLUG_INS:
        yield f"{number} heuristics of the site, {source}; name at most {MAX_PLUG_INS}"


def _self_optimising(
    table: PolicyFile, source: str
) -> tuple[Mapping[str, SelfOptimisation], list[str]]:
    """Return the settings by parameter, and the mistakes in them."""
    settings: dict[str, SelfOptimisation] = {}
    mistakes = []
    for parameter, setting in table.self_optimising.items():
        try:
            checked = _setting(setting)
            classifier = Classifier(table.max_priority, weights=table.weights)
            make_optimisers(classifier, {**settings, parameter: checked}, {})
            settings[parameter] = checked
        except ValueError as error:
            problem, _, remedy = str(error).partition("; ")
            end = f"; {remedy}" if remedy else ""
            mistakes.append(f"{problem}, {source}, [self_optimising.{parameter}]{end}")
    return settings, mistakes


def _setting(table: SelfOptimisationTable) -> SelfOptimisation:
    return SelfOptimisation(**dict(table))


def _useless(table: PolicyFile, policy: Policy, source: str) -> Iterator[str]:
    """Yield the settings that are written but change nothing, as others are."""
    yield from _useless_plug_ins(policy, source)
    written = table.model_fields_set
    weights = Classifier(weights=policy.weights).weights
    if policy.send == "late":
        for key in sorted({"pull", "pull_after"} & written):
            if key == "pull_after" or policy.pull:
                yield f'{key} has no effect with send = "late", {source}; remove it'
    elif "pull_after" in written and not policy.pull:
        yield f"pull_after has no effect with pull = false, {source}; remove it"
    if "window" in written and not weights["deadline"]:
        yield f"window has no effect with a weight of deadline of 0, {source}; remove it"
    if "classes" in written and not weights["user"]:
        yield f"the base values have no effect with a weight of user of 0, {source}, [classes]"
    if policy.max_priority == 1:
        for key in sorted({"weights", "classes", "window", "self_optimising"} & written):
            yield f"{key} has no effect with max_priority = 1, {source}; remove it, or raise that"
    for parameter in (DeadlineBase.parameter, DeadlineBaseSpan.parameter):
        if parameter in policy.self_optimising and not weights[DEADLINE]:
            yield (
                f"it has no effect with a weight of deadline of 0, {source}, "
                f"[self_optimising.{parameter}]; remove it"
            )
    for name, value in policy.classes.items():
        if value > policy.max_priority:
            yield (
                f"{name} = {value} is above max_priority = {policy.max_priority}, {source}, "
                "[classes]; lower it, or it outweighs all other ratings"
            )


def _useless_plug_ins(policy: Policy, source: str) -> Iterator[str]:
    """Yield the plug-ins that change nothing; a missing package may be on another host."""
    for kind in PlugInKind:
        settings = settings_of(policy, kind)
        names = installed(kind) if settings else ()
        for name, each in settings.items():
            where = f"{source}, [{kind}.{name}]"
            if not each.weight:
                yield f"{name} has no effect with a weight of 0, {where}; remove it"
            elif name not in names:
                group = ENTRY_POINT_GROUPS[kind]
                yield (
                    f"{name} is excluded: no entry point of {group} has this name here, {where}; "
                    "install its package in the environment of the daemon"
                )
