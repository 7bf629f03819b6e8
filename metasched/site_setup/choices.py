"""What an admin decides about a site: clusters, account, database, paths."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import urlsplit

from metasched.errors import UserError

DEFAULT_DATABASE = "sqlite:////var/lib/metasched/metasched.db"
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_ACCOUNT_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.,+@/:=-]*")


class SiteSetupError(UserError):
    """The site cannot be set up so. The message gives problem, place and remedy."""

    exit_code = 1


@dataclass(frozen=True)
class SlurmCluster:
    """A Slurm cluster that the host reaches."""

    name: str
    config: str  # its slurm.conf
    bin_dir: str  # folder of sbatch, scancel and scontrol
    manager_accounts: ClassVar[tuple[str, ...]] = ("slurm",)  # that may own its files

    @property
    def obeyed_files(self) -> tuple[str, ...]:
        """The files that decide what its programs do."""
        return (self.config,)


@dataclass(frozen=True)
class GridEngineCell:
    """A Grid Engine cell that the host reaches."""

    name: str
    bin_dir: str  # folder of qsub, qdel, qhold and qrls
    library: str  # of DRMAA; unused in site mode
    environment: Mapping[str, str] = field(default_factory=dict)  # SGE_ROOT, SGE_CELL, ports
    manager_accounts: ClassVar[tuple[str, ...]] = ("sgeadmin", "sge")  # that may own its files

    @property
    def obeyed_files(self) -> tuple[str, ...]:
        """The files that decide what its programs do."""
        common = f"{self.environment['SGE_ROOT']}/{self.environment['SGE_CELL']}/common"
        files = [f"{common}/{name}" for name in ("act_qmaster", "bootstrap", "sge_request")]
        return (common, *filter(os.path.lexists, files))


@dataclass(frozen=True)
class LocalCluster:
    """The processors of this host."""

    name: str
    cpus: int
    manager_accounts: ClassVar[tuple[str, ...]] = ()
    obeyed_files: ClassVar[tuple[str, ...]] = ()


SiteCluster = SlurmCluster | GridEngineCell | LocalCluster


@dataclass(frozen=True)
class SiteChoices:
    """All that the files of a site depend on."""

    prefix: str  # of the environment that metasched is installed in
    package: str  # folder of the package there
    python: str  # interpreter that runs the launcher and supervisors as root and as users
    clusters: tuple[SiteCluster, ...]  # the most powerful first
    account: str = "metasched"
    group: str = "metasched"  # the account's own, by name or number
    database: str = DEFAULT_DATABASE
    operator_groups: tuple[str, ...] = ()

    @property
    def has_secret(self) -> bool:
        """Whether the address of the database contains a password."""
        parts = urlsplit(self.database)
        return parts.password is not None or "password" in parts.query

    def require_valid(self) -> None:
        """Raise SiteSetupError for a name or path that a unit or a configuration could not hold."""
        if not self.clusters:
            raise SiteSetupError(
                "no cluster was found; name some with --slurm, --gridengine or --local"
            )
        names = [cluster.name for cluster in self.clusters]
        for name in names:
            if not _CLUSTER_NAME.fullmatch(name):
                raise SiteSetupError(
                    f"{name!r} is no name of a cluster; use up to 63 letters, digits, . _ and -"
                )
            if names.count(name) > 1:
                raise SiteSetupError(
                    f'two clusters have the name "{name}"; name them with NAME=, as in '
                    "--slurm west=/etc/slurm/west/slurm.conf"
                )
        for group in (self.account, *self.operator_groups):
            if not _ACCOUNT_NAME.fullmatch(group):
                raise SiteSetupError(f"{group!r} is no name of an account or group; correct it")
        if self.account == "root":
            raise SiteSetupError("--account root: the daemon is not root; name another account")
        for path in (self.prefix, self.package, self.python, *self._cluster_paths()):
            if not _PLAIN_PATH.fullmatch(path) or os.path.normpath(path) != path:
                raise SiteSetupError(
                    f"{path!r} is no plain absolute path; use one without blanks and .."
                )
        if not self.database.isprintable() or "://" not in self.database:
            raise SiteSetupError(
                "--database is no address; write sqlite:////PATH or postgresql://..."
            )

    def _cluster_paths(self) -> list[str]:
        paths: list[str] = []
        for cluster in self.clusters:
            if isinstance(cluster, SlurmCluster):
                paths += [cluster.config, cluster.bin_dir]
            elif isinstance(cluster, GridEngineCell):
                paths += [cluster.bin_dir, cluster.library, cluster.environment["SGE_ROOT"]]
        return paths
