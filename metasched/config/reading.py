"""Reads metasched.toml, and the files that it names. Every error names file, key and remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from sqlalchemy.engine import URL

from metasched.adapters.base import Capabilities
from metasched.adapters.launcher_client import user_name_of
from metasched.adapters.registry import ADAPTER_GROUP, adapter_class
from metasched.client.sudo import check_config
from metasched.config.calendar import read_calendar, read_zone
from metasched.config.database_url import default_state_folder, parse_database_url, sqlite_url
from metasched.config.fair_share import read_fair_share
from metasched.config.limits import read_limits
from metasched.config.mistakes import describe_first, suggestion
from metasched.config.notifications import read_mail, read_webhooks
from metasched.config.policy_file import parse_policy, read_policy, read_policy_text
from metasched.config.restart_keys import keep_restart_keys
from metasched.config.settings import (
    ClusterSettings,
    ConfigError,
    LicenceServerSettings,
    PolicyOrigin,
    RequestLimits,
    Settings,
)
from metasched.config.tables import (
    MAP_NAMES,
    ClusterTable,
    ConfigFile,
    FairShareTable,
    LicenceServerTable,
    ReservationsTable,
)
from metasched.config.tcp import checked_tcp, read_job_variables
from metasched.config.toml_files import read_toml, validated
from metasched.config.web import read_web
from metasched.licence_servers.base import LICENCE_SERVER_GROUP, licence_server_class
from metasched.model.calendar import ActivatePolicy
from metasched.model.cluster import Cluster
from metasched.model.licence import LicencePool
from metasched.model.reservation_request import ReservationQuota
from metasched.paths import (
    MAX_SOCKET_PATH_BYTES,
    SITE_CONFIG,
    is_url,
    personal_config,
    personal_data,
    personal_socket,
)
from metasched.policies.local.registry import check_policy_name, check_suspends_none
from metasched.policies.policy import Policy

PluginT = TypeVar("PluginT")


def find_config(path: Path | None) -> Path | None:
    """Return `path`, else METASCHED_CONFIG, else the personal file, else the site's, else None.

    UserError under sudo if others may change a file that the environment names.
    """
    if path is not None:
        return path
    named = os.environ.get("METASCHED_CONFIG")
    if named or os.path.exists(personal_config()):
        path = Path(named or personal_config())
        check_config(str(path))
        return path
    return Path(SITE_CONFIG) if os.path.exists(SITE_CONFIG) else None


def load_settings(path: Path | None) -> Settings:
    """Read and check the configuration.

    `path` None: a local cluster with the processors of this host. ConfigError for the first
    mistake.
    """
    files: dict[Path, str] = {}
    return _settings_of(_read_config(path, files), path, files)


def reload_settings(running: Settings) -> tuple[Settings, list[str]]:
    """Read the files of a running daemon again, without what only a restart can change.

    Return the new settings, and the keys whose changes need a restart. ConfigError for the first
    mistake, also of those keys.
    """
    path, files = running.config_path, dict[Path, str]()
    config = _read_config(path, files)
    complete = _settings_of(config, path, files)  # as a restart would
    tables, restart_keys = keep_restart_keys(running.tables, config)
    settings = complete
    if restart_keys:
        try:
            settings = _settings_of(tables, path, files)
        except ConfigError as error:
            keys = ", ".join(restart_keys)
            raise ConfigError(f"{error}; or restart the daemon, for {keys} changed, too") from None
    # a certificate that was replaced is served after a restart
    settings = replace(
        settings, database_url=running.database_url, job_variables=running.job_variables
    )
    return settings, restart_keys


def _read_config(path: Path | None, files: dict[Path, str]) -> ConfigFile:
    tables = _default_tables() if path is None else read_toml(path, files)
    return validated(ConfigFile, tables, path)


def _settings_of(config: ConfigFile, path: Path | None, files: dict[Path, str]) -> Settings:
    """Return the settings of a configuration file, and of the files that it names."""
    if not config.cluster:
        raise ConfigError(f"no cluster in {path}; add a [[cluster]] table")
    _require_unique("cluster", [table.name for table in config.cluster], path)
    _require_unique("licence_server", [table.name for table in config.licence_server], path)
    _require_unique("calendar", [table.name for table in config.calendar], path)
    _require_unique("webhook", [table.name for table in config.webhook], path)
    base = path.parent.absolute() if path is not None else Path(personal_data())
    policy_path = None if config.policy.file is None else base / config.policy.file
    origin = PolicyOrigin() if policy_path is None else _read_origin(policy_path, files)
    policy = parse_policy(origin.text, origin.path)
    clusters = tuple(_cluster_settings(table, config, path) for table in config.cluster)
    policy_settings = _policy_settings(config, policy, path)
    database_url = _database_url(config, base, path)
    daemon, site = config.daemon, config.site
    zone = read_zone(config, path)
    calendar = read_calendar(config, zone, base, path)
    socket = _daemon_socket(config, base, path)
    tcp = None if config.tcp is None else checked_tcp(config.tcp, base, path)
    if site is not None:
        site = site.model_copy(update={"launcher": str(base / site.launcher)})
    return Settings(
        config_path=None if path is None else path.absolute(),
        database_url=database_url,
        socket=socket,
        state_folder=base / daemon.folder if daemon.folder else default_state_folder(database_url),
        retention=daemon.keep,
        clusters=clusters,
        user_classes={table.name: (table.users, table.groups) for table in config.user_class},
        licences=_licence_pools(config, path),
        max_array_tasks=daemon.max_array_tasks,
        first_id=daemon.first_id,
        requests=RequestLimits(
            daemon.connections,
            daemon.head_timeout,
            daemon.body_timeout,
            daemon.max_request,
            daemon.max_answers,
        ),
        site=site,
        tcp=tcp,
        web=None if config.web is None else read_web(config.web, tcp, base, path),
        job_variables=read_job_variables(tcp, socket, path),
        licence_servers=tuple(
            _licence_server_settings(table, path) for table in config.licence_server
        ),
        use_interval=(config.fair_share or FairShareTable()).interval,
        fair_share=None
        if config.fair_share is None
        else read_fair_share(config.fair_share, [table.name for table in config.cluster], path),
        calendar=calendar,
        zone=zone,
        series_ahead=config.reservations.ahead,
        mail=read_mail(config, base, path),
        webhooks=read_webhooks(config.webhook, base, path),
        event_retention=daemon.keep_events,
        log_format=daemon.log_format,
        policy_origin=origin,
        probe_account=config.doctor.account,
        files=files,
        tables=config,
        **policy_settings,
    )


def with_policy(settings: Settings, policy: Policy) -> Settings:
    """Return settings with another policy. ConfigError if the configuration needs more of it."""
    return replace(settings, **_policy_settings(settings.tables, policy, settings.config_path))


def scheduled_policy_mistakes(settings: Settings) -> Iterator[ConfigError]:
    """Yield why policies of the calendar cannot be put in force: known now, not at night.

    They are no part of the settings: a daemon that starts again for another reason goes on.
    """
    for entry in settings.calendar:
        if isinstance(entry.act, ActivatePolicy):
            try:
                with_policy(settings, read_policy(Path(entry.act.file)))
            except ConfigError as error:
                yield ConfigError(f'{error} (calendar "{entry.name}")')


def _policy_settings(config: ConfigFile, policy: Policy, path: Path | None) -> dict[str, Any]:
    """Return the settings that depend on the policy. ConfigError if it misses a name of theirs."""
    _check_policy_matches(config, policy, path)
    licences = [licence.name for licence in config.licence]
    return {
        "policy": policy,
        "quotas": _class_quotas(config.reservations, policy, path),
        "limits": read_limits(config.limits, policy.classes, licences, path),
    }


def _default_tables() -> dict[str, Any]:
    """Return the tables of a configuration with a single local cluster."""
    cluster = {
        "name": "local",
        "adapter": "local",
        "cpus": os.cpu_count() or 1,
        "map": {"account": {"*": "*"}, "qos": {"*": "*"}},
    }
    return {"cluster": [cluster]}


def _check_policy_matches(config: ConfigFile, policy: Policy, path: Path | None) -> None:
    """Raise ConfigError if the policy does not support the configured binding or user classes."""
    late = [cluster.name for cluster in config.cluster if cluster.binding == "late"]
    if late and policy.send != "late":
        raise ConfigError(
            f'binding = "late", {path}, cluster "{late[0]}"; write send = "late" in the policy file'
        )
    for user_class in config.user_class:
        if user_class.name not in policy.classes:
            raise ConfigError(
                f'user class "{user_class.name}" in {path} has no base value in the policy; '
                f"it has {', '.join(policy.classes)}"
            )


def _database_url(config: ConfigFile, base: Path, path: Path | None) -> URL:
    """Return the URL of the configured database, by default SQLite in the user's data folder."""
    if config.daemon.database is None:
        return sqlite_url(Path(personal_data()) / "metasched.db")
    try:
        return parse_database_url(config.daemon.database, base)
    except ConfigError as error:
        raise ConfigError(f"{error}, {path}, [daemon]") from None


def _daemon_socket(config: ConfigFile, base: Path, path: Path | None) -> Path:
    """Return the path of the daemon's unix socket."""
    if is_url(config.daemon.socket or ""):
        raise ConfigError(f"socket is a URL, {path}, [daemon]; that is for clients, name a path")
    socket = base / (config.daemon.socket or personal_socket())
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"socket {socket} has more than {MAX_SOCKET_PATH_BYTES} bytes; name a shorter path"
        )
    return socket


def _require_unique(table_name: str, names: list[str], path: Path | None) -> None:
    """Raise ConfigError if two tables have the same name."""
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f'{table_name} "{min(duplicates)}" is there twice in {path}; rename one')


def _licence_pools(config: ConfigFile, path: Path | None) -> tuple[LicencePool, ...]:
    """Return the pools of floating licences.

    ConfigError for a repeated name, an invalid value, or an unknown cluster or server.
    """
    _require_unique("licence", [table.name for table in config.licence], path)
    clusters = tuple(cluster.name for cluster in config.cluster)
    servers = tuple(server.name for server in config.licence_server)
    pools = []
    for table in config.licence:
        location = f'{path}, licence "{table.name}"'
        references = [("cluster", name, clusters) for name in (*table.clusters, *table.machines)]
        references += [("licence_server", table.server, servers)] if table.server else []
        for table_name, name, defined_names in references:
            if name not in defined_names:
                fix = f"add a [[{table_name}]] table"
                if defined_names:
                    fix = suggestion(name, defined_names)
                raise ConfigError(f'no {table_name} "{name}", {location}; {fix}')
        if table.clusters and (unlisted := set(table.machines).difference(table.clusters)):
            raise ConfigError(
                f'machines of cluster "{min(unlisted)}", {location}; add it to its clusters'
            )
        for server in config.licence_server:
            minimum = server.interval + server.timeout
            if server.name == table.server and table.stale_after < minimum:
                raise ConfigError(
                    f"stale_after = {table.stale_after:g}, {location}; write {minimum:g} or more, "
                    "the interval and the timeout of its server"
                )
        linger = table.linger
        if linger is None:  # a server reports when a token is free again
            linger = table.stale_after if table.server else 0.0
        try:
            arguments = table.model_dump(exclude={"machines"})
            arguments |= {"linger": linger, "clusters": table.clusters or tuple(table.machines)}
            pools.append(LicencePool(**arguments))
        except ValueError as error:
            problem, _, fix = str(error).partition("; ")
            raise ConfigError(f"{problem}, {location}; {fix}") from None
    return tuple(pools)


def _class_quotas(
    table: ReservationsTable, policy: Policy, path: Path | None
) -> dict[str, ReservationQuota]:
    """Return reservation limits by user class; "" for all other users."""
    if unknown := sorted(table.classes.keys() - policy.classes.keys()):
        raise ConfigError(
            f'no user class "{unknown[0]}" in the policy, {path}, [reservations.classes]; '
            f"it has {', '.join(policy.classes)}"
        )
    tables = {"": table, **table.classes}
    return {
        name: ReservationQuota(quota.horizon, quota.longest, quota.most, quota.let_run)
        for name, quota in tables.items()
    }


def _check_late_binding(table: ClusterTable, capabilities: Capabilities, location: str) -> None:
    """Raise ConfigError if the cluster has other sources of jobs or cannot reserve named nodes."""
    if not capabilities.reserves_named_nodes:
        raise ConfigError(
            f'binding = "late", {location}; leave it out, no nodes can be reserved there by name'
        )
    if not table.exclusive:
        raise ConfigError(
            f'binding = "late", {location}; write exclusive = true, if only metasched submits to it'
        )


def _checked_local_policy(capabilities: Capabilities, location: str) -> str:
    """Return `Capabilities.local_policy`. ConfigError if this installation has no such policy."""
    name: object = capabilities.local_policy  # of code that nobody may have checked
    if not isinstance(name, str):
        problem = f"{name!r} is no name of a policy, local_policy of the adapter, {location}"
        raise ConfigError(f'{problem}; declare "" if none is like its manager')
    try:
        if name:
            check_policy_name(name)
            check_suspends_none(name)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise ConfigError(f"{problem}, local_policy of the adapter, {location}; {fix}") from None
    return name


def _read_origin(path: Path, files: dict[Path, str]) -> PolicyOrigin:
    """Read the site's policy file; `files` receives its digest."""
    text = read_policy_text(path, files)
    try:
        owner = user_name_of(path.stat().st_uid)
    except OSError as error:
        raise ConfigError(f"{error.strerror}, {path}; name a readable file") from None
    return PolicyOrigin(str(path), files[path.absolute()], owner, text)


def _maps(
    table: ClusterTable, location: str
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Return the maps by kind, and the accounts that depend on the user. ConfigError for others."""
    maps: dict[str, dict[str, str]] = {}
    user_accounts: dict[str, dict[str, str]] = {}
    for category, names in table.map.items():
        maps[category] = {
            name: manager_name
            for name, manager_name in names.items()
            if isinstance(manager_name, str)
        }
        by_user = {
            name: manager_name
            for name, manager_name in names.items()
            if isinstance(manager_name, dict)
        }
        if by_user and category != "account":
            raise ConfigError(
                f'{category} "{min(by_user)}" is a table, {location}; '
                "only accounts depend on the user"
            )
        if "*" in by_user:
            raise ConfigError(f'account "*" is a table, {location}; name the account')
        user_accounts |= by_user
    return maps, user_accounts


def _mounted(
    table: ClusterTable, config: ConfigFile, location: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the mounts that a cluster shares with the submit host, and the mounts that differ.

    ConfigError if there is nothing to compare it with.
    """
    submit_host = config.mounts
    if unknown := sorted(table.mounts.keys() - submit_host.keys()):
        raise ConfigError(
            f'no "{unknown[0]}" of the submit host, {location}, [cluster.mounts]; '
            "add it to [mounts], or take it out"
        )
    differing = {name: text for name, text in table.mounts.items() if submit_host[name] != text}
    names = dict.fromkeys((*table.filesystems, *table.mounts))
    return tuple(name for name in names if name not in differing), differing


def _cluster_settings(
    table: ClusterTable, config: ConfigFile, path: Path | None
) -> ClusterSettings:
    location = f'{path}, cluster "{table.name}"'
    adapter_type = _plugin_class("adapter", table.adapter, ADAPTER_GROUP, adapter_class, location)
    options = _plugin_options(adapter_type.Options, table, location)
    capabilities = adapter_type.capabilities_for(adapter_type.Options(**options))
    if table.binding == "late":
        _check_late_binding(table, capabilities, location)
    if table.takes == "reservations" and not capabilities.reservations:
        raise ConfigError(
            f'takes = "reservations", {location}; '
            "leave it out, its manager supports no reservations"
        )
    # of a site's users none may keep all jobs without a limit waiting, unless the site wants that
    keeps_for_jobs = (
        config.site is not None
        and not capabilities.limits_every_job
        and "takes" not in table.model_fields_set
    )
    for name in table.map:
        if name not in MAP_NAMES:
            raise ConfigError(f'unknown map "{name}", {location}; {suggestion(name, MAP_NAMES)}')
    maps, user_accounts = _maps(table, location)
    filesystems, other_filesystems = _mounted(table, config, location)
    return ClusterSettings(
        cluster=Cluster(
            name=table.name,
            adapter=table.adapter,
            benchmark=table.benchmark,
            filesystems=filesystems,
            other_filesystems=other_filesystems,
            max_tasks_per_dispatch=adapter_type.chunk,
            queue_depth=table.queue_depth or 0,
            maps=maps,
            user_accounts=user_accounts,
            move_after=table.move_after,
            fence_dir=table.fence_dir,
            supports_reservations=capabilities.reservations,
            reserves_for_accounts=capabilities.reserves_for_accounts,
            takes="jobs" if keeps_for_jobs else table.takes,
            binds_late=table.binding == "late",
            lead=table.lead,
            guard=table.guard,
            granularity=capabilities.limit_granularity,
            job_options=capabilities.job_options,
            local_policy=_checked_local_policy(capabilities, location),
            orders_by_priority=bool(capabilities.orders_by_priority),
            licence_features={
                licence.name: licence.machines[table.name]
                for licence in config.licence
                if table.name in licence.machines
            },
        ),
        options=options,
        poll_interval=table.poll_interval or adapter_type.poll_interval,
        call_timeout=table.call_timeout,
        python=table.python,
        environment={**adapter_type.environment, **table.environment},
        capabilities=capabilities,
        owner_calls=table.calls if config.site and adapter_type.concurrent_owners else 0,
        exports_ids_from=_exports_ids_from(
            table, config.daemon.first_id, capabilities.sets_slurm_variables, location
        ),
        prologue=table.job.prologue,
        login=table.job.environment == "login",
    )


def _exports_ids_from(
    table: ClusterTable, first_id: int, has_slurm_ids: bool, location: str
) -> int | None:
    """Return `ClusterSettings.exports_ids_from`. ConfigError if ids may be those of other jobs."""
    if table.job.job_id == "native":
        return None
    if first_id > 1:
        return first_id
    if table.job.job_id == "metasched":
        raise ConfigError(
            f'job_id = "metasched", {location}; write first_id in [daemon], above all native ids'
        )
    return None if has_slurm_ids else 1


def _licence_server_settings(table: LicenceServerTable, path: Path | None) -> LicenceServerSettings:
    location = f'{path}, licence_server "{table.name}"'
    server_type = _plugin_class(
        "kind", table.kind, LICENCE_SERVER_GROUP, licence_server_class, location
    )
    return LicenceServerSettings(
        name=table.name,
        server_type=table.kind,
        options=_plugin_options(server_type.Options, table, location),
        interval=table.interval,
        timeout=table.timeout,
        features=table.features,
    )


def _plugin_class(
    key: str,
    name: str,
    entry_point_group: str,
    load_class: Callable[[str], type[PluginT]],
    location: str,
) -> type[PluginT]:
    """Return the class registered under a name. ConfigError if there is none."""
    try:
        return load_class(name)
    except KeyError:
        from importlib.metadata import entry_points

        installed = tuple(sorted(entry_points(group=entry_point_group).names))
        raise ConfigError(
            f'unknown {key} "{name}", {location}; {suggestion(name, installed)}'
        ) from None


def _plugin_options(options_class: type[Any], table: BaseModel, location: str) -> dict[str, Any]:
    """Return the options of a plug-in. ConfigError for an unknown key or invalid value."""
    options = table.model_extra or {}
    option_names = tuple(field.name for field in fields(options_class))
    for key in options:
        if key not in option_names:
            known_keys = (*option_names, *type(table).model_fields)
            raise ConfigError(f'unknown key "{key}", {location}; {suggestion(key, known_keys)}')
    try:
        return asdict(TypeAdapter(options_class).validate_json(json.dumps(options), strict=True))
    except ValidationError as error:
        raise ConfigError(describe_first(error, options, options_class, location)) from None
