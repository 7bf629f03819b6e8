"""Checks the table [limits], of metasched.toml or of a file of simulated clusters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from metasched.config.settings import ConfigError
from metasched.config.tables import LimitsOfScope, LimitsTable
from metasched.model.limits import LimitSettings, LimitTable

# (narrower, wider): each task that the first counts is counted by the second, too
_CONTAINED = (
    ("queued", "open_tasks"),
    ("running", "dispatched"),
    ("dispatched", "open_tasks"),
    ("running", "open_tasks"),
)


def read_limits(
    tables: LimitsTable, classes: Collection[str], licences: Collection[str], path: Path | None
) -> LimitSettings:
    """Return the limits of the site, which has these user classes and licences.

    ConfigError for a limit that can never be reached beside another of its table, for an unknown
    class or licence.
    """
    if unknown := sorted(tables.classes.keys() - set(classes)):
        raise ConfigError(
            f'no user class "{unknown[0]}" in the policy, {path}, [limits.classes]; '
            f"it has {', '.join(classes)}"
        )

    def read(table: LimitsOfScope, source: str) -> LimitTable:
        return _read_table(table, licences, f"{path}, [limits{source}]")

    def read_all(named: Mapping[str, LimitsOfScope], kind: str) -> dict[str, LimitTable]:
        return {name: read(table, f".{kind}.{name}") for name, table in named.items()}

    return LimitSettings(
        for_all=read(tables, ""),
        each_user=read(tables.each_user, ".each_user"),
        users=read_all(tables.users, "users"),
        groups=read_all(tables.groups, "groups"),
        accounts=read_all(tables.accounts, "accounts"),
        classes=read_all(tables.classes, "classes"),
    )


def _read_table(table: LimitsOfScope, licences: Collection[str], location: str) -> LimitTable:
    for narrower, wider in _CONTAINED:
        inner, outer = getattr(table, narrower), getattr(table, wider)
        if inner is not None and outer is not None and inner > outer:
            raise ConfigError(
                f"{narrower} = {inner} exceeds {wider} = {outer}, {location}; lower it or leave "
                "it out, since it could never be reached"
            )
    if unknown := sorted(table.licences.keys() - set(licences)):
        raise ConfigError(
            f'no licence "{unknown[0]}", {location}; add a [[licence]] table, or correct the name'
        )
    return LimitTable(**{name: getattr(table, name) for name in LimitTable.__struct_fields__})
