"""One round: a new site, a stream of jobs, strikes of a fault, and an audit."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from metasched.adapters.local.host import read_record
from metasched.client.connection import ClientError
from metasched.model.reservation import OPEN_STATES as OPEN_RESERVATIONS
from metasched.model.reservation import manager_name
from tests.chaos.audit import audit
from tests.chaos.faults import Fault, Trial
from tests.chaos.points import Orders, deaths_in, passed_in
from tests.chaos.site import LOCAL, PATIENCE, STOP, ChaosSite, Stopped
from tests.chaos.site_mode import MultiUserChaosSite
from tests.chaos.stream import Stream, named, words
from tests.e2e.multi_user_site import SUPERVISE, slurm_tables
from tests.harness.gridengine import Cell
from tests.harness.postgresql import Server
from tests.harness.slurm import ALPHA, BETA, SlurmCluster, SlurmSite

OPEN = "queued,held,dispatching,pending,running,suspended"
# reasons of tasks that wait for the end of others, which may be unknown
FOR_OTHERS = ("dependency", "limit_array", "licence_busy")
QUIET = 3.0  # seconds for which a task must have been unknown before it is resolved
LET_GO = 30.0  # seconds for managers to end jobs and reservations that are over
# mean number of passages until a death
PASSAGES = {"local": 80, "local_site": 80, "postgresql": 80}  # 60 over real managers


@dataclass
class Result:
    """The result of a round; an operator decided `resolved` tasks, the fault ended `ended`."""

    fault: str
    manager: str
    seed: str
    strikes: int
    kills: int
    jobs: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    resolved: int = 0
    ended: int = 0
    recoveries: list[float] = field(default_factory=list)
    seconds: float = 0.0
    failure: str = ""
    points: list[str] = field(default_factory=list)  # at which something died
    passed: list[str] = field(default_factory=list)  # all points that something passed


class Managers:
    """The clusters of one kind: their configuration in a site, their jobs and reservations."""

    def __init__(
        self,
        slurm: SlurmSite | None = None,
        cell: Cell | None = None,
        server: Server | None = None,
        site_mode: bool = False,
    ) -> None:
        """`server` hosts the databases of the sites; None: each site uses a file."""
        self.slurm, self.cell, self.server, self.site_mode = slurm, cell, server, site_mode

    @property
    def names(self) -> tuple[str, ...]:
        if self.slurm is not None:
            return tuple(cluster.name for cluster in self.slurm)
        return (self.cell.name,) if self.cell is not None else ("left", "right")

    @property
    def pause(self) -> float:
        """Seconds between two calls of a stream, long enough for these managers."""
        return 0.1 if self.slurm is not None or self.cell is not None else 0.02

    @property
    def tables(self) -> str:
        if self.slurm is not None:
            return "".join(
                c.table('poll_interval = 0.5\nsettle = 3\npython = "PYTHON"\n')
                + ('fence_dir = "FENCE"\n\n' if c.name == "beta" else "\n")
                for c in self.slurm
            )
        if self.cell is not None:
            return self.cell.table(Path("PYTHON"), "poll_interval = 0.5\nsettle = 1\n")
        return LOCAL

    @property
    def programs(self) -> str:
        """The tables of launcher.toml."""
        if self.slurm is not None:
            return "".join(slurm_tables(cluster)[1] for cluster in self.slurm)
        return "".join(f"[cluster.{name}]\n{SUPERVISE}" for name in self.names)

    @property
    def reserve(self) -> bool:
        """Whether these managers support reservations, and accept them from the daemon."""
        return self.slurm is not None and not self.site_mode

    def site(self, folder: Path) -> ChaosSite:
        """Return a new site with these managers."""
        if self.site_mode:
            return MultiUserChaosSite(folder, self.tables, self.programs)
        inside = self.cell.inside if self.cell else ()
        url = self.server.create() if self.server else None
        return ChaosSite(folder, self.tables, inside, url)

    def reserved(self) -> set[str]:
        """Return the names of the managers' reservations."""
        return {name for names in self._reservations().values() for name in names}

    def forget(self) -> None:
        """Delete all reservations of the managers."""
        for cluster, names in self._reservations().items():
            for name in names:
                cluster.run("scontrol", "delete", f"ReservationName={name}")

    def _reservations(self) -> dict[SlurmCluster, list[str]]:
        return {
            cluster: re.findall(
                r"ReservationName=(\S+)", cluster.run("scontrol", "-o", "show", "reservation")
            )
            for cluster in self.slurm or ()
        }

    def natives(self, site: ChaosSite) -> Iterable[str]:
        """Yield the tags of all queued and running jobs of the managers."""
        if self.slurm is not None:
            for cluster in self.slurm:
                yield from slurm_tags(cluster)
        elif self.cell is not None:
            yield from cell_tags(self.cell)
        else:
            for name in self.names:
                yield from local_tags(site.clusters / name)


def slurm_tags(cluster: SlurmCluster) -> Iterable[str]:
    """Return the comments of all queued and running jobs of a Slurm cluster."""
    return cluster.run("squeue", "-h", "-o", "%k").split()


def cell_tags(cell: Cell) -> Iterable[str]:
    """Return the tags of all queued and running jobs of a Grid Engine cell."""
    return [field for field in cell.run("qstat", "-r", "-u", "*").split() if "ms-" in field]


def local_tags(queue_folder: Path) -> Iterator[str]:
    """Yield the tags of all queued and running tasks of a local cluster."""
    with closing(sqlite3.connect(queue_folder / "queue.db")) as queue:
        for native_id, tag in queue.execute("SELECT native_id, tag FROM tasks WHERE ended IS NULL"):
            folder = queue_folder / "jobs" / str(native_id)
            # an end that is not in the queue yet is read from here at the next start
            claim = read_record(folder, "claim") or {}
            if "state" not in claim and not read_record(folder, "ended"):
                yield tag


def slurm_clusters(folder: Path) -> SlurmSite:
    """Return clusters alpha and beta; beta soon forgets ended jobs, and logs them to a file."""
    settings = (
        *("MinJobAge=2", "JobCompType=jobcomp/filetxt"),
        f"JobCompLoc={folder / 'completions'}",
    )
    return SlurmSite(folder, (ALPHA, replace(BETA, settings=settings)))


@contextlib.contextmanager
def boot_managers(manager: str, folder: Path) -> Iterator[Managers]:
    """Yield the clusters of a manager, booted in `folder`."""
    match manager:
        case "slurm":
            with slurm_clusters(folder) as site:
                yield Managers(slurm=site)
        case "slurm_site":
            with slurm_clusters(folder) as site:
                yield Managers(slurm=site, site_mode=True)
        case "postgresql":
            with Server(folder, settings=()) as server:
                yield Managers(server=server)
        case "slurm_postgresql":
            beside = folder.with_name(f"{folder.name}-pg")  # which its account can enter
            with slurm_clusters(folder) as site, Server(beside, settings=()) as server:
                yield Managers(slurm=site, server=server)
        case "gridengine":
            with Cell(folder) as cell:
                yield Managers(cell=cell)
        case _:
            yield Managers(site_mode=manager == "local_site")


@contextlib.contextmanager
def running(folder: Path, managers: Managers, seed: str) -> Iterator[tuple[ChaosSite, Stream]]:
    """Yield a serving site and a stream of jobs through it."""
    site = managers.site(folder)
    try:
        site.begin()
        stream = Stream(
            *(site.client, site.run_log, managers.names, seed, managers.pause, managers.reserve),
            submitters=site.submitters,
        )
        stream.start()
        try:
            yield site, stream
        finally:
            stream.stop()
    finally:
        site.close()


def play(
    folder: Path,
    fault: Fault,
    managers: Managers,
    seed: str,
    strikes: int,
    struck: Callable[[], None] = lambda: None,
) -> Result:
    """Strike `strikes` times, let all jobs end, and audit."""
    begun = time.monotonic()
    folder.mkdir(parents=True)
    result = Result(fault.name, fault.manager, seed, strikes, kills=strikes if fault.kills else 0)
    with running(folder, managers, seed) as (site, stream):
        passages, server = PASSAGES.get(fault.manager, 60), managers.server
        trial = Trial(site, stream, seed, passages, managers.slurm, managers.cell, server)
        try:
            for _ in range(strikes):
                fault.strike(trial)
                trial.strikes += 1
                struck()
            stream.stop()
            result.resolved = settle(
                site, stream, lambda: managers.natives(site), managers.reserved
            )
        except AssertionError as error:
            result.wrong, result.failure = 1, f"it did not recover: {error}"
        else:
            natives = [lambda: managers.natives(site)]
            verdict = audit(site.store, stream, natives, fault.may_fail, managers.reserved())
            result.jobs, result.lost = verdict.jobs, len(verdict.lost)
            result.duplicated, result.wrong = len(verdict.duplicated), len(verdict.wrong)
            result.ended = len(verdict.ended)
            result.failure = "" if verdict.well else str(verdict)
        managers.forget()
        result.recoveries = trial.recoveries
        result.points = sorted({point for _, point in deaths_in(site.chaos)})
        result.passed = sorted({point for _, point in passed_in(site.chaos)})
    result.seconds = time.monotonic() - begun
    return result


def settle(
    site: ChaosSite,
    stream: Stream,
    natives: Callable[[], Iterable[str]] = lambda: (),
    reserved: Callable[[], set[str]] = set,
) -> int:
    """Let every job end and stop the daemon; return the number of resolved tasks.

    Unknown tasks are resolved as an operator would: by whether the payload began, and only if the
    manager has the job no more. Managers get time to end jobs that reappeared.
    """
    site.order(Orders())
    if site.alive:
        site.kill()  # it may be under orders to die
    else:
        site.gone()
    site.begin()
    resolved: set[str] = set()
    unknown_since: dict[str, float] = {}
    until = time.monotonic() + 3 * PATIENCE
    while True:
        with contextlib.suppress(ClientError):
            stream.release()
            if all(row["reason"] in FOR_OTHERS for row in site.client.jobs(state=OPEN)):
                rows = site.client.jobs(state="unknown")
                if not (rows or site.client.jobs(state=OPEN)):
                    break
                now = time.monotonic()
                began = stream.began()
                held = " ".join(natives())
                for row in rows:
                    id, name = words(row), named(row)
                    if now - unknown_since.setdefault(id, now) < QUIET:
                        continue
                    if f"-{row['job']}-" not in held:
                        site.client.change("ran" if began[name] else "lost", [id])
                        resolved.add(id)
        assert time.monotonic() < until, f"still open: {site.client.jobs()}; {site.log_tail()}"
        if STOP.wait(0.2):
            raise Stopped
    prefix = f"ms-{site.client.health()['instance']}-"
    with contextlib.suppress(AssertionError):  # the audit reports what remains
        site.until(lambda: not any(tag.startswith(prefix) for tag in natives()), LET_GO)
        site.until(lambda: _kept(site) == {n for n in reserved() if n.startswith(prefix)}, LET_GO)
    site.end()
    return len(resolved)


def _kept(site: ChaosSite) -> set[str]:
    """Return the names of the reservations that the managers should have."""
    instance = site.client.health()["instance"]
    return {
        manager_name(instance, row["reservation"])
        for row in site.client.reservations(include_closed=True)
        if row["state"] in OPEN_RESERVATIONS
    }
