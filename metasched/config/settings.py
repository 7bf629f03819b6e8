"""The settings of a daemon, as the rest of the program reads them."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metasched.config.tables import DaemonTable, SiteTable, TcpTable
from metasched.db.store import Database
from metasched.errors import UserError
from metasched.model.cluster import Cluster
from metasched.model.licence import LicencePool
from metasched.model.reservation_request import ReservationQuota
from metasched.policies.policy import Policy


class ConfigError(UserError):
    """A configuration that cannot be used; the message says what, where and what to do."""


@dataclass(frozen=True)
class ClusterSettings:
    """One cluster: what the core sees, and how its worker is started. Seconds."""

    cluster: Cluster
    options: dict[str, Any]
    poll_interval: float
    call_timeout: float
    python: str | None
    environment: dict[str, str]
    names_nodes: bool = False  # of what is reserved there; else its manager chooses processors


@dataclass(frozen=True)
class LicenceServerSettings:
    """Where licences are counted: asked every `interval` seconds, for `timeout` at the most.

    `features` maps names of ours to the server's own; a licence that it lacks has the same there.
    """

    name: str
    server_type: str
    options: dict[str, Any]
    interval: float
    timeout: float
    features: dict[str, str]


@dataclass(frozen=True)
class Settings:
    """A whole, valid configuration. `origin` is the file it came from, None the defaults.

    `folder` is where the clusters' workers keep what they must, `keep` are the seconds for which
    ended jobs are remembered.
    """

    config_path: Path | None
    database: Database
    socket: Path
    state_folder: Path
    retention: float
    policy: Policy
    clusters: tuple[ClusterSettings, ...]
    user_classes: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    licences: tuple[LicencePool, ...] = ()
    max_array_tasks: int = DaemonTable.model_fields["max_array_tasks"].default
    site: SiteTable | None = None  # None: personal mode
    tcp: TcpTable | None = None  # None: unix socket only
    licence_servers: tuple[LicenceServerSettings, ...] = ()
    quotas: dict[str, ReservationQuota] = field(default_factory=lambda: {"": ReservationQuota()})
    mail_program: Path | None = None  # None: nobody is told by mail

    @property
    def launcher(self) -> Path | None:
        """The launcher's socket; None in personal mode."""
        return None if self.site is None else Path(self.site.launcher)

    def is_operator(self, user: str) -> bool:
        """Whether a user may see and change everybody's jobs."""
        daemon_account = pwd.getpwuid(os.geteuid()).pw_name
        if self.site is None or user in ("root", daemon_account, *self.site.operators):
            return True
        return not groups_of(user).isdisjoint(self.site.operator_groups)

    def quota_of(self, user: str) -> ReservationQuota:
        """What the user may reserve."""
        return self.quotas.get(self.class_of(user), self.quotas[""])

    def class_of(self, user: str) -> str:
        """The user's class: the first that names the user, else one of its groups, else regular."""
        for name, (users, _) in self.user_classes.items():
            if user in users:
                return name
        groups = groups_of(user)
        for name, (_, members) in self.user_classes.items():
            if groups.intersection(members):
                return name
        return "regular"


def groups_of(user: str) -> set[str]:
    """The names of a user's groups; none if there is no such account."""
    try:
        primary_group = pwd.getpwnam(user).pw_gid
    except KeyError:
        return set()
    names = set()
    for group_id in os.getgrouplist(user, primary_group):
        with contextlib.suppress(KeyError):  # a group without a name
            names.add(grp.getgrgid(group_id).gr_name)
    return names
