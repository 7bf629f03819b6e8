"""metasched.toml and the policy file -> typed settings; every error names file, key and mend."""

from __future__ import annotations

import difflib
import getpass
import itertools
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    TypeAdapter,
    ValidationError,
)

from metasched.adapters.base import Capabilities
from metasched.adapters.registry import ADAPTER_GROUP, adapter_class
from metasched.config.settings import ClusterSettings, ConfigError, LicenceServerSettings, Settings
from metasched.config.tables import (
    MAP_NAMES,
    ClusterTable,
    ConfigFile,
    LicenceServerTable,
    PolicyFile,
    ReservationsTable,
    TableT,
    TcpTable,
)
from metasched.db.backends import database_from_url
from metasched.db.sqlite import Sqlite
from metasched.db.store import Database, StoreError
from metasched.licence_servers.base import LICENCE_SERVER_GROUP as SERVER_GROUP
from metasched.licence_servers.base import licence_server_class
from metasched.model.cluster import Cluster
from metasched.model.licence import LicencePool
from metasched.model.reservation_request import ReservationQuota
from metasched.paths import (
    MAX_SOCKET_PATH_BYTES,
    is_url,
    personal_config,
    personal_data,
    personal_socket,
    site_config,
)
from metasched.policies.classify import Classifier
from metasched.policies.policy import POLICY_CHOICES, Policy

PluginT = TypeVar("PluginT")


def find_config(path: Path | None) -> Path | None:
    """The configuration to use: the one given, else the personal, else the site's, else none."""
    if path is None and (environment_path := os.environ.get("METASCHED_CONFIG")):
        path = Path(environment_path)
    if path is not None:
        return path
    return next(
        (candidate for candidate in (personal_config(), site_config()) if candidate.exists()), None
    )


def load_settings(path: Path | None) -> Settings:
    """Read the configuration at `path`; None: one local cluster with this host's processors.

    ConfigError for anything that is wrong, in one line.
    """
    if path is None:
        table: dict[str, Any] = {
            "cluster": [
                {
                    "name": "local",
                    "adapter": "local",
                    "cpus": os.cpu_count() or 1,
                    "map": {"account": {"*": "*"}, "qos": {"*": "*"}},
                }
            ]
        }
    else:
        table = _read_toml(path)
    config = _validated(ConfigFile, table, path)
    if not config.cluster:
        raise ConfigError(f"no cluster in {path}; add a [[cluster]] table")
    clusters = tuple(
        _cluster_settings(
            cluster,
            {
                licence.name: licence.machines[cluster.name]
                for licence in config.licence
                if cluster.name in licence.machines
            },
            path,
        )
        for cluster in config.cluster
    )
    servers = tuple(_licence_server_settings(table, path) for table in config.licence_server)
    _require_unique("cluster", [cluster.cluster.name for cluster in clusters], path)
    _require_unique("licence_server", [server.name for server in servers], path)
    base_folder = path.parent.absolute() if path is not None else personal_data()
    policy_file = base_folder / config.policy.file if config.policy.file is not None else None
    policy = read_policy(policy_file)
    if policy.send != "late" and (
        late_clusters := [cluster.name for cluster in config.cluster if cluster.binding == "late"]
    ):
        raise ConfigError(
            f'binding = "late", {path}, cluster "{late_clusters[0]}"; write send = "late" in the policy file'
        )
    for user_class in config.user_class:
        if user_class.name not in policy.classes:
            class_names = ", ".join(policy.classes)
            raise ConfigError(
                f'user class "{user_class.name}" in {path} has no base value in the policy; '
                f"it has {class_names}"
            )
    ledger_database: Database = Sqlite(personal_data() / "metasched.db")
    if config.daemon.database is not None:
        try:
            ledger_database = database_from_url(config.daemon.database, base_folder)
        except StoreError as error:
            raise ConfigError(f"{error}, {path}, [daemon]") from None
    if is_url(config.daemon.socket or ""):
        raise ConfigError(f"socket is a URL, {path}, [daemon]; that is for clients, name a path")
    socket = base_folder / config.daemon.socket if config.daemon.socket else personal_socket()
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"socket {socket} has more than {MAX_SOCKET_PATH_BYTES} bytes; name a shorter path"
        )
    return Settings(
        config_path=path,
        database=ledger_database,
        socket=socket,
        state_folder=base_folder / config.daemon.folder
        if config.daemon.folder
        else ledger_database.folder,
        retention=config.daemon.keep,
        policy=policy,
        clusters=clusters,
        user_classes={
            cluster.name: (cluster.users, cluster.groups) for cluster in config.user_class
        },
        licences=_licence_pools(config, path),
        max_array_tasks=config.daemon.max_array_tasks,
        site=config.site
        and config.site.model_copy(update={"launcher": str(base_folder / config.site.launcher)}),
        tcp=None if config.tcp is None else _checked_tcp(config.tcp, base_folder),
        licence_servers=servers,
        quotas=_class_quotas(config.reservations, policy, path),
        mail_program=base_folder / config.daemon.mail_program
        if config.daemon.mail_program
        else None,
    )


def _require_unique(table_name: str, names: list[str], path: Path | None) -> None:
    """ConfigError if a name is there twice."""
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f'{table_name} "{min(duplicates)}" is there twice in {path}; rename one')


def _licence_pools(config: ConfigFile, path: Path | None) -> tuple[LicencePool, ...]:
    """ConfigError if one is there twice, makes no sense, or names what is not there."""
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
                fix = (
                    _suggestion(name, defined_names)
                    if defined_names
                    else f"add a [[{table_name}]] table"
                )
                raise ConfigError(f'no {table_name} "{name}", {location}; {fix}')
        if table.clusters and (unlisted := set(table.machines).difference(table.clusters)):
            raise ConfigError(
                f'machines of cluster "{min(unlisted)}", {location}; add it to its clusters'
            )
        for server in config.licence_server:
            minimum = server.interval + server.timeout
            if server.name == table.server and table.stale_after < minimum:
                raise ConfigError(
                    f"stale_after = {table.stale_after:g}, {location}; write {minimum:g} or more, the "
                    f"interval and the timeout of its server"
                )
        linger = table.linger
        if linger is None:  # a server tells when a token is free
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
    """By class of users; "" is everybody else's."""
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
    """ConfigError if others feed the cluster, or its manager chooses nodes by itself."""
    if not capabilities.reserves_named_nodes:
        raise ConfigError(
            f'binding = "late", {location}; leave it out, no nodes can be reserved there by name'
        )
    if not table.exclusive:
        raise ConfigError(
            f'binding = "late", {location}; write exclusive = true, if only metasched feeds it'
        )


def _checked_tcp(table: TcpTable, base_folder: Path) -> TcpTable:
    """ConfigError if tokens and answers would travel in clear, or nobody could say who they are."""
    host, colon, port = table.listen.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(f'listen = "{table.listen}", [tcp]; write "address:port"')
    if invalid_names := [name for name in table.names if not re.fullmatch(r"[^\s/]+:\d+", name)]:
        raise ConfigError(f'names has "{invalid_names[0]}", [tcp]; write "host:port"')
    if (table.certificate is None) != (table.key is None):
        raise ConfigError("certificate and key, [tcp]; give both or neither")
    if table.certificate is None and host.strip("[]") not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(
            f'listen = "{table.listen}" without a certificate, [tcp]; give certificate and key, '
            "or listen on 127.0.0.1 behind a proxy that speaks TLS"
        )
    if not (table.munge or table.tokens):
        raise ConfigError("neither munge nor tokens, [tcp]; allow one, or leave the table out")
    paths = {
        name: str(base_folder / file)
        for name, file in (("certificate", table.certificate), ("key", table.key))
        if file is not None
    }
    return table.model_copy(update=paths)


def read_policy(path: Path | None) -> Policy:
    """The policy of a file; None: the defaults. ConfigError in one line."""
    if path is None:
        return Policy()
    policy_file = _validated(PolicyFile, _read_toml(path), path)
    for key, allowed_values in POLICY_CHOICES.items():
        if getattr(policy_file, key) not in allowed_values:
            raise ConfigError(
                f'{key} = "{getattr(policy_file, key)}" in {path}; write "{allowed_values[0]}" or "{allowed_values[1]}"'
            )
    if "regular" not in policy_file.classes:
        raise ConfigError(f'no class "regular", [classes] in {path}; add its base value')
    heuristic_names = tuple(Classifier().heuristics)
    for name in policy_file.weights:
        if name not in heuristic_names:
            raise ConfigError(
                f'unknown weight "{name}" in {path}; {_suggestion(name, heuristic_names)}'
            )
    try:
        Classifier(weights=policy_file.weights)
    except ValueError as error:
        raise ConfigError(f"{error}, [weights] in {path}") from None
    return Policy(
        **{
            policy_field.name: getattr(policy_file, policy_field.name)
            for policy_field in fields(Policy)
        }
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no file {path}; create it, or name another with --config") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; make it readable for {_account_name()}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; write it again as TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML ({error}); mend that line") from None


def _account_name() -> str:
    return getpass.getuser()


def _suggestion(name: str, known_names: tuple[str, ...]) -> str:
    matches = difflib.get_close_matches(name, known_names, n=1)
    return f'write "{matches[0]}"' if matches else f"known are {', '.join(known_names)}"


def _locate(location: tuple[int | str, ...], table: dict[str, Any]) -> tuple[str, str]:
    """The key that an error is about, and the table it is in, in the file's own words."""
    description = ""
    value: Any = table
    for step, next_step in itertools.pairwise(location):
        if isinstance(step, int):
            value = value[step]
            name = value.get("name") if isinstance(value, dict) else None
            description = f'{location[0]} "{name or step + 1}"'
        else:
            value = value.get(step) if isinstance(value, dict) else None
            description = description if isinstance(next_step, int) else f"[{step}]"
    return str(location[-1]) if location else "", description


def _validated(table_class: type[TableT], table: dict[str, Any], path: Path | None) -> TableT:
    try:
        return table_class.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_first_error(error, table, str(path), _known_keys(table_class))) from None


def _known_keys(table_class: type[BaseModel]) -> tuple[str, ...]:
    names = list(table_class.model_fields)
    for field_info in table_class.model_fields.values():
        for annotation in (field_info.annotation, *getattr(field_info.annotation, "__args__", ())):
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                names += annotation.model_fields
    return tuple(names)


def _first_error(
    error: ValidationError, table: dict[str, Any], path: str, known_names: tuple[str, ...]
) -> str:
    """The first mistake in one line: what, where; what to do."""
    mistake = error.errors()[0]
    key, description = _locate(mistake["loc"], table)
    location = f"{path}, {description}" if description else path
    if mistake["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f'unknown key "{key}", {location}; {_suggestion(key, known_names)}'
    if mistake["type"] in ("missing", "missing_argument"):
        return f'no key "{key}", {location}; add it'
    message = mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "tuple_type":
        message = (
            f"write [[{key}]]" if isinstance(mistake["input"], dict) else "write a list in [ ]"
        )
    explanation = f"{message[:1].lower()}{message[1:]}"
    # a data class's own check names the key itself
    return (
        f"{key} = {mistake['input']!r}, {location}; {explanation}"
        if key
        else f"{explanation}, {location}"
    )


def _cluster_settings(
    table: ClusterTable, licensed: Mapping[str, str], path: Path | None
) -> ClusterSettings:
    table_location = f'{path}, cluster "{table.name}"'
    adapter_type = _plugin_class(
        "adapter", table.adapter, ADAPTER_GROUP, adapter_class, table_location
    )
    options = _plugin_options(adapter_type.Options, table, table_location)
    capabilities = adapter_type.capabilities_for(adapter_type.Options(**options))
    if table.binding == "late":
        _check_late_binding(table, capabilities, table_location)
    if table.takes == "reservations" and not capabilities.reservations:
        raise ConfigError(
            f'takes = "reservations", {table_location}; leave it out, its manager keeps no reservations'
        )
    for name in table.map:
        if name not in MAP_NAMES:
            raise ConfigError(
                f'unknown map "{name}", {table_location}; {_suggestion(name, MAP_NAMES)}'
            )
    return ClusterSettings(
        cluster=Cluster(
            name=table.name,
            adapter=table.adapter,
            benchmark=table.benchmark,
            filesystems=table.filesystems,
            max_tasks_per_dispatch=adapter_type.chunk,
            maps=table.map,
            move_after=table.move_after,
            fence_dir=table.fence_dir,
            supports_reservations=capabilities.reservations,
            takes=table.takes,
            binds_late=table.binding == "late",
            lead=table.lead,
            guard=table.guard,
            granularity=capabilities.limit_granularity,
            licence_features=licensed,
        ),
        options=options,
        poll_interval=table.poll_interval or adapter_type.poll_interval,
        call_timeout=table.call_timeout,
        python=table.python,
        environment={**adapter_type.environment, **table.environment},
        names_nodes=capabilities.reserves_named_nodes,
    )


def _licence_server_settings(table: LicenceServerTable, path: Path | None) -> LicenceServerSettings:
    location = f'{path}, licence_server "{table.name}"'
    server_type = _plugin_class("kind", table.kind, SERVER_GROUP, licence_server_class, location)
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
    """What is registered under a name. ConfigError if nothing is."""
    try:
        return load_class(name)
    except KeyError:
        from importlib.metadata import entry_points

        known_names = tuple(
            sorted(entry_point.name for entry_point in entry_points(group=entry_point_group))
        )
        raise ConfigError(
            f'unknown {key} "{name}", {location}; {_suggestion(name, known_names)}'
        ) from None


def _plugin_options(options_class: type[Any], table: BaseModel, location: str) -> dict[str, Any]:
    """The keys of a table that belong to what it names; ConfigError if one makes no sense."""
    options = table.model_extra or {}
    option_names = tuple(option_field.name for option_field in fields(options_class))
    for key in options:
        if key not in option_names:
            known_keys = (*option_names, *type(table).model_fields)
            raise ConfigError(f'unknown key "{key}", {location}; {_suggestion(key, known_keys)}')
    try:
        return asdict(TypeAdapter(options_class).validate_python(options))
    except ValidationError as error:
        raise ConfigError(_first_error(error, options, location, option_names)) from None
