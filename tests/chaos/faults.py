"""The faults: how each is injected into a site with a stream of jobs, and repaired.

A strike is one injection. The daemon serves before and after it, and the strike repairs everything
else that it breaks.
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
from typing import Literal, Protocol

import psutil

from metasched.client.connection import ClientError
from metasched.db.postgresql import SILENCE_TIMEOUT as SILENT
from tests.chaos import site_mode
from tests.chaos.points import Orders, deaths_in
from tests.chaos.site import PATIENCE, STOP, ChaosSite
from tests.chaos.site_mode import MultiUserChaosSite
from tests.chaos.stream import Stream
from tests.e2e.conftest import Site
from tests.harness import fake_clock, gridengine, postgresql, slurm
from tests.harness.gridengine import Cell
from tests.harness.root_launcher import RootLauncher
from tests.harness.slurm import SlurmCluster, SlurmSite

AT_ONCE = 3  # worker deaths for each daemon process
LIFE = 3.0  # seconds until a daemon that does not reach its crash point is killed anyway
WORK = 1.5  # maximum seconds until a daemon is killed at a random time
LAUNCHER_SILENCE = 0.5  # seconds for which there is no launcher
STANDSTILL = (5.0, 120.0)  # seconds for which a manager stands still: shortest, longest
SILENCE = 3.0  # seconds for which a manager, a disk or a database is unavailable

AT_WORK = 3  # jobs that a daemon accepts before it dies, so that it does not die at its start

# of the clusters, or of the database; _site: in site mode
Manager = Literal[
    "local", "local_site", "postgresql", "slurm", "slurm_site", "gridengine", "slurm_postgresql"
]


@dataclass
class Trial:
    """One site under one fault; `seed` identifies the round.

    `passages` is the mean number of crash points passed before a death. `recoveries` are seconds:
    from a daemon's death to the next answer, or from the end of another fault to a new job's start.
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
        """Record the seconds until a new job starts on `cluster`; None: on a random cluster."""
        begun = time.monotonic()
        self.begin_on(cluster or self.draw.choice(self.stream.clusters))
        self.recoveries.append(time.monotonic() - begun)

    def begin_on(self, cluster: str, seconds: float = 0.0) -> str:
        """Submit a job for a cluster, with retries; wait for its start and return its name."""
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
        """The Slurm cluster into which faults are injected."""
        assert self.slurm is not None
        return self.slurm["alpha"]

    @property
    def grid(self) -> Cell:
        assert self.cell is not None
        return self.cell

    @property
    def launcher(self) -> RootLauncher:
        """The launcher of a site in site mode."""
        assert isinstance(self.site, MultiUserChaosSite)
        return self.site.launcher

    @property
    def postgresql(self) -> postgresql.Server:
        """The server that has the daemon's database."""
        assert self.server is not None
        return self.server


class Target(Protocol):
    """A site with managers, as far as an outage breaks it."""

    @property
    def site(self) -> Site: ...

    @property
    def alpha(self) -> SlurmCluster: ...

    @property
    def grid(self) -> Cell: ...

    @property
    def launcher(self) -> RootLauncher: ...


Strike = Callable[[Trial], None]
Mend = Callable[[], object]


@dataclass(frozen=True)
class Fault:
    """A fault. `times`: strikes in a whole run, `at_once` of them on each site.

    `may_fail`: it may end running jobs. `quick`: a strike takes few seconds, so `make test`
    includes it. `needs` returns why a requirement other than the manager is missing, or None.
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
        """Return why the fault cannot be injected on this host, or None."""
        return _MISSING[self.manager]() or self.needs()


_MISSING: dict[Manager, Callable[[], str | None]] = {
    "local": lambda: None,
    "local_site": site_mode.missing,
    "postgresql": postgresql.missing,
    "slurm": slurm.missing,
    "slurm_site": lambda: slurm.missing() or site_mode.missing(),
    "gridengine": gridengine.missing,
    "slurm_postgresql": lambda: slurm.missing() or postgresql.missing(),
}


# The daemon


def daemon_at_a_point(trial: Trial) -> None:
    """Kill the daemon at a random passage of a crash point, its own or a worker's."""
    site = trial.site
    _wait_for_a_death(site)
    site.order(Orders(seed=f"{trial.seed} {trial.strikes}", mean=trial.passages, together=True))
    _replace(trial)


def active_beside_a_standby(trial: Trial) -> None:
    """Kill the active daemon at a random passage of a crash point; its standby takes over."""
    site = trial.site
    seed = f"{trial.seed} {trial.strikes}"
    site.order(Orders(seed=seed, mean=trial.passages // 4, together=True, late=True))
    recoveries = trial.recoveries.copy()
    _replace(trial)
    site.order(Orders())  # the standby lives
    earlier = len(site.recoveries)
    site.launch_standby()
    site.arm()
    _wait_for_a_death(site)
    _end(site)
    site.take_over()
    trial.recoveries = recoveries + site.recoveries[earlier:]


def active_hung_beside_a_standby(trial: Trial) -> None:
    """Stop the active daemon at a random passage of a crash point; its standby takes over.

    A worker that passes the point is stopped, too. Resumed in any order, both must end and change
    nothing.
    """
    site = trial.site
    seed = f"{trial.seed} {trial.strikes}"
    site.order(Orders(seed=seed, mean=trial.passages // 4, together=True, late=True, stopped=True))
    recoveries = trial.recoveries.copy()
    _replace(trial)
    site.order(Orders())  # the standby goes on
    earlier = len(site.recoveries)
    site.launch_standby()
    active = psutil.Process(site.pid)
    site.arm()
    until = time.monotonic() + LIFE
    while active.status() != psutil.STATUS_STOPPED and time.monotonic() < until:
        time.sleep(0.005)
    active.suspend()  # it may have passed no such point
    processes = [active, *site.workers]
    site.replace_hung()
    # the standby dispatches jobs; without claims it submits again what was under way a minute later
    STOP.wait(SILENCE)
    stopped = list(filter(_is_stopped, processes))
    site.order(Orders())  # disarmed: one that had passed no point would stop again
    trial.draw.shuffle(stopped)
    for process in stopped:
        process.resume()
    site.end_of_hung()
    trial.recoveries = recoveries + site.recoveries[earlier:]
    site.until(site.heard, PATIENCE)


def _is_stopped(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_STOPPED
    return False


def daemon_at_each_point(trial: Trial) -> None:
    """Kill each daemon at the first crash point at which no process of this site has died.

    Every second daemon lives until it has work; otherwise most would die at their start.
    """
    site = trial.site
    if trial.strikes == 0:
        site.order(Orders(new=True, together=True))
        site.kill()
        site.launch()
    earlier = len(site.recoveries)
    accepted, until = trial.stream.accepted, time.monotonic() + PATIENCE
    site.serving()
    trial.recoveries += site.recoveries[earlier:]
    if trial.strikes % 2:
        while site.alive and trial.stream.accepted < accepted + AT_WORK:
            assert time.monotonic() < until, f"it accepts nothing; {site.log_tail()}"
            time.sleep(0.005)
        site.arm()
    _wait_for_a_death(site)
    _end(site)
    site.order(Orders(new=True, together=True, late=trial.strikes % 2 == 0))
    site.launch()


def daemon_at_a_reservation(trial: Trial) -> None:
    """Kill the daemon at the first crash point of reservations at which no process has died yet.

    Then make reservations without a fault.
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
    """Kill the daemon at the first point of accounting queries at which no process has died yet.

    The query concerns a job that ended and was forgotten while no daemon ran.
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
    """Kill the daemon at a random time after it has accepted a job."""
    accepted = trial.stream.accepted
    trial.site.until(lambda: trial.stream.accepted > accepted, PATIENCE)
    time.sleep(trial.draw.random() * WORK)
    _replace(trial)


def _wait_for_a_death(site: ChaosSite) -> None:
    until = time.monotonic() + LIFE
    while site.alive and time.monotonic() < until:
        time.sleep(0.005)


def _end(site: ChaosSite) -> None:
    """Kill the daemon if it is alive."""
    if site.alive:
        site.kill()
    else:
        site.gone()


def _replace(trial: Trial) -> None:
    """Kill the daemon if it is alive; start new daemons until a daemon serves."""
    site = trial.site
    earlier = len(site.recoveries)
    _end(site)
    site.launch()
    while not site.serving():
        site.gone()
        site.launch()
    trial.recoveries += site.recoveries[earlier:]


# The worker


def worker_at_a_point(trial: Trial) -> None:
    """Kill a worker at a random passage of a crash point."""
    _wait_for_a_worker(trial, in_c=False)


def worker_in_c(trial: Trial) -> None:
    """Crash a worker by a fault in C, as by a defect in a manager's library."""
    _wait_for_a_worker(trial, in_c=True)


def _wait_for_a_worker(trial: Trial, in_c: bool) -> None:
    site, number = trial.site, trial.strikes % AT_ONCE
    if number == 0:
        trial.dead = len(deaths_in(site.chaos))
        # the daemon restarts a worker that dies more often with growing delay
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
    # with two workers there may be an extra death, which counts as the next strike's
    site.until(lambda: len(deaths_in(site.chaos)) > trial.dead + number, PATIENCE)
    trial.recover()


def worker_hung(trial: Trial) -> None:
    """Stop a worker by SIGSTOP: its watchdog must kill it."""
    worker = trial.draw.choice(trial.site.until(lambda: trial.site.workers, PATIENCE))
    worker.suspend()
    trial.site.until(lambda: not worker.is_running() or worker.status() == "zombie", PATIENCE)
    trial.recover()


# The clock


def clock_stepped(trial: Trial) -> None:
    """Step the clock an hour forward and back, then an hour back and forward."""
    now = trial.site.folder / "clock"
    if trial.strikes == 0:
        now.write_text("+0")
        trial.site.extra_environment = fake_clock.shifted_as_in(now)
        _replace(trial)
    for seconds in ("+3600", "+0", "-3600", "+0"):
        draft = now.with_suffix(".draft")
        draft.write_text(seconds)
        draft.rename(now)
        trial.recover()


# Outages


def outage(broken: Callable[[Trial], Mend], seconds: float = SILENCE) -> Strike:
    """Return a strike: call `broken`, wait, call the repair that it returned, await recovery."""

    def strike(trial: Trial) -> None:
        repair = broken(trial)
        STOP.wait(seconds)
        repair()
        trial.recover("alpha" if trial.slurm is not None else None)

    return strike


def database_locked(trial: Target) -> Mend:
    """Lock the database from another program."""
    holder = sqlite3.connect(trial.site.database, isolation_level=None)
    trial.site.until(lambda: holder.execute("BEGIN IMMEDIATE"), PATIENCE)
    return holder.close


def database_read_only(trial: Trial) -> Mend:
    """Make the database files immutable, as on a disk that was remounted read-only."""
    # not -shm, which is mapped: the kernel would kill the daemon, which is another fault
    files = [f"{trial.site.database}{part}" for part in ("", "-wal")]

    def mark(flag: str) -> None:
        subprocess.run(["chattr", flag, *files], check=True)

    mark("+i")
    return partial(mark, "-i")


def _no_immutable() -> str | None:
    with tempfile.NamedTemporaryFile() as file:
        for flag in ("+i", "-i"):
            try:
                subprocess.run(["chattr", flag, file.name], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                return "chattr +i is refused: it needs root and a filesystem that has it"
    return None


def disk_full(trial: Target) -> Mend:
    """Keep the files of the daemon, its workers and their children from growing."""
    processes = [psutil.Process(trial.site.pid), *trial.site.workers]

    def limit(size: int) -> None:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.rlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    limit(0)
    return partial(limit, resource.RLIM_INFINITY)


def server_killed(trial: Trial) -> Mend:
    """Kill PostgreSQL."""
    trial.postgresql.stop(signal.SIGKILL)
    return trial.postgresql.start


def server_stopped(trial: Trial) -> Mend:
    """Shut PostgreSQL down in order."""
    trial.postgresql.stop()
    return trial.postgresql.start


def server_hung(trial: Trial) -> Mend:
    """Stop PostgreSQL by SIGSTOP: its connections stay open."""
    trial.postgresql.hang()
    return trial.postgresql.wake


def launcher_killed(trial: Target) -> Mend:
    """Kill the launcher, and with it the commands that it runs for users."""
    trial.launcher.kill()
    return trial.launcher.start


def launcher_stopped(trial: Trial) -> Mend:
    """Stop the launcher by SIGSTOP: it accepts no connection."""
    process = trial.launcher.process
    process.suspend()
    return process.resume


def controller_stopped(trial: Trial) -> Mend:
    """Shut slurmctld down in order."""
    cluster = trial.alpha
    cluster.stop_controller()
    return cluster.start_controller


def controller_loses_seconds(trial: Trial) -> Mend:
    """Kill slurmctld and restore a state some seconds old: job ids are used again."""
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
    """Kill the slurmd of a node."""
    name = trial.draw.choice(trial.alpha.nodes)
    trial.alpha.kill_node(name)
    return partial(trial.alpha.start_node, name)


def munge_killed(trial: Trial) -> Mend:
    """Kill munged: no request can be authenticated."""
    trial.alpha.kill_munge()
    return trial.alpha.start_munge


def qmaster_hung(trial: Trial) -> Mend:
    """Stop sge_qmaster by SIGSTOP."""
    qmaster = psutil.Process(trial.grid.qmaster)
    qmaster.suspend()
    return qmaster.resume


def qmaster_killed(trial: Target) -> Mend:
    """Kill sge_qmaster; restart sge_execd afterwards, as docs/admin/incidents.md advises."""
    cell = trial.grid
    cell.kill_qmaster()

    def mend() -> None:
        cell.start_qmaster()
        cell.kill_execd()
        cell.start_execd()

    return mend


def execd_killed(trial: Trial) -> Mend:
    """Kill sge_execd."""
    trial.grid.kill_execd()
    return trial.grid.start_execd


# Managers that stand still


def stands_still(manager: Callable[[Trial], int], listing: str) -> Strike:
    """Return a strike: stop a manager, and continue it just after a listing has begun.

    The stream goes on meanwhile, so submissions wait in the backlog, and the listing overtakes
    them. `manager` returns the process, `listing` is the command.
    """

    def strike(trial: Trial) -> None:
        process = psutil.Process(manager(trial))
        process.suspend()
        try:
            STOP.wait(trial.draw.uniform(*STANDSTILL))
            _await_command(trial.site, listing)
        finally:
            process.resume()
        trial.recover("alpha" if trial.slurm is not None else None)

    return strike


def _await_command(site: ChaosSite, name: str) -> None:
    """Wait until a worker begins a command `name`."""
    until, begun = time.monotonic() + PATIENCE, time.time()
    while time.monotonic() < until and not STOP.is_set():
        with contextlib.suppress(psutil.Error):
            for worker in site.workers:
                for child in worker.children(recursive=True):
                    if child.name() == name and child.create_time() > begun:
                        return
        time.sleep(0.01)


def queues_of_rpcs(strike: Strike) -> Strike:
    """Return the strike, while slurmctld has a queue for submissions and another for listings."""

    def struck(trial: Trial) -> None:
        conf = trial.alpha.conf
        before = conf.read_text()
        for text in (before + "SlurmctldParameters=enable_rpc_queue\n", before):
            trial.alpha.stop_controller()
            conf.write_text(text)
            trial.alpha.start_controller()
            if text is not before:
                strike(trial)

    return struck


CONTROLLER_STANDS_STILL = stands_still(lambda trial: trial.alpha.controller, "squeue")
QMASTER_STANDS_STILL = stands_still(lambda trial: trial.grid.qmaster, "qstat")

_KILLING = (
    *(daemon_at_each_point, daemon_at_a_point, daemon_at_random, daemon_at_a_reservation),
    active_beside_a_standby,
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
        "clock stepped by an hour",
        "local",
        clock_stepped,
        4,
        2,
        quick=False,
        needs=fake_clock.missing,
    ),
    Fault("daemon killed at a crash point", "local_site", daemon_at_a_point, 60, 20),
    Fault("launcher killed", "local_site", outage(launcher_killed, LAUNCHER_SILENCE), 20, 10),
    Fault("launcher stopped", "local_site", outage(launcher_stopped), 6, 3, quick=False),
    Fault("daemon killed at a crash point", "postgresql", daemon_at_a_point, 60, 20),
    Fault(
        "active daemon killed at a crash point, a standby takes over",
        "postgresql",
        active_beside_a_standby,
        times=40,
        at_once=10,
    ),
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
    Fault("daemon killed at a crash point", "slurm_site", daemon_at_a_point, 40, 20),
    Fault("launcher killed", "slurm_site", outage(launcher_killed, LAUNCHER_SILENCE), 20, 10),
    Fault("launcher stopped", "slurm_site", outage(launcher_stopped), 6, 3, quick=False),
    Fault("daemon killed at a crash point", "gridengine", daemon_at_a_point, 30, 15),
    Fault("daemon killed at a random time", "gridengine", daemon_at_random, 15, 15, quick=False),
    Fault("worker killed at a crash point", "gridengine", worker_at_a_point, 10, 10),
    Fault("qmaster stopped", "gridengine", outage(qmaster_hung, 2 * SILENCE), 3, 3),
    Fault("qmaster killed", "gridengine", outage(qmaster_killed), 4, 2, quick=False),
    Fault("execd killed", "gridengine", outage(execd_killed), 3, 3, quick=False),
    # the number of a fault is in the seeds of its rounds: new ones come last
    Fault(
        "active daemon stopped at a crash point, resumed after its standby has taken over",
        "slurm_postgresql",
        active_hung_beside_a_standby,
        times=24,
        at_once=6,
        quick=False,
    ),
    Fault("slurmctld stands still", "slurm", CONTROLLER_STANDS_STILL, 24, 3, quick=False),
    Fault(
        "slurmctld with queues of RPCs stands still",
        "slurm",
        queues_of_rpcs(CONTROLLER_STANDS_STILL),
        times=12,
        at_once=3,
        quick=False,
    ),
    Fault("slurmctld stands still", "slurm_site", CONTROLLER_STANDS_STILL, 12, 3, quick=False),
    Fault("qmaster stands still", "gridengine", QMASTER_STANDS_STILL, 12, 3, quick=False),
)
