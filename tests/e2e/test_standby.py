"""An active daemon and its standby over one PostgreSQL."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from metasched.db import postgresql
from metasched.db.postgresql import LockSession
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.harness.databases import database_from_url
from tests.harness.postgresql import Server
from tests.harness.slurm import SlurmSite


class Host(Site):
    """A daemon with a socket of its own, over the database of another."""

    programs: Path | None = None  # first folder of the daemon's PATH

    def __init__(self, folder: Path, url: str, name: str, clusters: str = TWO_LOCAL) -> None:
        super().__init__(folder)
        self.url = url
        self.config = folder / f"{name}.toml"
        self.log = folder / f"{name}.log"
        self.configure(clusters)
        self.config.write_text(self.config.read_text().replace("ms.sock", f"{name}.sock"))

    @property
    def environment(self) -> dict[str, str]:
        environment = super().environment
        if self.programs is not None:
            environment["PATH"] = f"{self.programs}:{environment['PATH']}"
        return environment

    def exit_code(self) -> int:
        assert self._daemon is not None
        return self._daemon.wait(60)


@contextmanager
def both_running(first: Host, second: Host) -> Iterator[None]:
    with closing(first), closing(second):
        first.start()
        second.options = ["--standby"]
        second.launch()
        second.until(lambda: "standby: another daemon" in second.log.read_text())
        yield


@pytest.fixture
def hosts(tmp_path: Path, postgresql_server: Server) -> Iterator[tuple[Host, Host]]:
    """A running daemon and its standby."""
    url = postgresql_server.create()
    first, second = (Host(tmp_path, url, name) for name in ("first", "second"))
    with both_running(first, second):
        yield first, second


def unread_calls(worker: psutil.Process) -> int:
    """Return how many bytes a worker has not read yet; 0 if it has ended."""
    with suppress(OSError), open(f"/proc/{worker.pid}/fd/0", "rb") as calls:
        [number] = struct.unpack("i", fcntl.ioctl(calls, termios.FIONREAD, bytes(4)))
        return int(number)
    return 0


@pytest.mark.slow("a standby takes over after ten seconds of silence, and its job runs")
def test_a_worker_that_hung_with_its_daemon_submits_nothing_later(
    tmp_path: Path, postgresql_server: Server, slurm_site: SlurmSite
) -> None:
    """The standby has dispatched the job again when the worker goes on."""
    cluster = slurm_site["beta"]
    cluster.empty()
    url = postgresql_server.create()
    rare, often = (
        cluster.table(f"poll_interval = {seconds}\ncall_timeout = 5\n") for seconds in (60, 1)
    )
    first, second = Host(tmp_path, url, "first", rare), Host(tmp_path, url, "second", often)
    ran = tmp_path / "ran"
    with both_running(first, second):
        [worker] = first.workers
        first.until(lambda: unread_calls(worker) == 0)
        worker.suspend()  # and polls are rare
        job = first.submit("-o", "/dev/null", "--wrap", f"echo ran >>'{ran}'")
        begun = "SELECT count(*) FROM event WHERE kind = 'DispatchStarted'"
        database = url.partition("?")[0].rpartition("/")[2]
        first.until(lambda: postgresql_server.sql(begun, database) == "1", patience=30)
        first.until(lambda: unread_calls(worker) > 0, patience=30)
        os.kill(first.pid, signal.SIGSTOP)
        assert second.until_ended(job)[0]["state"] == "completed"
        worker.resume()
        first.until(lambda: unread_calls(worker) == 0)
        os.kill(first.pid, signal.SIGCONT)
        assert first.exit_code() == 1
        second.until(lambda: not cluster.run("squeue", "-h").strip())
        assert ran.read_text() == "ran\n"
        assert second.row(job)["state"] == "completed"


@pytest.mark.slow("a standby takes over after ten seconds of silence, and eight jobs run")
def test_calls_that_a_daemon_wrote_before_it_hung_are_not_executed_later(
    tmp_path: Path, postgresql_server: Server, slurm_site: SlurmSite
) -> None:
    """Its worker runs on. A command that has begun submits its job, which the standby finds."""
    cluster = slurm_site["alpha"]
    cluster.empty()
    url, table = postgresql_server.create(), cluster.table("poll_interval = 1\ncall_timeout = 10\n")
    first, second = (Host(tmp_path, url, name, table) for name in ("first", "second"))
    first.programs = tmp_path / "programs"
    first.programs.mkdir()
    begun, slow = tmp_path / "begun", first.programs / "sbatch"
    slow.write_text(f'#!/bin/sh\necho >> {begun}\nsleep 2\nPATH=${{PATH#*:}}\nexec sbatch "$@"\n')
    slow.chmod(0o755)
    ran = tmp_path / "ran"
    with both_running(first, second):
        script = f"echo $METASCHED_JOB_ID >> '{ran}'"
        jobs = [first.submit("-o", "/dev/null", "--wrap", script) for _ in range(8)]
        first.until(lambda: begun.exists() and len(begun.read_text()) >= 2)
        os.kill(first.pid, signal.SIGSTOP)
        rows = second.until_ended(*jobs)
        assert "was silent for" in second.log.read_text()
        assert {row["state"] for row in rows} == {"completed"}
        assert len(begun.read_text()) < len(jobs)
        os.kill(first.pid, signal.SIGCONT)
        assert first.exit_code() == 1
        assert Counter(ran.read_text().split()) == Counter(map(str, jobs))
        assert "DUPLICATE" not in second.log.read_text()
        second.stop()
        second.replayed()


@pytest.mark.slow("observes two daemons for twelve seconds")
def test_a_daemon_that_runs_is_not_ended_by_its_standby(
    hosts: tuple[Host, Host],
) -> None:
    first, second = hosts
    time.sleep(12.0)  # longer than a silence
    assert "was silent for" not in second.log.read_text()
    job = first.submit("--wrap", "true")
    assert first.until_ended(job)[0]["state"] == "completed"
    entry = '[[calendar]]\nname = "night"\nat = "20:00"\ndo = "policy"\nfile = "night.toml"\n'
    second.config.write_text(second.config.read_text() + entry)
    (second.folder / "night.toml").write_text("pull = 3\n")
    first.stop()
    second.until(second.cluster_rows)
    problem = "a policy of the calendar cannot be put in force: "
    [line] = [line for line in second.log.read_text().splitlines() if problem in line]
    assert "night.toml" in line
    assert second.rows(job)[0]["state"] == "completed"


def test_a_daemon_that_restores_its_state_may_be_silent(
    tmp_path: Path, postgresql_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start with many open jobs makes no statement for long."""
    database = database_from_url(postgresql_server.create(), tmp_path)
    monkeypatch.setattr(postgresql, "SILENT_HOLDER", 0.2)
    with database.acquire_writer() as held:
        standby = LockSession(held.engine, database)  # type: ignore[arg-type]
        try:
            with held.long_silence():
                standby.end_silent_holder()
                time.sleep(0.5)
                standby.end_silent_holder()
            with held.connection.begin():
                held.connection.execute(text("SELECT 1"))  # it was not ended
            standby.end_silent_holder()
            time.sleep(0.5)
            standby.end_silent_holder()
            with pytest.raises(DBAPIError):
                held.connection.execute(text("SELECT 1"))
        finally:
            standby.connection.close()
