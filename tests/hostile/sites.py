"""Sites in which account a attacks and account b works: a real manager and a local cluster each."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, gridengine_tables, slurm_tables
from tests.harness import gridengine, slurm
from tests.harness.accounts import KEEPER, A, B

LIMIT = 4  # jobs that a may have in the default Slurm account of a
CELL_LIMIT = 20  # jobs of each user in the cell, twice what b needs
FREE_ACCOUNT = "free"  # another account of a, without a limit
LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 16\npoll_interval = 0.2\n'


@dataclass(frozen=True)
class HostileSite:
    """A running site; `manager` runs a command of the manager as its administrator."""

    site_name: str  # a key of SITES
    site: MultiUserSite
    clusters: tuple[str, ...]  # the cluster of the kind first
    fence: Path  # folder of claims
    inside: tuple[str, ...]  # prefix of a command that must reach the manager
    environment: Mapping[str, str]  # variables of a client of the manager
    manager: Callable[..., str] | None  # None: local clusters have none


def missing(site_name: str) -> str | None:
    """Return why a kind of site is not available on this host, or None."""
    if os.geteuid() != 0:
        return "needs root, which makes accounts"
    match site_name:
        case "slurm":
            return slurm.missing() or slurm.accounting_missing()
        case "gridengine":
            return gridengine.missing()
        case _:
            return None


@contextmanager
def local_site(folder: Path) -> Iterator[HostileSite]:
    """A site with two local clusters."""
    right = LOCAL.replace("left", "right")
    with _running("local", folder, right, f"[cluster.right]\n{SUPERVISE}", ("right",)) as site:
        yield site


@contextmanager
def slurm_site(folder: Path) -> Iterator[HostileSite]:
    """A site over Slurm with slurmdbd, which limits the jobs of a."""
    enforced = ("AccountingStorageEnforce=associations,limits",)
    spec = slurm.ClusterSpec("alpha", "a", nodes=2, cpus=16, settings=enforced)
    with slurm.SlurmSite(folder / "m", [spec], accounting=True) as booted:
        cluster = booted["alpha"]
        for name in ("physics", FREE_ACCOUNT):
            cluster.run("sacctmgr", "-i", "add", "account", name, "cluster=alpha")
        for user, account, limit in (
            (A, "physics", LIMIT),
            (A, FREE_ACCOUNT, -1),
            (B, "physics", -1),
        ):
            cluster.run(
                *("sacctmgr", "-i", "add", "user", user, f"account={account}"),
                f"maxsubmitjobs={limit}",
            )
        tables = slurm_tables(cluster, 'map.account = { "*" = "*" }\n')
        with _running(
            *("slurm", folder, *tables, ("alpha",)),
            inside=cluster.inside,
            environment=cluster.environment,
            manager=cluster.run,
        ) as site:
            yield site


@contextmanager
def gridengine_site(folder: Path) -> Iterator[HostileSite]:
    """A site over a Grid Engine cell."""
    with (
        gridengine.Cell(folder / "m", slots=16) as cell,
        _limited_jobs(cell),
        _running(
            *("gridengine", folder, *gridengine_tables(cell), (cell.name,)),
            inside=cell.inside,
            environment={
                **cell.environment,
                "PATH": "/usr/lib/gridengine:/usr/bin:/bin",
            },
            manager=cell.run,
        ) as site,
    ):
        yield site


@contextmanager
def _limited_jobs(cell: gridengine.Cell) -> Iterator[None]:
    """Limit the jobs that each user may have in the cell."""
    file = cell.folder / "global"
    settings = re.sub(r"(?m)^(max_u_jobs +).*", rf"\g<1>{CELL_LIMIT}", cell.run("qconf", "-sconf"))
    file.write_text(settings)
    cell.run("qconf", "-Mconf", str(file))
    yield


SITES: Mapping[str, Callable[[Path], AbstractContextManager[HostileSite]]] = {
    "local": local_site,
    "slurm": slurm_site,
    "gridengine": gridengine_site,
}


@contextmanager
def _running(
    site_name: str,
    folder: Path,
    table: str,
    programs: str,
    names: tuple[str, ...],
    inside: tuple[str, ...] = (),
    environment: Mapping[str, str] = {"PATH": "/usr/bin:/bin"},
    manager: Callable[..., str] | None = None,
) -> Iterator[HostileSite]:
    """A running site with the cluster of `table` and a local cluster, both with claims."""
    site = MultiUserSite(folder / "s", inside=inside)
    fence = folder / "fence"
    fence.mkdir(mode=0o711)
    keeper = pwd.getpwnam(KEEPER)
    os.chown(fence, keeper.pw_uid, keeper.pw_gid)
    claims = f'fence_dir = "{fence}"\n'
    site.set_up(
        f"{table}{claims}{LOCAL}{claims}",
        f"{programs}[cluster.left]\n{SUPERVISE}",
    )
    try:
        site.start()
        yield HostileSite(site_name, site, (*names, "left"), fence, inside, environment, manager)
    finally:
        site.close()
