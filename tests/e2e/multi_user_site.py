"""Real site mode: root's launcher, a daemon of an ordinary account, and several users."""

from __future__ import annotations

import copy
import os
import pwd
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metasched.adapters import supervisor
from tests.e2e.conftest import Site
from tests.harness import accounts
from tests.harness.gridengine import Cell
from tests.harness.root_launcher import PYTHON, RootLauncher
from tests.harness.slurm import SlurmCluster

SUPERVISE = f'supervise = ["{PYTHON}", "-I", "-S", "{supervisor.__file__}"]\n'


class MultiUserSite(Site):
    """A site in site mode; `by(account)` returns it with that account as the caller."""

    def __init__(self, folder: Path, inside: Sequence[str] = ()) -> None:
        """Create `folder`; `inside` prefixes launcher and daemon, e.g. to enter a namespace."""
        super().__init__(folder)
        accounts.make(accounts.KEEPER, accounts.A, accounts.B, accounts.OPERATOR)
        folder.mkdir(mode=0o711)
        self.state = self._folder_of(accounts.KEEPER, "state", 0o711)
        self.database = self.state / "metasched.db"
        self.url = f"sqlite:///{self.database}"
        self.before = (*inside, *accounts.become(accounts.KEEPER))
        self.launcher = RootLauncher(folder, accounts.KEEPER, inside)

    def _folder_of(self, account: str, name: str, mode: int) -> Path:
        user_folder = self.folder / name
        user_folder.mkdir()
        user_folder.chmod(mode)
        owner = pwd.getpwnam(account)
        os.chown(user_folder, owner.pw_uid, owner.pw_gid)
        return user_folder

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            "METASCHED_CONFIG": str(self.config),
        }

    def by(self, account: str) -> MultiUserSite:
        view = copy.copy(self)
        home = self.folder / account
        if not home.exists():
            self._folder_of(account, account, 0o700)
        view.caller = {**accounts.as_(account), "cwd": home}
        return view

    def set_up(
        self, clusters: str, programs: str, extra: str = "", policy: str = "", daemon: str = ""
    ) -> None:
        """Write both files and start the launcher; `programs` has its cluster tables.

        `extra` is appended to the table [site], `daemon` to [daemon], `policy` to the launcher's
        top-level keys.
        """
        self.config.write_text(
            f'[daemon]\ndatabase = "{self.url}"\nsocket = "state/ms.sock"\n{daemon}'
            f'[site]\nlauncher = "{self.launcher.socket}"\n'
            f'operator_groups = ["{accounts.OPERATOR}"]\n{extra}{clusters}'
        )
        self.launcher.configure(f"{policy}{programs}")
        self.launcher.start()

    def until_ended(self, *jobs: int | str, patience: float = 240.0) -> list[dict[str, Any]]:
        """Look as root, since each look of a caller is a command; return what the caller sees."""
        if not (self.caller and jobs):
            return super().until_ended(*jobs, patience=patience)
        by_root = copy.copy(self)
        by_root.caller = {}
        by_root.until_ended(*jobs, patience=patience)
        rows: list[dict[str, Any]] = self.rows(*jobs)
        return rows

    def log_tail(self) -> str:
        return super().log_tail() + self.launcher.log.read_text()[-2000:]

    def close(self) -> None:
        super().close()
        self.launcher.kill()


@contextmanager
def running_site(
    folder: Path, clusters: str, programs: str, policy: str = "", inside: Sequence[str] = ()
) -> Iterator[MultiUserSite]:
    """Run a site for the `with` block; the arguments are those of `set_up`."""
    site = MultiUserSite(folder, inside)
    site.set_up(clusters, programs, policy=policy)
    try:
        site.start()
        yield site
    finally:
        site.close()


def slurm_tables(cluster: SlurmCluster, options: str = "") -> tuple[str, str]:
    """Return a cluster's tables in metasched.toml (with `options`) and in launcher.toml."""
    return (
        cluster.table(f"poll_interval = 0.5\n{options}"),
        f"[cluster.{cluster.name}]\n"
        f'environment = {{ SLURM_CONF = "{cluster.conf}" }}\n'
        'submit = ["/usr/bin/sbatch"]\ncancel = ["/usr/bin/scancel"]\n'
        'hold = ["/usr/bin/scontrol", "hold"]\nrelease = ["/usr/bin/scontrol", "release"]\n',
    )


def gridengine_tables(cell: Cell, options: str = "") -> tuple[str, str]:
    """Return a cell's tables in metasched.toml (with `options`) and in launcher.toml."""
    variables = ", ".join(f'{name} = "{value}"' for name, value in cell.environment.items())
    return (
        cell.table(Path(sys.executable), f"poll_interval = 0.5\nsettle = 2\n{options}"),
        f"[cluster.{cell.name}]\nenvironment = {{ {variables} }}\n"
        'submit = ["/usr/lib/gridengine/qsub"]\ncancel = ["/usr/lib/gridengine/qdel"]\n'
        'hold = ["/usr/lib/gridengine/qhold", "-h", "u"]\n'
        'release = ["/usr/lib/gridengine/qrls", "-h", "u"]\n',
    )


@contextmanager
def site_over_slurm(
    folder: Path, cluster: SlurmCluster, options: str = ""
) -> Iterator[MultiUserSite]:
    """A running site over a Slurm cluster; the users' jobs are cancelled at the end."""
    try:
        with running_site(folder, *slurm_tables(cluster, options), inside=cluster.inside) as site:
            yield site
    finally:
        for account in (accounts.A, accounts.B):
            cluster.run("scancel", "--user", account)


@contextmanager
def site_over_gridengine(folder: Path, cell: Cell, options: str = "") -> Iterator[MultiUserSite]:
    """A running site over a Grid Engine cell, which is emptied at the end."""
    try:
        with running_site(folder, *gridengine_tables(cell, options), inside=cell.inside) as site:
            yield site
    finally:
        cell.empty()
