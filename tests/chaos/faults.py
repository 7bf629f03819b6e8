"""The faults: how each strikes a site through which jobs stream, and heals again.

A strike begins and ends with a daemon that serves; what it breaks beside the daemon it mends.
"""

from __future__ import annotations

import contextlib
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import psutil

from metasched.client.client import ClientError
from metasched.db.postgresql import SILENCE_TIMEOUT as SILENT
from tests.chaos.points import Orders, deaths_in
from tests.chaos.site import PATIENCE, STOP, ChaosSite
from tests.chaos.stream import Stream
from tests.harness import gridengine, postgresql, slurm
from tests.harness.gridengine import Cell
from tests.harness.slurm import SlurmCluster, SlurmSite

AT_ONCE = 3  # workers that one daemon loses
LIFE = 3.0  # seconds after which a daemon that has not come to its point is killed anyway
WORK = 1.5  # seconds that a daemon has at the most until it is killed at a drawn time
SILENCE = 3.0  # seconds for which a manager, a disk or a database is gone

AT_WORK = 3  # jobs that a daemon has accepted before it dies at work, not at its start

Manager = Literal["local", "postgresql", "slurm", "gridengine"]


@dataclass
class Trial:
    """One site under one fault. `seed` names the round; `passages` is the mean until a death.

    `recoveries` are the seconds from the death of a daemon to the next answer, or from the end of
    another fault until a job that is handed in afterwards has begun where the fault was.
    """

    site: ChaosSite
    stream: Stream
    seed: str
    passages: int
    slurm: SlurmSite | None = None
    cell: Cell | None = None
    server: postgresql.Server | None = None

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.strikes = 0
        self.dead = 0  # processes that had died when the last orders were given
        self.recoveries: list[float] = []

    def recover(self, cluster: str | None = None) -> None:
        """Wait for the recovery of a cluster, else of any."""
        begun = time.monotonic()
        self.begin_on(cluster or self.draw.choice(self.stream.clusters))
        self.recoveries.append(time.monotonic() - begun)

    def begin_on(self, cluster: str, seconds: float = 0.0) -> str:
        """Hand in a job for that cluster until one is taken, and wait for its start; its name."""
        name = ""

        def handed_in() -> bool:
            nonlocal name
            with contextlib.suppress(ClientError):
                name = self.stream.probe(cluster, seconds)
            return bool(name)

        self.site.until(handed_in, PATIENCE)
        self.site.until(lambda: self.stream.began()[name], PATIENCE)
        return name

    @property
    def alpha(self) -> SlurmCluster:
        """The Slurm cluster that is struck."""
        assert self.slurm is not None
        return self.slurm["alpha"]

    @property
    def grid(self) -> Cell:
        assert self.cell is not None
        return self.cell

    @property
    def postgresql(self) -> postgresql.Server:
        """The server that has the daemon's database."""
        assert self.server is not None
        return self.server


Strike = Callable[[Trial], None]
Mend = Callable[[], object]


@dataclass(frozen=True)
class Fault:
    """`times`: strikes in a whole run, `at_once` of them on one site.

    `may_fail`: it may end what runs. `quick`: it takes few seconds, so `make test` strikes with
    it, too. `needs`: why what it needs beside the manager cannot be had, or None.
    """

    name: str
    manager: Manager
    strike: Strike
    times: int
    at_once: int
    may_fail: bool = False
    quick: bool = True
    needs: Callable[[], str | None] = lambda: None

    def __str__(self) -> str:
        return self.name

    @property
    def kills(self) -> bool:
        """Whether each strike kills a daemon or a worker."""
        return self.strike in _KILLING

    def missing(self) -> str | None:
        """Why it cannot be had here, or None if it can."""
        return _MISSING[self.manager]() or self.needs()


_MISSING: dict[Manager, Callable[[], str | None]] = {
    "local": lambda: None,
    "postgresql": postgresql.missing,
    "slurm": slurm.missing,
    "gridengine": gridengine.missing,
}


# The daemon


def daemon_at_a_point(trial: Trial) -> None:
    """SIGKILL at a drawn passage of a drawn point, of the daemon's or of a worker's."""
    site = trial.site
    _wait_for_a_death(site)
    site.order(Orders(seed=f"{trial.seed} {trial.strikes}", mean=trial.passages, together=True))
    _replace(trial)


def daemon_at_each_point(trial: Trial) -> None:
    """SIGKILL at the first point at which nothing has died on this site, life after life.

    Every second life does not die before it has work: else most would die at their start.
    """
    site = trial.site
    if trial.strikes == 0:
        site.order(Orders(new=True, together=True))
        site.kill()
        site.launch()
    known = len(site.recoveries)
    accepted, until = trial.stream.accepted, time.monotonic() + PATIENCE
    site.serving()
    trial.recoveries += site.recoveries[known:]
    if trial.strikes % 2:
        while site.alive and trial.stream.accepted < accepted + AT_WORK:
            assert time.monotonic() < until, f"it accepts nothing; {site.log_tail()}"
            time.sleep(0.005)
        site.arm()
    _wait_for_a_death(site)
    if site.alive:
        site.kill()
    else:
        site.gone()
    site.order(Orders(new=True, together=True, late=trial.strikes % 2 == 0))
    site.launch()


def daemon_at_a_reservation(trial: Trial) -> None:
    """SIGKILL at the first point of the life of reservations at which nothing has died yet.

    Then one that nobody disturbs.
    """
    site = trial.site
    site.order(Orders(new=True, about=("eserv", "survey"), together=True))
    _replace(trial)
    until = time.monotonic() + LIFE
    while site.alive and time.monotonic() < until:
        with contextlib.suppress(ClientError):
            trial.stream.reserve(cancelled=True)
    site.order(Orders())
    _replace(trial)
    for cancelled in (False, True):
        site.until(partial(_reserved, trial, cancelled), PATIENCE)


def _reserved(trial: Trial, cancelled: bool) -> bool:
    with contextlib.suppress(ClientError):
        trial.stream.reserve(cancelled)
        return True
    return False


def daemon_at_accounting(trial: Trial) -> None:
    """SIGKILL at the first point of what accounting is asked and tells at which nothing has died.

    It is asked about a job that began, ended and was forgotten while there was no daemon.
    """
    site = trial.site
    assert trial.slurm is not None
    beta = trial.slurm["beta"]
    name = trial.begin_on(beta.name, seconds=1.0)
    site.kill()
    site.until(lambda: not beta.run("squeue", "-h", "-t", "all", "-o", "%k").split(), PATIENCE)
    most = len(deaths_in(site.chaos)) + 1
    site.order(Orders(new=True, about=("race",), most=most, together=True))
    site.launch()

    def ended() -> bool:
        if not site.alive:
            site.gone()
            site.launch()
        with contextlib.suppress(ClientError):
            return any(row["name"] == name for row in site.client.jobs(state="completed"))
        return False

    site.until(ended, PATIENCE)
    site.order(Orders())
    _replace(trial)


def daemon_at_random(trial: Trial) -> None:
    """SIGKILL at a drawn time after a job of this life was accepted."""
    accepted = trial.stream.accepted
    trial.site.until(lambda: trial.stream.accepted > accepted, PATIENCE)
    time.sleep(trial.draw.random() * WORK)
    _replace(trial)


def _wait_for_a_death(site: ChaosSite) -> None:
    until = time.monotonic() + LIFE
    while site.alive and time.monotonic() < until:
        time.sleep(0.005)


def _replace(trial: Trial) -> None:
    """Kill the daemon, unless that has been done, and start the next, until one serves."""
    site = trial.site
    known = len(site.recoveries)
    if site.alive:
        site.kill()
    else:
        site.gone()
    site.launch()
    while not site.serving():
        site.gone()
        site.launch()
    trial.recoveries += site.recoveries[known:]


# The worker


def worker_at_a_point(trial: Trial) -> None:
    """SIGKILL of a worker at a drawn passage of a drawn point."""
    _wait_for_a_worker(trial, in_c=False)


def worker_in_c(trial: Trial) -> None:
    """A worker dies of a fault in C, as of a defect in a manager's library."""
    _wait_for_a_worker(trial, in_c=True)


def _wait_for_a_worker(trial: Trial, in_c: bool) -> None:
    site, number = trial.site, trial.strikes % AT_ONCE
    if number == 0:
        trial.dead = len(deaths_in(site.chaos))
        # those who die more often are started ever later
        site.order(
            Orders(
                seed=f"{trial.seed} {trial.strikes}",
                mean=trial.passages,
                most=trial.dead + AT_ONCE,
                roles=("worker",),
                in_c=in_c,
            )
        )
        site.kill()
        site.launch()
        site.serving()
    # of two that live side by side one may have died too many, in place of the next
    site.until(lambda: len(deaths_in(site.chaos)) > trial.dead + number, PATIENCE)
    trial.recover()


def worker_hung(trial: Trial) -> None:
    """SIGSTOP of a worker: its watchdog must end it."""
    worker = trial.draw.choice(trial.site.until(lambda: trial.site.workers, PATIENCE))
    worker.suspend()
    trial.site.until(lambda: not worker.is_running() or worker.status() == "zombie", PATIENCE)
    trial.recover()


# The clock


def clock_stepped(trial: Trial) -> None:
    """The clock of the host jumps: an hour on and back, an hour back and on."""
    now = trial.site.folder / "clock"
    if trial.strikes == 0:
        now.write_text("+0")
        trial.site.more = {
            "LD_PRELOAD": next(map(str, _FAKETIME)),
            "FAKETIME_TIMESTAMP_FILE": str(now),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        _replace(trial)
    for seconds in ("+3600", "+0", "-3600", "+0"):
        draft = now.with_suffix(".draft")
        draft.write_text(seconds)
        draft.rename(now)
        trial.recover()


def _no_faketime() -> str | None:
    return None if _FAKETIME else "libfaketime not found; apt-get install faketime"


_FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


# What goes away and comes back


def outage(broken: Callable[[Trial], Mend], seconds: float = SILENCE) -> Strike:
    """Break something for that long, mend it as `broken` says, and wait for the recovery."""

    def strike(trial: Trial) -> None:
        mend = broken(trial)
        STOP.wait(seconds)
        mend()
        trial.recover("alpha" if trial.slurm is not None else None)

    return strike


def database_locked(trial: Trial) -> Mend:
    """Another program holds the database."""
    holder = sqlite3.connect(trial.site.database, isolation_level=None)
    trial.site.until(lambda: holder.execute("BEGIN IMMEDIATE"), PATIENCE)
    return holder.close


def database_read_only(trial: Trial) -> Mend:
    """Nothing in the database's files can be changed, as on a disk that was remounted so."""
    # not -shm, which is mapped: the kernel would end the daemon, as other faults do
    files = [f"{trial.site.database}{part}" for part in ("", "-wal")]

    def mark(how: str) -> None:
        subprocess.run(["chattr", how, *files], check=True)

    mark("+i")
    return partial(mark, "-i")


def _no_immutable() -> str | None:
    with tempfile.NamedTemporaryFile() as file:
        for how in ("+i", "-i"):
            try:
                subprocess.run(["chattr", how, file.name], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                return "chattr +i is refused: it needs root and a filesystem that has it"
    return None


def disk_full(trial: Trial) -> Mend:
    """No file of the daemon, of its workers and of what they start can grow."""
    processes = [psutil.Process(trial.site.pid), *trial.site.workers]

    def limit(size: int) -> None:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.rlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    limit(0)
    return partial(limit, resource.RLIM_INFINITY)


def server_killed(trial: Trial) -> Mend:
    """SIGKILL of PostgreSQL."""
    trial.postgresql.stop(signal.SIGKILL)
    return trial.postgresql.start


def server_stopped(trial: Trial) -> Mend:
    """PostgreSQL is ended in order."""
    trial.postgresql.stop()
    return trial.postgresql.start


def server_hung(trial: Trial) -> Mend:
    """SIGSTOP of PostgreSQL: no connection is cut."""
    trial.postgresql.hang()
    return trial.postgresql.wake


def controller_stopped(trial: Trial) -> Mend:
    """slurmctld is ended in order."""
    cluster = trial.alpha
    cluster.stop_controller()
    return cluster.start_controller


def controller_loses_seconds(trial: Trial) -> Mend:
    """SIGKILL of slurmctld, whose saved state is one of some seconds ago: ids are used again."""
    cluster = trial.alpha
    state, saved = cluster.folder / "state", trial.site.folder / "state"
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(state, saved, ignore_dangling_symlinks=True)

    def mend() -> None:
        cluster.kill_controller()
        shutil.rmtree(state)
        shutil.copytree(saved, state)
        cluster.start_controller()

    return mend


def node_killed(trial: Trial) -> Mend:
    """SIGKILL of a slurmd."""
    name = trial.draw.choice(trial.alpha.nodes)
    trial.alpha.kill_node(name)
    return partial(trial.alpha.start_node, name)


def munge_killed(trial: Trial) -> Mend:
    """SIGKILL of munged: nobody is who he says he is."""
    trial.alpha.kill_munge()
    return trial.alpha.start_munge


def qmaster_hung(trial: Trial) -> Mend:
    """SIGSTOP of sge_qmaster."""
    qmaster = psutil.Process(trial.grid.qmaster)
    qmaster.suspend()
    return qmaster.resume


def qmaster_killed(trial: Trial) -> Mend:
    """SIGKILL of sge_qmaster; the execution host's daemon is then started again, as we advise."""
    cell = trial.grid
    cell.kill_qmaster()

    def mend() -> None:
        cell.start_qmaster()
        cell.kill_execd()
        cell.start_execd()

    return mend


def execd_killed(trial: Trial) -> Mend:
    """SIGKILL of sge_execd."""
    trial.grid.kill_execd()
    return trial.grid.start_execd


_KILLING = (
    *(daemon_at_each_point, daemon_at_a_point, daemon_at_random, daemon_at_a_reservation),
    daemon_at_accounting,
    *(worker_at_a_point, worker_in_c),
)
FAULTS = (
    Fault("daemon killed at each crash point", "local", daemon_at_each_point, 120, 120),
    Fault("daemon killed at a crash point", "local", daemon_at_a_point, 420, 30),
    Fault("daemon killed at a random time", "local", daemon_at_random, 310, 31),
    Fault("worker killed at a crash point", "local", worker_at_a_point, 120, 30, quick=False),
    Fault("worker crashed in C", "local", worker_in_c, 30, 30),
    Fault("worker hung", "local", worker_hung, 6, 3, quick=False),
    Fault(
        "database locked by another program",
        "local",
        outage(database_locked, 5 + SILENCE),
        times=4,
        at_once=2,
        quick=False,
    ),
    Fault(
        "database read-only",
        "local",
        outage(database_read_only),
        times=4,
        at_once=2,
        quick=False,
        needs=_no_immutable,
    ),
    Fault("disk full", "local", outage(disk_full), 6, 3),
    Fault(
        "clock stepped by an hour", "local", clock_stepped, 4, 2, quick=False, needs=_no_faketime
    ),
    Fault("daemon killed at a crash point", "postgresql", daemon_at_a_point, 60, 20),
    Fault("PostgreSQL killed", "postgresql", outage(server_killed), 4, 4),
    Fault("PostgreSQL stopped", "postgresql", outage(server_stopped), 4, 4, quick=False),
    Fault(
        "PostgreSQL hung", "postgresql", outage(server_hung, SILENT + SILENCE), 4, 4, quick=False
    ),
    Fault("daemon killed at a crash point", "slurm", daemon_at_a_point, 120, 20),
    Fault("daemon killed at a random time", "slurm", daemon_at_random, 60, 20, quick=False),
    Fault("worker killed at a crash point", "slurm", worker_at_a_point, 24, 12, quick=False),
    Fault("daemon killed at a reservation", "slurm", daemon_at_a_reservation, 60, 30),
    Fault("daemon killed as it asks accounting", "slurm", daemon_at_accounting, 24, 12),
    Fault("slurmctld stopped and started", "slurm", outage(controller_stopped), 4, 4),
    Fault(
        "slurmctld stopped for minutes", "slurm", outage(controller_stopped, 130), 1, 1, quick=False
    ),
    Fault(
        "slurmctld killed, seconds lost",
        "slurm",
        outage(controller_loses_seconds),
        times=6,
        at_once=3,
        may_fail=True,
    ),
    Fault("slurmd killed", "slurm", outage(node_killed), 4, 4, may_fail=True),
    Fault("munged killed", "slurm", outage(munge_killed), 4, 4),
    Fault("daemon killed at a crash point", "gridengine", daemon_at_a_point, 30, 15),
    Fault("daemon killed at a random time", "gridengine", daemon_at_random, 15, 15, quick=False),
    Fault("worker killed at a crash point", "gridengine", worker_at_a_point, 10, 10),
    Fault("qmaster stopped", "gridengine", outage(qmaster_hung, 2 * SILENCE), 3, 3),
    Fault("qmaster killed", "gridengine", outage(qmaster_killed), 4, 2, quick=False),
    Fault("execd killed", "gridengine", outage(execd_killed), 3, 3, quick=False),
)
