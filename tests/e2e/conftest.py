"""A real daemon in a folder of its own, driven through the command line as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from metasched.client.client import Client, ClientError
from metasched.core.scheduler import replay
from metasched.db.backends import database_from_url
from metasched.db.ledger import Ledger
from metasched.paths import daemon_socket
from tests.conftest import require
from tests.e2e.reservable_clusters import BOOTS, ReservableCluster
from tests.harness.previous_release import PreviousRelease, PreviousReleaseError, unpacked
from tests.harness.slurm import SlurmSite

COMMAND = Path(sys.executable).parent / "metasched"
ENDED = {"completed", "failed", "timeout", "cancelled", "rejected"}
FOLDER = "metasched.clusters"  # what SQLite would have beside its file anyway
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
    """One configuration with its daemon; `run` is the command line."""

    before: Sequence[str] = ()  # words before the daemon's command, such as for another account
    options: Sequence[str] = ()  # words after it
    caller: Mapping[str, Any] = {}  # words of subprocess of who calls, such as `user`

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "metasched.toml"
        self.database = folder / "metasched.db"
        self.url = "sqlite:///metasched.db"
        self.log = folder / "daemon.log"
        self._daemon: subprocess.Popen[bytes] | None = None

    def configure(self, clusters: str = TWO_LOCAL, more: str = "") -> None:
        daemon = f'[daemon]\ndatabase = "{self.url}"\nfolder = "{FOLDER}"\nsocket = "ms.sock"\n'
        self.config.write_text(daemon + more + clusters)

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("METASCHED_", "SLURM_"))}
        return kept | {"METASCHED_CONFIG": str(self.config), "COLUMNS": "200"}

    def launch(self) -> None:
        """Start the daemon, and do not wait for it."""
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
        """Start the daemon and wait until every cluster is up (one of them: in that state)."""
        self.launch()
        self.until(lambda: self._heard(state))

    def _heard(self, state: str) -> bool:
        states = {c["state"].partition(" ")[0] for c in self.cluster_rows()}
        return state in states and states <= {"up", state}

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the daemon, gently or not; its exit code."""
        assert self._daemon is not None
        self._daemon.send_signal(number)
        code = self._daemon.wait(60)
        self._daemon = None
        assert "Traceback" not in self.log.read_text(), self.log_tail()
        return code

    @property
    def pid(self) -> int:
        assert self._daemon is not None
        return self._daemon.pid

    def run(
        self, *arguments: str | Path, code: int = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [COMMAND, *arguments],
            env=self.environment | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            **{"cwd": self.folder, **self.caller},
        )
        assert done.returncode == code, f"{arguments}: {done}"
        assert "Traceback" not in done.stderr
        return done

    def error(self, *arguments: str | Path, code: int) -> str:
        """The one line that a command that fails prints."""
        told = self.run(*arguments, code=code).stderr
        assert told.startswith("metasched: error: "), told
        assert told.count("\n") == 1, told
        return told.removeprefix("metasched: error: ").rstrip("\n")

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def submit(self, *arguments: str | Path) -> int:
        return int(self.run("submit", "--parsable", *arguments).stdout)

    @property
    def _client(self) -> Client:
        return Client(daemon_socket(str(self.config)))

    def rows(self, *jobs: int | str) -> list[dict[str, Any]]:
        """What `status --json` prints of the jobs (none: of all), by the client that it calls.

        A command of its own for each look would keep the machine busier than what is waited for.
        """
        words = [str(job) for job in jobs]
        if self.caller:
            told: list[dict[str, Any]] = self.json("status", *(words or ["--all"]))
            return told
        return self._client.jobs(words, all=None if jobs else "true")

    def cluster_rows(self) -> list[dict[str, Any]]:
        """What `clusters --json` prints, as `rows`."""
        if self.caller:
            told: list[dict[str, Any]] = self.json("clusters")
            return told
        return self._client.clusters()

    def reservation(self, id: int) -> dict[str, Any]:
        """What `reservations --all --json` prints of a reservation, as `rows`."""
        [row] = [r for r in self._client.reservations(True) if r["reservation"] == id]
        return row

    def row(self, job: int) -> dict[str, Any]:
        [row] = self.rows(job)
        return row

    def until(self, condition: Callable[[], Any], patience: float = 60.0) -> Any:
        """Poll `condition` and return its first true value; retry when it raises meanwhile."""
        deadline = time.monotonic() + patience
        while True:
            with contextlib.suppress(AssertionError, ClientError):
                if value := condition():
                    return value
            assert time.monotonic() < deadline, f"not within {patience:g} s; {self.log_tail()}"
            time.sleep(0.05)

    def until_ended(self, *jobs: int, patience: float = 120.0) -> list[dict[str, Any]]:
        """The rows of the jobs (of all) once every one has ended."""

        def ended() -> Any:
            rows = self.rows(*jobs)
            return rows if all(row["state"] in ENDED for row in rows) else None

        try:
            rows: list[dict[str, Any]] = self.until(ended, patience)
        except AssertionError as late:
            left = [row for row in self.rows(*jobs) if row["state"] not in ENDED]
            raise AssertionError(f"{late}\nnot ended: {left}") from None
        return rows

    def log_tail(self) -> str:
        return self.log.read_text()[-2000:]

    def close(self) -> None:
        """End the daemon and every job and worker that it or a crash of it left behind."""
        if self._daemon is not None:
            self.stop(signal.SIGKILL)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                named = [*process.cmdline(), *process.environ().values()]
                if any(str(self.folder) in word for word in named):
                    process.kill()

    def replayed(self) -> None:
        """The recorded events, stepped through a fresh core, give the recorded assignments."""
        ledger = Ledger(database_from_url(self.url, self.folder).open_existing())
        try:
            told = sorted(
                (line for job in {r["job"] for r in ledger.status()} for line in ledger.story(job)),
                key=lambda line: line["id"],
            )
            priorities = {row["job"]: row["priority"] for row in ledger.status()}
            outcomes = list(replay(ledger.events()))
        finally:
            ledger.close()
        columns = ["job", "task_index", "attempt", "what", "before", "after", "cluster"]
        columns += ["reason", "cause"]
        recorded = [tuple(line[column] for column in columns) for line in told]
        changes = [
            (c.job, c.index, c.attempt, c.event, c.before, c.after, c.cluster, c.reason, c.cause)
            for out in outcomes
            for c in out.changes
        ]
        assert changes == recorded
        again = {t.job.id: t.priority for out in outcomes for t in out.tasks.values()}
        assert again == priorities


def reserve(site: Site, *words: str) -> dict[str, Any]:
    """Reserve by the command line; return what it prints of the reservation."""
    answer = site.json("reserve", *words)
    assert isinstance(answer, dict)
    return answer


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with two local clusters whose daemon is not running yet."""
    # a unix socket's path is short: pytest's own folders may not be
    made = Site(tmp_path)
    made.configure()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def running(site: Site) -> Site:
    site.start()
    return site


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A running site for many tests that change nothing."""
    made = Site(tmp_path_factory.mktemp("shared"))
    made.configure()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def over_slurm(site: Site, slurm_site: SlurmSite) -> Site:
    """A running site over two real, empty Slurm clusters, alpha and beta."""
    for cluster in slurm_site:
        cluster.empty()
    site.configure(
        "".join(
            f'[[cluster]]\nname = "{c.name}"\nadapter = "slurm"\nconfig = "{c.conf}"\n'
            "poll_interval = 1\n"
            for c in slurm_site
        )
    )
    site.start()
    return site


@pytest.fixture(scope="module", params=list(BOOTS))
def reservable(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReservableCluster]:
    """Each real cluster that keeps reservations, for a module; tests disable its places."""
    with BOOTS[request.param](tmp_path_factory.mktemp("kept")) as cluster:
        yield cluster


@pytest.fixture
def cluster(reservable: ReservableCluster) -> Iterator[ReservableCluster]:
    """The cluster; what a test did to it is undone."""
    yield reservable
    reservable.tidy()


@pytest.fixture
def divided(cluster: ReservableCluster) -> Iterator[None]:
    """The cluster has several places. To be asked for before the daemon is."""
    with cluster.divided():
        yield


@pytest.fixture
def reserving_site(cluster: ReservableCluster, site: Site) -> Site:
    """A running site over the cluster alone."""
    # in this order: the daemon ends before its cluster is put in order
    site.configure(cluster.table(site.folder))
    site.start()
    return site


@pytest.fixture(scope="session")
def previous_release(common_folder: Path) -> PreviousRelease:
    try:
        release = unpacked(common_folder / "previous")
    except PreviousReleaseError as error:
        require("previous", str(error))
    return release
