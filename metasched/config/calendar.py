"""Reads the `[[calendar]]` tables: acts that recur."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from metasched.config.mistakes import suggestion
from metasched.config.settings import CalendarSettings, ConfigError
from metasched.config.tables import MAX_CALENDAR_ENTRIES, CalendarTable, ConfigFile
from metasched.errors import ParseError
from metasched.model.calendar import (
    ActivatePolicy,
    BackUpDatabase,
    CalendarAct,
    DrainCluster,
    LimitLicence,
    PruneDatabase,
    ResumeCluster,
)
from metasched.times.recurrence import find_zone, host_zone, parse_recurrence

# keys that only some acts have
_KEYS_OF_ACTS = {
    "cluster": ("drain", "resume"),
    "reason": ("drain",),
    "keep_pending": ("drain",),
    "folder": ("backup",),
    "copies": ("backup",),
    "file": ("policy",),
    "licence": ("licence",),
    "total": ("licence",),
    "lasts": ("licence",),
    "grace": ("drain", "resume", "backup", "prune", "policy"),  # of a licence it is `lasts`
}


def read_zone(config: ConfigFile, path: Path | None) -> str:
    """Return the name of the site's time zone. ConfigError if there is no such zone."""
    if config.daemon.zone is None:
        return host_zone()
    try:
        return find_zone(config.daemon.zone).key
    except ParseError as error:
        raise ConfigError(f"{error.problem}, zone, {path}, [daemon]; {error.fix}") from None


def read_calendar(
    config: ConfigFile, zone: str, base: Path, path: Path | None
) -> tuple[CalendarSettings, ...]:
    """Return the entries of the calendar. ConfigError for the first that cannot be used."""
    if len(config.calendar) > MAX_CALENDAR_ENTRIES:
        raise ConfigError(
            f"{len(config.calendar)} calendar tables, {path}; "
            f"write {MAX_CALENDAR_ENTRIES} at the most"
        )
    return tuple(_read_entry(table, config, zone, base, path) for table in config.calendar)


def _read_entry(
    table: CalendarTable, config: ConfigFile, zone: str, base: Path, path: Path | None
) -> CalendarSettings:
    location = f'{path}, calendar "{table.name}"'
    for key, acts in _KEYS_OF_ACTS.items():
        if key in table.model_fields_set and table.do not in acts:
            remedy = f'leave it out, it belongs to do = "{acts[0]}"'
            raise ConfigError(f'{key} beside do = "{table.do}", {location}; {remedy}')
    zone = zone if table.zone is None else table.zone
    try:
        rule = parse_recurrence(table.at, zone)
    except ParseError as error:
        raise ConfigError(f"{error.problem}, {location}; {error.fix}") from None
    act = _read_act(table, config, base, location)
    if isinstance(act, LimitLicence):
        act = structs.replace(act, longest_gap=rule.longest_gap(act.duration))
    return CalendarSettings(
        name=table.name,
        act=act,
        rule=table.at,
        zone=rule.zone.key,
        grace=act.duration if isinstance(act, LimitLicence) else table.grace,
    )


def _read_act(table: CalendarTable, config: ConfigFile, base: Path, location: str) -> CalendarAct:
    clusters = [cluster.name for cluster in config.cluster]
    if table.do == "licence":
        return _read_licence(table, [licence.name for licence in config.licence], location)
    if table.do == "prune":
        return PruneDatabase()
    if table.do == "policy":
        if not table.file:
            raise ConfigError(f"no file, {location}; name the policy file to put in force")
        return ActivatePolicy(str(base / table.file))
    if table.do == "backup":
        if not table.folder:
            raise ConfigError(f"no folder, {location}; name one for the copies")
        return BackUpDatabase(str(base / table.folder), table.copies)
    if table.cluster not in clusters:
        if not table.cluster:
            raise ConfigError(f"no cluster, {location}; name one of {', '.join(clusters)}")
        raise ConfigError(
            f'no cluster "{table.cluster}", {location}; {suggestion(table.cluster, clusters)}'
        )
    if table.do == "resume":
        return ResumeCluster(table.cluster)
    return DrainCluster(table.cluster, table.reason, table.keep_pending)


def _read_licence(table: CalendarTable, licences: Sequence[str], location: str) -> LimitLicence:
    if table.licence not in licences:
        hint = f"name one of {', '.join(licences)}" if licences else "add [[licence]]"
        if table.licence and licences:
            hint = suggestion(table.licence, licences)
        raise ConfigError(f'no licence "{table.licence}", {location}; {hint}')
    if table.total is None or table.lasts is None:
        missing = "total" if table.total is None else "lasts"
        remedy = "write how many tokens there are then, and for how long"
        raise ConfigError(f"no {missing}, {location}; {remedy}")
    return LimitLicence(table.licence, table.total, table.lasts)
