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
from metasched.adapters.registry import GROUP, adapter_class
from metasched.config.settings import ClusterSettings, ConfigError, LicenceServerSettings, Settings
from metasched.config.tables import (
    MAPS,
    ClusterTable,
    LicenceServerTable,
    PolicyFile,
    ReservationsTable,
    Site,
    T,
    TcpTable,
)
from metasched.db.backends import database
from metasched.db.sqlite import Sqlite
from metasched.db.store import Database, StoreError
from metasched.licence_servers.base import GROUP as SERVER_GROUP
from metasched.licence_servers.base import server_class
from metasched.model.cluster import Cluster
from metasched.model.licence import LicencePool
from metasched.model.reservation_request import Quota
from metasched.paths import (
    LONGEST_SOCKET,
    is_url,
    personal_config,
    personal_data,
    personal_socket,
    site_config,
)
from metasched.policies.classify import Classifier
from metasched.policies.policy import WORDS, Policy

C = TypeVar("C")


def find(path: Path | None) -> Path | None:
    """The configuration to use: the one given, else the personal, else the site's, else none."""
    if path is None and (named := os.environ.get("METASCHED_CONFIG")):
        path = Path(named)
    if path is not None:
        return path
    return next((p for p in (personal_config(), site_config()) if p.exists()), None)


def load(path: Path | None) -> Settings:
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
        table = _read(path)
    site = _valid(Site, table, path)
    if not site.cluster:
        raise ConfigError(f"no cluster in {path}; add a [[cluster]] table")
    clusters = tuple(
        _cluster(
            c, {t.name: t.machines[c.name] for t in site.licence if c.name in t.machines}, path
        )
        for c in site.cluster
    )
    servers = tuple(_licence_server(table, path) for table in site.licence_server)
    _differ("cluster", [c.cluster.name for c in clusters], path)
    _differ("licence_server", [server.name for server in servers], path)
    base = path.parent.absolute() if path is not None else personal_data()
    policy_file = base / site.policy.file if site.policy.file is not None else None
    policy = read_policy(policy_file)
    if policy.send != "late" and (late := [c.name for c in site.cluster if c.binding == "late"]):
        raise ConfigError(
            f'binding = "late", {path}, cluster "{late[0]}"; write send = "late" in the policy file'
        )
    for given in site.user_class:
        if given.name not in policy.classes:
            known = ", ".join(policy.classes)
            raise ConfigError(
                f'user class "{given.name}" in {path} has no base value in the policy; '
                f"it has {known}"
            )
    kept: Database = Sqlite(personal_data() / "metasched.db")
    if site.daemon.database is not None:
        try:
            kept = database(site.daemon.database, base)
        except StoreError as error:
            raise ConfigError(f"{error}, {path}, [daemon]") from None
    if is_url(site.daemon.socket or ""):
        raise ConfigError(f"socket is a URL, {path}, [daemon]; that is for clients, name a path")
    socket = base / site.daemon.socket if site.daemon.socket else personal_socket()
    if len(os.fsencode(socket)) > LONGEST_SOCKET:
        raise ConfigError(
            f"socket {socket} has more than {LONGEST_SOCKET} bytes; name a shorter path"
        )
    return Settings(
        origin=path,
        database=kept,
        socket=socket,
        folder=base / site.daemon.folder if site.daemon.folder else kept.folder,
        keep=site.daemon.keep,
        policy=policy,
        clusters=clusters,
        classes={c.name: (c.users, c.groups) for c in site.user_class},
        licences=_licences(site, path),
        max_array_tasks=site.daemon.max_array_tasks,
        site=site.site
        and site.site.model_copy(update={"launcher": str(base / site.site.launcher)}),
        tcp=None if site.tcp is None else _tcp(site.tcp, base),
        licence_servers=servers,
        quotas=_quotas(site.reservations, policy, path),
        mail_program=base / site.daemon.mail_program if site.daemon.mail_program else None,
    )


def _differ(kind: str, names: list[str], path: Path | None) -> None:
    """ConfigError if a name is there twice."""
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f'{kind} "{min(twice)}" is there twice in {path}; rename one')


def _licences(site: Site, path: Path | None) -> tuple[LicencePool, ...]:
    """ConfigError if one is there twice, makes no sense, or names what is not there."""
    _differ("licence", [table.name for table in site.licence], path)
    clusters = tuple(cluster.name for cluster in site.cluster)
    servers = tuple(server.name for server in site.licence_server)
    pools = []
    for table in site.licence:
        where = f'{path}, licence "{table.name}"'
        named = [("cluster", name, clusters) for name in (*table.clusters, *table.machines)]
        named += [("licence_server", table.server, servers)] if table.server else []
        for kind, name, known in named:
            if name not in known:
                mend = _nearest(name, known) if known else f"add a [[{kind}]] table"
                raise ConfigError(f'no {kind} "{name}", {where}; {mend}')
        if table.clusters and (other := set(table.machines).difference(table.clusters)):
            raise ConfigError(
                f'machines of cluster "{min(other)}", {where}; add it to its clusters'
            )
        for server in site.licence_server:
            least = server.interval + server.timeout
            if server.name == table.server and table.stale_after < least:
                raise ConfigError(
                    f"stale_after = {table.stale_after:g}, {where}; write {least:g} or more, the "
                    f"interval and the timeout of its server"
                )
        linger = table.linger
        if linger is None:  # a server tells when a token is free
            linger = table.stale_after if table.server else 0.0
        try:
            given = table.model_dump(exclude={"machines"})
            given |= {"linger": linger, "clusters": table.clusters or tuple(table.machines)}
            pools.append(LicencePool(**given))
        except ValueError as error:
            what, _, mend = str(error).partition("; ")
            raise ConfigError(f"{what}, {where}; {mend}") from None
    return tuple(pools)


def _quotas(table: ReservationsTable, policy: Policy, path: Path | None) -> dict[str, Quota]:
    """By class of users; "" is everybody else's."""
    if unknown := sorted(table.classes.keys() - policy.classes.keys()):
        raise ConfigError(
            f'no user class "{unknown[0]}" in the policy, {path}, [reservations.classes]; '
            f"it has {', '.join(policy.classes)}"
        )
    found = {"": table, **table.classes}
    return {
        name: Quota(quota.horizon, quota.longest, quota.most, quota.let_run)
        for name, quota in found.items()
    }


def _can_bind_late(table: ClusterTable, able: Capabilities, where: str) -> None:
    """ConfigError if others feed the cluster, or its manager chooses nodes by itself."""
    if not able.names_nodes:
        raise ConfigError(
            f'binding = "late", {where}; leave it out, no nodes can be reserved there by name'
        )
    if not table.exclusive:
        raise ConfigError(
            f'binding = "late", {where}; write exclusive = true, if only metasched feeds it'
        )


def _tcp(table: TcpTable, base: Path) -> TcpTable:
    """ConfigError if tokens and answers would travel in clear, or nobody could say who they are."""
    host, colon, port = table.listen.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(f'listen = "{table.listen}", [tcp]; write "address:port"')
    if wrong := [name for name in table.names if not re.fullmatch(r"[^\s/]+:\d+", name)]:
        raise ConfigError(f'names has "{wrong[0]}", [tcp]; write "host:port"')
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
        name: str(base / path)
        for name, path in (("certificate", table.certificate), ("key", table.key))
        if path is not None
    }
    return table.model_copy(update=paths)


def read_policy(path: Path | None) -> Policy:
    """The policy of a file; None: the defaults. ConfigError in one line."""
    if path is None:
        return Policy()
    given = _valid(PolicyFile, _read(path), path)
    for key, allowed in WORDS.items():
        if getattr(given, key) not in allowed:
            raise ConfigError(
                f'{key} = "{getattr(given, key)}" in {path}; write "{allowed[0]}" or "{allowed[1]}"'
            )
    if "regular" not in given.classes:
        raise ConfigError(f'no class "regular", [classes] in {path}; add its base value')
    known = tuple(Classifier().heuristics)
    for name in given.weights:
        if name not in known:
            raise ConfigError(f'unknown weight "{name}" in {path}; {_nearest(name, known)}')
    try:
        Classifier(weights=given.weights)
    except ValueError as error:
        raise ConfigError(f"{error}, [weights] in {path}") from None
    return Policy(**{f.name: getattr(given, f.name) for f in fields(Policy)})


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no file {path}; create it, or name another with --config") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; make it readable for {_me()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; write it again as TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML ({error}); mend that line") from None


def _me() -> str:
    return getpass.getuser()


def _nearest(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f'write "{close[0]}"' if close else f"known are {', '.join(known)}"


def _where(location: tuple[int | str, ...], table: dict[str, Any]) -> tuple[str, str]:
    """The key that an error is about, and the table it is in, in the file's own words."""
    place = ""
    inside: Any = table
    for step, following in itertools.pairwise(location):
        if isinstance(step, int):
            inside = inside[step]
            name = inside.get("name") if isinstance(inside, dict) else None
            place = f'{location[0]} "{name or step + 1}"'
        else:
            inside = inside.get(step) if isinstance(inside, dict) else None
            place = place if isinstance(following, int) else f"[{step}]"
    return str(location[-1]) if location else "", place


def _valid(kind: type[T], table: dict[str, Any], path: Path | None) -> T:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_first(error, table, str(path), _known_keys(kind))) from None


def _known_keys(kind: type[BaseModel]) -> tuple[str, ...]:
    names = list(kind.model_fields)
    for table in kind.model_fields.values():
        for part in (table.annotation, *getattr(table.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                names += part.model_fields
    return tuple(names)


def _first(error: ValidationError, table: dict[str, Any], path: str, known: tuple[str, ...]) -> str:
    """The first mistake in one line: what, where; what to do."""
    wrong = error.errors()[0]
    key, place = _where(wrong["loc"], table)
    where = f"{path}, {place}" if place else path
    if wrong["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f'unknown key "{key}", {where}; {_nearest(key, known)}'
    if wrong["type"] in ("missing", "missing_argument"):
        return f'no key "{key}", {where}; add it'
    said = wrong["msg"].removeprefix("Value error, ")
    if wrong["type"] == "tuple_type":
        said = f"write [[{key}]]" if isinstance(wrong["input"], dict) else "write a list in [ ]"
    told = f"{said[:1].lower()}{said[1:]}"
    # a data class's own check names the key itself
    return f"{key} = {wrong['input']!r}, {where}; {told}" if key else f"{told}, {where}"


def _cluster(
    table: ClusterTable, licensed: Mapping[str, str], path: Path | None
) -> ClusterSettings:
    where = f'{path}, cluster "{table.name}"'
    kind = _kind("adapter", table.adapter, GROUP, adapter_class, where)
    options = _options(kind.Options, table, where)
    able = kind.able(kind.Options(**options))
    if table.binding == "late":
        _can_bind_late(table, able, where)
    if table.takes == "reservations" and not able.reservations:
        raise ConfigError(
            f'takes = "reservations", {where}; leave it out, its manager keeps no reservations'
        )
    for name in table.map:
        if name not in MAPS:
            raise ConfigError(f'unknown map "{name}", {where}; {_nearest(name, MAPS)}')
    return ClusterSettings(
        cluster=Cluster(
            name=table.name,
            adapter=table.adapter,
            benchmark=table.benchmark,
            filesystems=table.filesystems,
            chunk=kind.chunk,
            maps=table.map,
            move_after=table.move_after,
            fence_dir=table.fence_dir,
            reserves=able.reservations,
            takes=table.takes,
            binds_late=table.binding == "late",
            lead=table.lead,
            guard=table.guard,
            granularity=able.limit_granularity,
            licensed=licensed,
        ),
        options=options,
        poll_interval=table.poll_interval or kind.poll_interval,
        call_timeout=table.call_timeout,
        python=table.python,
        environment={**kind.environment, **table.environment},
        names_nodes=able.names_nodes,
    )


def _licence_server(table: LicenceServerTable, path: Path | None) -> LicenceServerSettings:
    where = f'{path}, licence_server "{table.name}"'
    kind = _kind("kind", table.kind, SERVER_GROUP, server_class, where)
    return LicenceServerSettings(
        name=table.name,
        kind=table.kind,
        options=_options(kind.Options, table, where),
        interval=table.interval,
        timeout=table.timeout,
        features=table.features,
    )


def _kind(key: str, name: str, group: str, find: Callable[[str], type[C]], where: str) -> type[C]:
    """What is registered under a name. ConfigError if nothing is."""
    try:
        return find(name)
    except KeyError:
        from importlib.metadata import entry_points

        known = tuple(sorted(e.name for e in entry_points(group=group)))
        raise ConfigError(f'unknown {key} "{name}", {where}; {_nearest(name, known)}') from None


def _options(kind: type[Any], table: BaseModel, where: str) -> dict[str, Any]:
    """The keys of a table that belong to what it names; ConfigError if one makes no sense."""
    own = table.model_extra or {}
    known = tuple(f.name for f in fields(kind))
    for key in own:
        if key not in known:
            every = (*known, *type(table).model_fields)
            raise ConfigError(f'unknown key "{key}", {where}; {_nearest(key, every)}')
    try:
        return asdict(TypeAdapter(kind).validate_python(own))
    except ValidationError as error:
        raise ConfigError(_first(error, own, where, known)) from None
