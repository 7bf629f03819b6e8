"""The site of the load test: all kinds of managers, and accounts made for the run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from metasched.client.client import Client
from tests.chaos import site_mode
from tests.chaos.round import cell_tags, local_tags, slurm_tags
from tests.chaos.stream import Stream
from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, gridengine_tables, slurm_tables
from tests.harness import gridengine, slurm
from tests.harness.gridengine import Cell
from tests.harness.root_launcher import RootLauncher
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite

CALL_TIMEOUT = 300.0  # seconds for an answer of the daemon


@dataclass(frozen=True)
class Size:
    """The size of a load."""

    accounts: int  # users that submit `tasks` together; one more waits for single jobs
    tasks: int  # submitted in all
    minutes: float  # until all that has not started is cancelled
    ramp: float  # seconds over which the tasks are submitted
    slurm_clusters: int  # 1 or 2
    nodes: int  # of 8 processors, in each Slurm cluster
    slots: int  # of the Grid Engine cell
    local_clusters: int  # of 8 processors
    largest_array: int  # tasks
    run_times: tuple[float, ...]  # seconds of a payload, to draw from
    queue_depth: int  # unstarted tasks in each cluster
    poll_interval: float  # seconds
    sample_interval: float  # seconds between two samples of memory and files
    pause: float  # seconds between two commands of a user


SMALL = Size(
    accounts=3,
    tasks=150,
    minutes=5.0,
    ramp=0.0,
    slurm_clusters=1,
    nodes=2,
    slots=8,
    local_clusters=1,
    largest_array=20,
    run_times=(0.0, 0.2, 1.0),
    queue_depth=1000,
    poll_interval=0.5,
    sample_interval=1.0,
    pause=0.5,
)
LARGE = Size(
    accounts=20,
    tasks=200_000,
    minutes=20.0,
    ramp=480.0,
    slurm_clusters=2,
    nodes=4,
    slots=16,
    local_clusters=2,
    largest_array=1000,
    run_times=(0.0, 2.0, 8.0),
    queue_depth=100,
    poll_interval=2.0,
    sample_interval=5.0,
    pause=3.0,
)
# Managers and payloads yield to daemon and users: on a real site they run on other hosts.
NICE = ("/usr/bin/nice", "-n", "15")
_SUPERVISE = SUPERVISE.replace("[", f"""[{", ".join(f'"{word}"' for word in NICE)}, """)


def missing() -> tuple[str, str] | None:
    """Return the component that this host lacks and why, or None."""
    for component, reason in (
        ("slurm", slurm.missing()),
        ("gridengine", gridengine.missing()),
        ("root", site_mode.missing()),
    ):
        if reason is not None:
            return component, reason
    return None


@contextlib.contextmanager
def made_accounts(number: int) -> Iterator[tuple[str, ...]]:
    """Make accounts of this run; remove them at the end."""
    names = tuple(f"ms-load-{os.getpid()}-{index}" for index in range(number))
    made = []
    try:
        for name in names:
            subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", name], check=True)
            made.append(name)
        yield names
    finally:
        for name in made:
            subprocess.run(["userdel", "--force", name], capture_output=True, check=False)


@dataclass(frozen=True)
class LoadedSite:
    """A running site with its managers; a `Target` of the outages in tests/chaos/faults."""

    site: MultiUserSite
    slurm: SlurmSite
    cell: Cell
    local: tuple[str, ...]  # names of the local clusters
    accounts: tuple[str, ...]
    run_log: Path  # to which payloads append

    @property
    def client(self) -> Client:
        """A client of root, who is an operator."""
        return Client(self.socket, timeout=CALL_TIMEOUT)

    @property
    def socket(self) -> Path:
        """The daemon's socket."""
        return self.site.state / "ms.sock"

    @property
    def alpha(self) -> SlurmCluster:
        return self.slurm["alpha"]

    @property
    def grid(self) -> Cell:
        return self.cell

    @property
    def launcher(self) -> RootLauncher:
        return self.site.launcher

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of all clusters."""
        return (*(cluster.name for cluster in self.slurm), self.cell.name, *self.local)

    def natives(self) -> Iterable[str]:
        """Yield the tags of all queued and running jobs of the managers."""
        for cluster in self.slurm:
            yield from slurm_tags(cluster)
        yield from cell_tags(self.cell)
        for name in self.local:
            yield from local_tags(self.site.state / "metasched.clusters" / name)


@contextlib.contextmanager
def loaded_site(folder: Path, size: Size, accounts: Sequence[str]) -> Iterator[LoadedSite]:
    """Boot the managers in the namespace of the cell, the launcher and the daemon."""
    specs = [
        ClusterSpec(name, name[0], size.nodes, cpus=8)
        for name in ("alpha", "beta")[: size.slurm_clusters]
    ]
    local = tuple(f"local{number}" for number in range(size.local_clusters))
    with Cell(folder / "g", slots=size.slots) as cell:
        # Slurm resolves no address in a namespace without an address besides those of loopback
        subprocess.run(
            [*cell.inside, "ip", "address", "add", "10.99.0.1/32", "dev", "lo"], check=True
        )
        with SlurmSite(folder / "m", specs, namespace=(*NICE, *cell.inside)) as managers:
            site = MultiUserSite(folder / "s", inside=cell.inside)
            run_log = site.folder / "ran"
            for path in Stream.files(run_log):
                path.touch()
                path.chmod(0o666)
            common = f"poll_interval = {size.poll_interval}\nqueue_depth = {size.queue_depth}\n"
            polls = f"{common}settle = 5\n"
            site.set_up(
                "".join(
                    (
                        *(cluster.table(polls) for cluster in managers),
                        cell.table(Path(sys.executable), polls),
                        *(
                            f'[[cluster]]\nname = "{name}"\nadapter = "local"\ncpus = 8\n{common}'
                            for name in local
                        ),
                    )
                ),
                "".join(
                    (
                        *(slurm_tables(cluster)[1] for cluster in managers),
                        gridengine_tables(cell)[1],
                        *(f"[cluster.{name}]\n{_SUPERVISE}" for name in local),
                    )
                ),
            )
            try:
                site.start()
                yield LoadedSite(site, managers, cell, local, tuple(accounts), run_log)
            finally:
                site.close()
