"""A policy in words: its keys with their meaning, its effects, how two policies differ. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from metasched.config.mistakes import range_of, shown
from metasched.config.tables import PolicyFile
from metasched.policies.classify import Classifier
from metasched.policies.plug_in_ratings import PlugInKind, settings_of
from metasched.policies.policy import PlugInSettings, Policy, SelfOptimisation
from metasched.policies.policy_keys import PARAMETER, PLUG_IN, POLICY_KEYS

PLUG_IN_TABLES = tuple(PlugInKind)
NOT_SET = "not set"  # a class, or a parameter that does not optimise itself


class KeyReference(NamedTuple):
    """The meaning of a key."""

    name: str
    unit: str
    range: str
    default: str
    source: str
    effect: str


class Difference(NamedTuple):
    """A key that differs; a value is None where a class or parameter is not there."""

    name: str
    before: Any
    after: Any
    effect: str


def key_reference() -> list[KeyReference]:
    """Return every key in the order of `POLICY_KEYS`."""
    return [
        KeyReference(
            name,
            key.unit or "-",
            key.range or range_of(PolicyFile, name.split(".")),
            _default(name),
            key.source,
            effect_of(name),
        )
        for name, key in POLICY_KEYS.items()
    ]


def values_of(policy: Policy) -> dict[str, Any]:
    """Return the value of each key by its full name, as `weights.user`."""
    values: dict[str, Any] = {}
    for field in fields(Policy):
        value = getattr(policy, field.name)
        if field.name == "weights":
            value = Classifier(weights=value).weights
        if field.name == "self_optimising":
            for parameter, setting in value.items():
                values |= _prefixed(f"{field.name}.{parameter}", asdict(setting))
        elif field.name in PLUG_IN_TABLES:
            for name, settings in value.items():
                values[f"{field.name}.{name}.weight"] = settings.weight
                values |= _prefixed(f"{field.name}.{name}.parameters", settings.parameters)
        elif isinstance(value, dict):
            values |= _prefixed(field.name, value)
        else:
            values[field.name] = value
    return values


def _prefixed(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{table}.{name}": list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
    }


def policy_text(policy: Policy) -> str:
    """Return a policy as the text of a policy file; keys with their defaults are left out.

    A table that differs in any of its values is written whole.
    """
    defaults, values = values_of(Policy()), values_of(policy)
    tables: dict[str, list[str]] = {"": []}  # lines, by name of the table
    changed = {
        name.rpartition(".")[0] for name, value in values.items() if defaults.get(name) != value
    }
    changed |= {name.rpartition(".")[0] for name in defaults if name not in values}
    for name, value in values.items():
        table, _, key = name.rpartition(".")
        if table in changed and (table or defaults[name] != value):
            tables.setdefault(table, []).append(f"{_toml_key(key)} = {json.dumps(value)}")
    return (
        "\n".join(
            line
            for table, lines in tables.items()
            for line in (*([f"\n[{table}]"] if table else ()), *lines)
        )
        + "\n"
    )


def _toml_key(name: str) -> str:
    """Return a key as TOML: quoted, unless it is bare."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def documented_name(name: str) -> str:
    """Return the key of `POLICY_KEYS` for the full name of a value."""
    table, _, rest = name.partition(".")
    if table == "classes":
        return "classes.NAME"
    if table == "self_optimising":  # the name of a parameter has no dot
        return f"{table}.{PARAMETER}.{rest.rpartition('.')[2]}"
    if table in PLUG_IN_TABLES:
        is_weight = rest.endswith(".weight") and ".parameters." not in rest
        return f"{table}.{PLUG_IN}.{'weight' if is_weight else f'parameters.{PARAMETER}'}"
    return name


def effect_of(name: str) -> str:
    """Return the effect of a key, with that of each word it may have."""
    key = POLICY_KEYS[documented_name(name)]
    choices = "; ".join(f"`{choice}`: {meaning}" for choice, meaning in key.choices.items())
    return f"{key.effect} {choices}." if choices else key.effect


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return the keys that differ between two policies, by their `values_of`."""
    return [
        Difference(name, before.get(name), after.get(name), _effect_of_value(name, after.get(name)))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def describe_policy(policy: Policy) -> Iterator[str]:
    """Yield the effects of a policy, a sentence for each of its parts."""
    classes = ", ".join(f"{name} {value}" for name, value in policy.classes.items())
    weights = Classifier(weights=policy.weights).weights
    rated = ", ".join(f"{name} {weight:g}" for name, weight in weights.items() if weight)
    ignored = ", ".join(name for name, weight in weights.items() if not weight)
    yield f"Priorities are 1 to {policy.max_priority}, by the weights {rated}." + (
        f" Not rated: {ignored}." if ignored else ""
    )
    if weights["user"]:
        yield f"User classes are rated {classes}."
    if weights["deadline"]:
        yield f"Deadlines are judged beside those of the last {policy.window} jobs that had one."
    for parameter, setting in policy.self_optimising.items():
        yield _describe_optimising(parameter, setting)
    yield from _describe_plug_ins(policy)
    if policy.age:
        yield f"A step of priority is worth {_duration(policy.age)} of waiting."
    else:
        yield "Jobs that wait in metasched go by age alone: priorities order no queue (age = 0)."
    yield _describe_dispatch(policy)
    yield _describe_load(policy)
    yield f"A reservation goes to {POLICY_KEYS['reserve'].choices[policy.reserve]}."
    yield (
        "A pending licence holder may be recalled after "
        f"{_duration(policy.patience)}, if others wait for its licences."
    )
    yield f"A job without a limit is expected to run {_duration(policy.default_time)}."


def _describe_plug_ins(policy: Policy) -> Iterator[str]:
    effects = {
        PlugInKind.PRIORITY: "The priority also has ratings of the site by",
        PlugInKind.PLACEMENT: "Clusters are rated, beside the load of weight 1, by",
        PlugInKind.RUN_TIME: "Run times of jobs with a limit are expected by",
    }
    for kind, effect in effects.items():
        named = [
            f"{name} {each.weight:g}"
            for name, each in settings_of(policy, kind).items()
            if each.weight
        ]
        if named:
            yield f"{effect}: {', '.join(named)}."


def _describe_dispatch(policy: Policy) -> str:
    text = f"Jobs are dispatched {POLICY_KEYS['send'].choices[policy.send]}."
    if policy.send == "late":
        return f"{text} Nothing is pulled."
    if not policy.pull:
        return f"{text} They stay in the queue that they were sent to."
    return (
        f"{text} A job that is pending for {_duration(policy.pull_after)} moves to a "
        "cluster where it starts at once."
    )


def _describe_load(policy: Policy) -> str:
    return (
        f"The cluster with the least load gets a job: {POLICY_KEYS['load'].choices[policy.load]}. "
        f"Of its own jobs count {POLICY_KEYS['ordering'].choices[policy.ordering]}."
        + (f" Differences up to {policy.tolerance:.4g} count as none." if policy.tolerance else "")
    )


def _describe_optimising(parameter: str, setting: SelfOptimisation) -> str:
    target = ", ".join(f"{share:g}" for share in setting.target) or "each half of that below"
    return (
        f"{parameter} follows a target of priorities ({target}) by the last {setting.history} "
        f"jobs, beyond a distance of {setting.delta:g}{' in L1' if setting.norm == 'l1' else ''}."
    )


def _effect_of_value(name: str, value: object) -> str:
    """Return the effect of a key, and of the word that it has."""
    key = POLICY_KEYS.get(documented_name(name))
    if key is None:  # of a later daemon
        return ""
    meaning = key.choices.get(value) if isinstance(value, str) else None
    return f"{key.effect} Now: {meaning}." if meaning else key.effect


def _default(name: str) -> str:
    """Return the default of a key as the reference has it."""
    if name == "classes.NAME":
        return ", ".join(f"{each} {value}" for each, value in Policy().classes.items())
    if name.endswith(f"parameters.{PARAMETER}"):
        return "as the plug-in has it"
    if name.partition(".")[0] in PLUG_IN_TABLES:
        return written(name, PlugInSettings().weight)
    if name.startswith("self_optimising."):
        return written(name, getattr(SelfOptimisation(), name.rpartition(".")[2]) or "none")
    return written(name, values_of(Policy())[name])


def written(name: str, value: Any) -> str:
    """Return the value of a key for a table: a duration with units, a word without quotes."""
    if value is None:
        return NOT_SET
    if isinstance(value, str):
        return value
    key = POLICY_KEYS.get(documented_name(name))
    if isinstance(value, float) and key is not None and key.unit == "seconds":
        return _duration(value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return shown(value)


def _duration(seconds: float) -> str:
    """Write a duration as the file accepts it: `90s`, `10m`, `1h30m`, `2d`."""
    if seconds != int(seconds) or not seconds:
        return f"{seconds:g}s"
    text, rest = "", int(seconds)
    for letter, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{letter}" if count else ""
    return text
