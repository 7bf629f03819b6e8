"""Changed keys of a configuration: keys that a running daemon can take over, and others. Pure."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from metasched.config.tables import ConfigFile

# Keys of [daemon] that listeners, connections and the database hold on to. All others change on a
# running daemon.
RESTART_KEYS: Final = (
    "database",
    "folder",
    "socket",
    "first_id",
    "connections",
    "head_timeout",
    "body_timeout",
    "max_request",
    "max_answers",
    "log_format",
)
_Named = tuple[BaseModel, ...]  # tables with a key `name`
_NAMED_TABLES = ("cluster", "licence", "user_class", "licence_server", "calendar", "webhook")


def keep_restart_keys(running: ConfigFile, changed: ConfigFile) -> tuple[ConfigFile, list[str]]:
    """Return `changed` with the running values of keys that need a restart, and those keys."""
    keys = [
        f"[daemon] {key}"
        for key in RESTART_KEYS
        if getattr(running.daemon, key) != getattr(changed.daemon, key)
    ]
    values = {key: getattr(running.daemon, key) for key in RESTART_KEYS}
    daemon, site = changed.daemon.model_copy(update=values), changed.site
    if (running.site is None) != (site is None):
        keys.append("[site]")
        site = running.site
    elif running.site is not None and site is not None and running.site.launcher != site.launcher:
        keys.append("[site] launcher")
        site = site.model_copy(update={"launcher": running.site.launcher})
    if running.tcp != changed.tcp:
        keys.append("[tcp]")
    if running.web != changed.web:
        keys.append("[web]")
    update = {"daemon": daemon, "site": site, "tcp": running.tcp, "web": running.web}
    return changed.model_copy(update=update), keys


def describe_changes(running: ConfigFile, changed: ConfigFile) -> list[str]:
    """Return the changed tables with their changed keys, as `[daemon] keep` or `cluster "a" cpus`.

    The contents of the policy file are no part of these.
    """
    changes: list[str] = []
    for name in ConfigFile.model_fields:
        before, after = getattr(running, name), getattr(changed, name)
        if before == after:
            continue
        if name in _NAMED_TABLES:
            changes += _changes_of_named(name, before, after)
        elif before is None or after is None:
            changes.append(f"[{name}] {'added' if before is None else 'removed'}")
        else:
            changes += [f"[{name}] {key}" for key in _changed_keys(before, after)]
    return changes


def _changes_of_named(
    name: str, before: tuple[BaseModel, ...], after: tuple[BaseModel, ...]
) -> list[str]:
    old = {table.name: table for table in before}  # type: ignore[attr-defined]
    new = {table.name: table for table in after}  # type: ignore[attr-defined]
    changes = [f'{name} "{each}" removed' for each in old if each not in new]
    changes += [f'{name} "{each}" added' for each in new if each not in old]
    for each in old.keys() & new.keys():
        changes += [f'{name} "{each}" {key}' for key in _changed_keys(old[each], new[each])]
    return sorted(changes) or [f"order of {name} tables"]


def _changed_keys(before: BaseModel, after: BaseModel) -> list[str]:
    old, new = before.model_dump(), after.model_dump()
    return [key for key in old | new if old.get(key) != new.get(key)]
