"""The checked configuration as typed settings."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sqlalchemy.engine import URL

from metasched.adapters.base import Capabilities
from metasched.config.tables import (
    DEFAULT_USE_INTERVAL,
    ConfigFile,
    DaemonTable,
    ReservationsTable,
    SiteTable,
    TcpTable,
)
from metasched.errors import UserError
from metasched.model.calendar import CalendarAct
from metasched.model.cluster import Cluster
from metasched.model.fair_share import FairShareSettings
from metasched.model.licence import LicencePool
from metasched.model.limits import LimitSettings
from metasched.model.policy_version import PolicyVersion
from metasched.model.reservation_request import ReservationQuota
from metasched.policies.policy import Policy

_DAEMON = DaemonTable()  # supplies defaults


class ConfigError(UserError):
    """The configuration is invalid. The message gives problem, place and remedy."""


@dataclass(frozen=True)
class ClusterSettings:
    """One cluster, and how its worker is started."""

    cluster: Cluster
    options: dict[str, Any]  # of its adapter
    poll_interval: float  # seconds
    call_timeout: float  # seconds
    python: str | None  # interpreter of the worker; None: that of the daemon
    environment: dict[str, str]  # added to the environment of the worker
    capabilities: Capabilities = field(default_factory=Capabilities)  # of its adapter
    # number of owners whose commands run side by side; 0: all commands and polls run in sequence
    owner_calls: int = 0
    # lowest id of a job whose script sees it in Slurm's variables; None: all see the manager's.
    # 1, where Slurm's own ids are not hidden by it: scripts with #SBATCH lines alone see it
    exports_ids_from: int | None = None
    prologue: str = ""  # lines of sh that run before each script
    login: bool = False  # scripts have the environment of a login shell, not of the submission


@dataclass(frozen=True)
class LicenceServerSettings:
    """One licence server."""

    name: str
    server_type: str  # name of an entry point
    options: dict[str, Any]  # of its type
    interval: float  # seconds between queries
    timeout: float  # seconds for a query
    features: dict[str, str]  # name at the server by licence; others have the same name there


@dataclass(frozen=True)
class CalendarSettings:
    """One entry of the calendar; see `CalendarEntry`."""

    name: str
    act: CalendarAct
    rule: str
    zone: str
    grace: float  # most seconds that a run may be late


@dataclass(frozen=True)
class RequestLimits:
    """What clients may take of the daemon."""

    connections: int = _DAEMON.connections  # open at a listener; a peer may have a quarter
    # seconds from the connection, or the last response, to the end of the request's head
    head_timeout: float = _DAEMON.head_timeout
    # seconds from the end of the head to that of the body; also to read a response
    body_timeout: float = _DAEMON.body_timeout
    max_bytes: int = _DAEMON.max_request  # of a request's body
    max_answers: int = _DAEMON.max_answers  # bytes of the temporary files of all answers


@dataclass(frozen=True)
class PolicyOrigin:
    """The site's own policy file; an operator may have activated another policy since."""

    path: str = ""  # "": the defaults
    digest: str = ""  # SHA-256 of the file
    owner: str = ""  # account that owns the file
    text: str = ""  # contents of the file


@dataclass(frozen=True)
class MailSettings:
    """How mail is sent."""

    program: Path
    # whether it is called as sendmail(8), with a complete message; else as mail(1)
    is_sendmail: bool
    sender: str  # address; "": as the program chooses
    domains: tuple[str, ...]  # of addresses that jobs may name; "*": all
    per_hour: int  # mails about jobs to a user, and alerts to operators
    alerts_to: tuple[str, ...] = ()  # addresses of operators


@dataclass(frozen=True)
class WebhookSettings:
    """A receiver of events."""

    name: str
    url: str
    secret_file: Path
    kinds: frozenset[str]  # of notices
    allow_private: bool  # whether its address may be private, and its URL without TLS


@dataclass(frozen=True)
class WebSettings:
    """Pages for browsers."""

    url: str  # of the pages, as browsers reach them over TCP; "": they do not
    proxy_socket: Path | None  # for a reverse proxy alone
    proxy_uid: int | None  # of the reverse proxy
    user_header: str  # header field in which it names its user

    @property
    def is_private(self) -> bool:
        """Whether browsers reach the pages by TLS, so that a cookie may be kept to it."""
        return self.url.startswith("https:")


@dataclass(frozen=True)
class Settings:
    """A complete, valid configuration."""

    config_path: Path | None  # None: the defaults
    database_url: URL  # absolute
    socket: Path  # unix socket of the API
    state_folder: Path  # parent of the clusters' state folders
    retention: float  # seconds for which ended jobs are stored
    policy: Policy  # in force
    clusters: tuple[ClusterSettings, ...]
    user_classes: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]  # users and groups by class
    licences: tuple[LicencePool, ...] = ()
    max_array_tasks: int = _DAEMON.max_array_tasks
    first_id: int = _DAEMON.first_id  # lowest id of a new job
    site: SiteTable | None = None  # None: personal mode
    tcp: TcpTable | None = None  # None: unix socket only
    web: WebSettings | None = None  # None: no pages
    # environment variables that lead jobs to the daemon; empty: those of the submission
    job_variables: Mapping[str, str] = field(default_factory=dict)
    licence_servers: tuple[LicenceServerSettings, ...] = ()
    # by user class; "" for all others
    quotas: dict[str, ReservationQuota] = field(default_factory=lambda: {"": ReservationQuota()})
    mail: MailSettings | None = None  # None: no mail is sent
    webhooks: tuple[WebhookSettings, ...] = ()
    calendar: tuple[CalendarSettings, ...] = ()
    zone: str = "UTC"  # the site's time zone
    # seconds before its start at which an occurrence of a series is reserved
    series_ahead: float = ReservationsTable().ahead
    requests: RequestLimits = field(default_factory=RequestLimits)
    limits: LimitSettings = field(default_factory=LimitSettings)
    use_interval: float = DEFAULT_USE_INTERVAL  # seconds between queries of accounting
    fair_share: FairShareSettings | None = None  # None: users take turns
    event_retention: float = _DAEMON.keep_events  # seconds for which audit records are stored
    log_format: Literal["text", "json"] = _DAEMON.log_format
    policy_origin: PolicyOrigin = field(default_factory=lambda: PolicyOrigin())
    # that `policy` is of; None: it is as in the file, and the ledger was not asked yet
    policy_version: PolicyVersion | None = None
    probe_account: str = ""  # of the jobs of `doctor --probe`; "": none
    # SHA-256 of each file that was read, by its absolute path
    files: Mapping[Path, str] = field(default_factory=dict)
    tables: ConfigFile = field(default_factory=ConfigFile)  # as written in the file

    @property
    def launcher(self) -> Path | None:
        """Socket of the launcher; None in personal mode."""
        return None if self.site is None else Path(self.site.launcher)

    @property
    def jobs_make_tokens(self) -> bool:
        """Whether jobs make tokens for their calls of the daemon."""
        return bool(self.job_variables) and self.tcp is not None and self.tcp.tokens

    def is_operator(self, user: str) -> bool:
        """Return whether a user may see and change the jobs of all users."""
        daemon_account = pwd.getpwuid(os.geteuid()).pw_name
        if self.site is None or user in ("root", daemon_account, *self.site.operators):
            return True
        return not groups_of(user).isdisjoint(self.site.operator_groups)

    def quota_of(self, user: str) -> ReservationQuota:
        """Return the limits of a user's reservations."""
        return self.quotas.get(self.class_of(user), self.quotas[""])

    def memberships_of(self, user: str) -> tuple[str, tuple[str, ...]]:
        """Return a user's class, and those of the user's groups that have limits."""
        return self.class_of(user), self.limited_groups_of(user)

    def limited_groups_of(self, user: str) -> tuple[str, ...]:
        """Return those groups of a user that have limits."""
        if not self.limits.groups:
            return ()
        return tuple(sorted(groups_of(user).intersection(self.limits.groups)))

    def class_of(self, user: str) -> str:
        """Return the first class that lists the user, else a group of the user, else "regular"."""
        for name, (users, _) in self.user_classes.items():
            if user in users:
                return name
        groups = groups_of(user)
        for name, (_, members) in self.user_classes.items():
            if groups.intersection(members):
                return name
        return "regular"


def groups_of(user: str) -> set[str]:
    """Return the names of a user's groups; none for an unknown account."""
    try:
        primary_group = pwd.getpwnam(user).pw_gid
    except KeyError:
        return set()
    names = set()
    for group_id in os.getgrouplist(user, primary_group):
        with contextlib.suppress(KeyError):  # the group has no name
            names.add(grp.getgrgid(group_id).gr_name)
    return names


def primary_group_of(user: str) -> str:
    """Return the name of a user's primary group, "" for an unknown account or without a name."""
    try:
        return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    except KeyError:
        return ""
