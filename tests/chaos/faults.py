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
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from metasched.client import ClientError
from tests import gridengine, slurm
from tests.chaos.points import Orders, deaths_in
from tests.chaos.site import PATIENCE, ChaosSite
from tests.chaos.stream import Stream
from tests.gridengine import Cell
from tests.slurm import SlurmSite

AT_ONCE = 3  # workers that one daemon loses
LIFE = 8.0  # seconds after which a daemon that has not come to its point is killed anyway
SILENCE = 3.0  # seconds for which a manager, a disk or a database is gone

Manager = Literal["local", "slurm", "gridengine"]


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

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.strikes = 0
        self.recoveries: list[float] = []

    def recover(self, cluster: str | None = None) -> None:
        """Wait for the recovery of a cluster, else of any."""
        begun = time.monotonic()
        name = ""

        def handed_in() -> bool:
            nonlocal name
            with contextlib.suppress(ClientError):
                name = self.stream.probe(cluster or self.draw.choice(self.stream.clusters))
            return bool(name)

        self.site.until(handed_in, PATIENCE)
        self.site.until(lambda: self.stream.began()[name], PATIENCE)
        self.recoveries.append(time.monotonic() - begun)


Strike = Callable[[Trial], None]


@dataclass(frozen=True)
class Fault:
    """`times`: strikes in a whole run, `at_once` of them on one site.

    `kills`: each kills a daemon or a worker. `may_fail`: it may end what runs. `quick`: it takes
    few seconds, so `make test` strikes with it, too. `needs`: why what it needs beside the
    manager cannot be had, or None.
    """

    name: str
    manager: Manager
    strike: Strike
    times: int
    at_once: int
    kills: bool = False
    may_fail: bool = False
    quick: bool = True
    needs: Callable[[], str | None] = lambda: None

    def __str__(self) -> str:
        return self.name

    def missing(self) -> str | None:
        """Why it cannot be had here, or None if it can."""
        return _MISSING[self.manager]() or self.needs()


_MISSING: dict[Manager, Callable[[], str | None]] = {
    "local": lambda: None,
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
    """SIGKILL at the first point at which nothing has died on this site, life after life."""
    site = trial.site
    if trial.strikes == 0:
        site.order(Orders(new=True, together=True))
        site.kill()
        site.launch()
    known = len(site.recoveries)
    site.serving()
    trial.recoveries += site.recoveries[known:]
    _wait_for_a_death(site)
    if site.alive:
        site.kill()
    else:
        site.gone()
    site.launch()


def daemon_at_random(trial: Trial) -> None:
    """SIGKILL at a drawn time."""
    time.sleep(trial.draw.random() * trial.passages / 150)
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
    site = trial.site
    known = len(deaths_in(site.chaos))
    if trial.strikes % AT_ONCE == 0:
        # those who die more often are started ever later
        site.order(
            Orders(
                seed=f"{trial.seed} {trial.strikes}",
                mean=trial.passages,
                most=known + AT_ONCE,
                roles=("worker",),
                in_c=in_c,
            )
        )
        site.kill()
        site.launch()
        site.serving()
    site.until(lambda: len(deaths_in(site.chaos)) > known, PATIENCE)
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


# Disk and database


def database_locked(trial: Trial) -> None:
    """Another program holds the database for longer than we wait for it."""
    with closing(sqlite3.connect(trial.site.database, isolation_level=None)) as holder:
        trial.site.until(lambda: holder.execute("BEGIN IMMEDIATE"), PATIENCE)
        time.sleep(5 + SILENCE)
        holder.execute("ROLLBACK")
    trial.recover()


def disk_full(trial: Trial) -> None:
    """No file of the daemon, of its workers and of what they start can grow."""
    site = trial.site
    processes = [psutil.Process(site.pid), *site.workers]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.rlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    time.sleep(SILENCE)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    trial.recover()


# Slurm


def controller_stopped(trial: Trial) -> None:
    """slurmctld is ended in order and comes back later."""
    assert trial.slurm is not None
    cluster = trial.slurm["alpha"]
    cluster.stop_controller()
    time.sleep(SILENCE)
    cluster.start_controller()
    trial.recover(cluster.name)


def controller_loses_seconds(trial: Trial) -> None:
    """SIGKILL of slurmctld, whose saved state is one of some seconds ago: ids are used again."""
    assert trial.slurm is not None
    cluster = trial.slurm["alpha"]
    state, saved = cluster.folder / "state", trial.site.folder / "state"
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(state, saved, ignore_dangling_symlinks=True)
    time.sleep(SILENCE)
    cluster.kill_controller()
    shutil.rmtree(state)
    shutil.copytree(saved, state)
    cluster.start_controller()
    trial.recover(cluster.name)


def node_killed(trial: Trial) -> None:
    """SIGKILL of a slurmd, which comes back."""
    assert trial.slurm is not None
    cluster = trial.slurm["alpha"]
    name = trial.draw.choice(cluster.nodes)
    cluster.kill_node(name)
    time.sleep(SILENCE)
    cluster.start_node(name)
    trial.recover(cluster.name)


def munge_killed(trial: Trial) -> None:
    """SIGKILL of munged: nobody is who he says he is, until it is back."""
    assert trial.slurm is not None
    cluster = trial.slurm["alpha"]
    cluster.kill_munge()
    time.sleep(SILENCE)
    cluster.start_munge()
    trial.recover(cluster.name)


# Grid Engine


def qmaster_hung(trial: Trial) -> None:
    """SIGSTOP of sge_qmaster for some seconds."""
    assert trial.cell is not None
    qmaster = psutil.Process(trial.cell.qmaster)
    qmaster.send_signal(signal.SIGSTOP)
    time.sleep(2 * SILENCE)
    qmaster.send_signal(signal.SIGCONT)
    trial.recover()


def qmaster_killed(trial: Trial) -> None:
    """SIGKILL of sge_qmaster."""
    assert trial.cell is not None
    trial.cell.kill_qmaster()
    time.sleep(SILENCE)
    trial.cell.start_qmaster()
    trial.recover()


def execd_killed(trial: Trial) -> None:
    """SIGKILL of sge_execd."""
    assert trial.cell is not None
    trial.cell.kill_execd()
    time.sleep(SILENCE)
    trial.cell.start_execd()
    trial.recover()


FAULTS = (
    Fault("daemon killed at each crash point", "local", daemon_at_each_point, 300, 300, kills=True),
    Fault("daemon killed at a crash point", "local", daemon_at_a_point, 300, 50, kills=True),
    Fault("daemon killed at a random time", "local", daemon_at_random, 250, 50, kills=True),
    Fault("worker killed at a crash point", "local", worker_at_a_point, 150, 30, kills=True),
    Fault("worker crashed in C", "local", worker_in_c, 30, 30, kills=True),
    Fault("worker hung", "local", worker_hung, 10, 5, quick=False),
    Fault("database locked by another program", "local", database_locked, 4, 2, quick=False),
    Fault("disk full", "local", disk_full, 10, 5),
    Fault(
        "clock stepped by an hour", "local", clock_stepped, 4, 2, quick=False, needs=_no_faketime
    ),
    Fault("daemon killed at a crash point", "slurm", daemon_at_a_point, 120, 30, kills=True),
    Fault("daemon killed at a random time", "slurm", daemon_at_random, 60, 30, kills=True),
    Fault("worker killed at a crash point", "slurm", worker_at_a_point, 30, 15, kills=True),
    Fault("slurmctld stopped and started", "slurm", controller_stopped, 5, 5),
    Fault(
        "slurmctld killed, seconds lost", "slurm", controller_loses_seconds, 10, 5, may_fail=True
    ),
    Fault("slurmd killed", "slurm", node_killed, 5, 5, may_fail=True),
    Fault("munged killed", "slurm", munge_killed, 5, 5),
    Fault("daemon killed at a crash point", "gridengine", daemon_at_a_point, 30, 15, kills=True),
    Fault("daemon killed at a random time", "gridengine", daemon_at_random, 15, 15, kills=True),
    Fault("worker killed at a crash point", "gridengine", worker_at_a_point, 10, 10, kills=True),
    Fault("qmaster stopped", "gridengine", qmaster_hung, 3, 3),
    Fault("qmaster killed", "gridengine", qmaster_killed, 5, 5, quick=False),
    Fault("execd killed", "gridengine", execd_killed, 3, 3, quick=False),
)
