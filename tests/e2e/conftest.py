"""A real daemon in a folder of its own, driven through the command line as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from metasched.client.address import find_daemon
from metasched.client.client import Client
from metasched.client.connection import ClientError
from metasched.core.audit_trail import AuditTrail
from metasched.core.scheduler import replay
from metasched.db.audit import AuditFilter
from metasched.db.ledger import Ledger
from tests.e2e.reservable_clusters import BOOTS, ReservableCluster
from tests.harness.databases import database_from_url
from tests.harness.looks import looks
from tests.harness.next_release import NextRelease
from tests.harness.slurm import SlurmSite

COMMAND = Path(sys.executable).parent / "metasched"
# kinds of audit records that are stored without an event of the core
KINDS_WITHOUT_EVENT = {
    *("breaker_open", "breaker_closed", "defect", "credential_refused"),
    *("licence_server_silent", "licence_server_answers", "token_created", "token_revoked"),
    *("notification_failed", "notification_uncertain", "calendar_slow", "session_acted"),
    *("shadow_started", "shadow_ended", "local_policy_excluded", "local_policy_decides"),
}
ENDED = {"completed", "failed", "timeout", "cancelled", "rejected"}
FOLDER = "metasched.clusters"  # the default with SQLite, beside its file
ONE_LOCAL = """
[[cluster]]
name = "here"
adapter = "local"
cpus = 4
poll_interval = 0.2
"""
TWO_LOCAL = """
[[cluster]]
name = "left"
adapter = "local"
cpus = 8
benchmark = 300
poll_interval = 0.2

[[cluster]]
name = "right"
adapter = "local"
cpus = 4
benchmark = 100
poll_interval = 0.2
"""


class Site:
    """A configuration with its daemon; `run` runs a command."""

    before: Sequence[str] = ()  # prefix of the daemon's command, such as a change of account
    options: Sequence[str] = ()  # arguments of `serve`
    caller: Mapping[str, Any] = {}  # subprocess arguments of the caller, such as `user`

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "metasched.toml"
        self.database = folder / "metasched.db"
        self.url = "sqlite:///metasched.db"
        self.log = folder / "daemon.log"
        self._daemon: subprocess.Popen[bytes] | None = None

    def configure(self, clusters: str = TWO_LOCAL, extra: str = "") -> None:
        daemon = f'[daemon]\ndatabase = "{self.url}"\nfolder = "{FOLDER}"\nsocket = "ms.sock"\n'
        self.config.write_text(daemon + extra + clusters)

    @property
    def environment(self) -> dict[str, str]:
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("METASCHED_", "SLURM_"))
        }
        return inherited | {"METASCHED_CONFIG": str(self.config), "COLUMNS": "200"}

    def launch(self) -> None:
        """Start the daemon without waiting for it."""
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(
                [*self.before, COMMAND, "serve", *self.options],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start(self, state: str = "up") -> None:
        """Start the daemon; wait until at least one cluster is in `state`, the others up."""
        self.launch()
        self.until(lambda: self._heard(state))

    def _heard(self, state: str) -> bool:
        states = {c["state"].partition(" ")[0] for c in self.cluster_rows()}
        return state in states and states <= {"up", state}

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the daemon a signal; return its exit code."""
        assert self._daemon is not None
        self._daemon.send_signal(number)
        code = self._daemon.wait(60)
        self._daemon = None
        assert "Traceback" not in self.log.read_text(), self.log_tail()
        return code

    def restore(self, backup: Path) -> None:
        """Put a backup in the place of the SQLite database; the daemon is stopped."""
        for suffix in ("-wal", "-shm"):
            self.database.with_name(self.database.name + suffix).unlink(missing_ok=True)
        shutil.copy(backup, self.database)

    @property
    def instance(self) -> str:
        """The name of the database in new tags."""
        name: str = self._client.health()["instance"]
        return name

    @property
    def pid(self) -> int:
        assert self._daemon is not None
        return self._daemon.pid

    @property
    def workers(self) -> list[psutil.Process]:
        """The workers of this daemon, in no particular order."""
        with contextlib.suppress(psutil.Error):
            return [
                child
                for child in psutil.Process(self.pid).children()
                if "metasched.adapters.worker" in child.cmdline()
            ]
        return []

    def run(
        self, *arguments: str | Path, code: int = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the caller."""
        return self._run([COMMAND, *arguments], code, env, {"cwd": self.folder, **self.caller})

    def run_beside_daemon(
        self, *arguments: str | Path, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the daemon's account, in its network namespace."""
        return self._run([*self.before, COMMAND, *arguments], code, None, {"cwd": "/"})

    def _run(
        self,
        command: Sequence[str | Path],
        code: int,
        env: dict[str, str] | None,
        caller: Mapping[str, Any],
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            env=self.environment | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            **caller,
        )
        assert done.returncode == code, f"{command}: {done}"
        assert "Traceback" not in done.stderr
        return done

    def error(self, *arguments: str | Path, code: int) -> str:
        """Return the one-line error message of a command that fails."""
        message = self.run(*arguments, code=code).stderr
        assert message.startswith("metasched: error: "), message
        assert message.count("\n") == 1, message
        return message.removeprefix("metasched: error: ").rstrip("\n")

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def submit(self, *arguments: str | Path) -> int:
        return int(self.run("submit", "--parsable", *arguments).stdout)

    @property
    def _client(self) -> Client:
        return Client(find_daemon(str(self.config)))

    def rows(self, *jobs: int | str) -> list[Any]:
        """Return the rows of `status --json` for the jobs, or for all jobs without arguments.

        The client runs in this process if possible: a command per poll would load the host.
        """
        arguments = [str(job) for job in jobs]
        if self.caller:
            printed: list[Any] = self.json("status", *(arguments or ["--all"]))
            return printed
        return self._client.jobs(arguments, all=None if jobs else "true")

    def cluster_rows(self) -> list[Any]:
        """Return the rows of `clusters --json`, read as in `rows`."""
        if self.caller:
            printed: list[Any] = self.json("clusters")
            return printed
        return self._client.clusters()

    def reservation(self, id: int) -> Any:
        """Return the row of a reservation in `reservations --all --json`."""
        [row] = [r for r in self._client.reservations(True) if r["reservation"] == id]
        return row

    def row(self, job: int | str) -> Any:
        [row] = self.rows(job)
        return row

    def details(self, job: int) -> Any:
        """Return the row of a job in `GET /jobs/details`."""
        [row] = self._client.job_details([str(job)])
        return row

    def until(self, condition: Callable[[], Any], patience: float = 180.0) -> Any:
        """Poll `condition` and return its first true value; retry if what it reads is not there."""
        for _ in looks(patience, shortest=0.05):
            missing: Exception | None = None
            try:
                if value := condition():
                    return value
            except (AssertionError, ClientError, LookupError, ValueError, OSError) as error:
                missing = error
        raise AssertionError(f"not within {patience:g} s ({missing!r}); {self.log_tail()}")

    def until_ended(self, *jobs: int | str, patience: float = 240.0) -> list[dict[str, Any]]:
        """Wait until the jobs (default: all) have ended; return their rows."""

        def ended() -> Any:
            rows = self.rows(*jobs)
            return rows if all(row["state"] in ENDED for row in rows) else None

        try:
            rows: list[dict[str, Any]] = self.until(ended, patience)
        except AssertionError as late:
            open_rows = [row for row in self.rows(*jobs) if row["state"] not in ENDED]
            raise AssertionError(f"{late}\nnot ended: {open_rows}") from None
        return rows

    def log_tail(self) -> str:
        return self.log.read_text()[-2000:]

    def close(self) -> None:
        """Kill the daemon and every process of this folder that it left behind."""
        if self._daemon is not None:
            self.stop(signal.SIGKILL)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                named = [*process.cmdline(), *process.environ().values()]
                if any(str(self.folder) in argument for argument in named):
                    process.kill()

    def replayed(self) -> None:
        """Assert that replaying the recorded events gives the recorded changes and priorities.

        It gives each audit record once, too, but for those that no event causes.
        """
        ledger = Ledger(database_from_url(self.url, self.folder).open_existing())
        try:
            lines = sorted(
                (line for job in {r["job"] for r in ledger.status()} for line in ledger.story(job)),
                key=lambda line: line["id"],
            )
            priorities = {row["job"]: row["priority"] for row in ledger.status()}
            events = list(ledger.events())
            audited, _ = ledger.audit_page(AuditFilter(), 0, 1_000_000)
            trail, records, outcomes = AuditTrail(), [], []
            for event, out in zip(events, replay(events), strict=True):
                outcomes.append(out)
                records += trail.records(event, out)
        finally:
            ledger.close()
        columns = ["job", "task_index", "attempt", "task_event", "before", "after", "cluster"]
        columns += ["reason", "cause"]
        recorded = [tuple(line[column] for column in columns) for line in lines]
        changes = [
            (c.job, index, c.attempt, c.event, c.before, c.after, c.cluster, c.reason, c.cause)
            for out in outcomes
            for c in out.changes
            for index in range(c.index, (c.run_last or c.index) + 1, c.run_step)
        ]
        assert changes == recorded
        again = {t.job.id: t.priority for out in outcomes for t in out.tasks.values()}
        assert again == priorities
        expected = [(r.time, r.kind.value, r.job, r.cluster, r.cause) for r in records]
        columns = ["time", "kind", "job", "cluster", "cause"]
        stored = [
            tuple(row[column] for column in columns)
            for row in audited
            if row["kind"] not in KINDS_WITHOUT_EVENT
        ]
        assert stored == expected


def reserve(site: Site, *options: str) -> dict[str, Any]:
    """Run `reserve`; return the reservation that it prints."""
    answer = site.json("reserve", *options)
    assert isinstance(answer, dict)
    return answer


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with two local clusters whose daemon is not running yet."""
    new_site = Site(tmp_path)
    new_site.configure()
    try:
        yield new_site
    finally:
        new_site.close()


@pytest.fixture
def running(site: Site) -> Site:
    site.start()
    return site


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A running site for many tests that change nothing."""
    new_site = Site(tmp_path_factory.mktemp("shared"))
    new_site.configure()
    try:
        new_site.start()
        yield new_site
    finally:
        new_site.close()


@pytest.fixture
def over_slurm(site: Site, slurm_site: SlurmSite) -> Site:
    """A running site over two real, empty Slurm clusters, alpha and beta."""
    for cluster in slurm_site:
        cluster.empty()
    site.configure("".join(c.table("poll_interval = 1\n") for c in slurm_site))
    site.start()
    return site


@pytest.fixture(scope="module", params=list(BOOTS))
def reservable(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReservableCluster]:
    """Each real cluster with reservations, booted per module; tests may disable its locations."""
    with BOOTS[request.param](tmp_path_factory.mktemp("kept")) as cluster:
        yield cluster


@pytest.fixture
def cluster(reservable: ReservableCluster) -> Iterator[ReservableCluster]:
    """The cluster; it is tidied after each test."""
    yield reservable
    reservable.tidy()


@pytest.fixture
def divided(cluster: ReservableCluster) -> Iterator[None]:
    """Divide the cluster into several locations; request this fixture before the daemon's."""
    with cluster.divided():
        yield


@pytest.fixture
def reserving_site(cluster: ReservableCluster, site: Site) -> Site:
    """A running site with this cluster only."""
    # order of fixtures: the daemon must end before its cluster is tidied
    site.configure(cluster.table(site.folder))
    site.start()
    return site


@pytest.fixture(scope="session")
def next_release(common_folder: Path) -> NextRelease:
    return NextRelease(common_folder / "next")
