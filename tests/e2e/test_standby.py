"""An active daemon and its standby over one PostgreSQL: clients know both, and jobs run once."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from metasched.db import postgresql
from metasched.db.backends import database_from_url
from metasched.db.postgresql import LockSession
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.harness.ports import free_port
from tests.harness.postgresql import Server
from tests.harness.slurm import SlurmSite


class Host(Site):
    """A daemon with a socket and a port of its own, over the database of another."""

    programs: Path | None = None  # first folder of the daemon's PATH

    def __init__(self, folder: Path, url: str, name: str, clusters: str = TWO_LOCAL) -> None:
        super().__init__(folder)
        self.url = url
        self.config = folder / f"{name}.toml"
        self.log = folder / f"{name}.log"
        self.port = free_port()
        self.configure(clusters, f'[tcp]\nlisten = "127.0.0.1:{self.port}"\n')
        self.config.write_text(self.config.read_text().replace("ms.sock", f"{name}.sock"))

    @property
    def environment(self) -> dict[str, str]:
        environment = super().environment
        if self.programs is not None:
            environment["PATH"] = f"{self.programs}:{environment['PATH']}"
        return environment

    def send(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(number)

    def exit_code(self) -> int:
        assert self._daemon is not None
        return self._daemon.wait(60)


@pytest.fixture
def hosts(tmp_path: Path, postgresql_server: Server) -> Iterator[tuple[Host, Host]]:
    """A running daemon and its standby."""
    url = postgresql_server.create()
    first, second = (Host(tmp_path, url, name) for name in ("first", "second"))
    with closing(first), closing(second):
        start_both(first, second)
        yield first, second


def start_both(first: Host, second: Host) -> None:
    first.start()
    second.options = ["--standby"]
    second.launch()
    second.until(lambda: "standby: another daemon" in second.log.read_text())


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_standby_takes_over_while_jobs_come(
    hosts: tuple[Host, Host], fault: signal.Signals, record_property: Callable[[str, object], None]
) -> None:
    """The active daemon is killed, or hangs and is resumed later."""
    first, second = hosts
    ran, token = first.folder / "ran", first.folder / "token"
    first.run("token", "create", "--file", token)
    clients = {
        "METASCHED_CONFIG": "",
        "METASCHED_SOCKET": ",".join(f"http://127.0.0.1:{host.port}" for host in hosts),
        "METASCHED_TOKEN_FILE": str(token),
    }

    def submit() -> int:
        script = f"echo $METASCHED_JOB_ID >> '{ran}'"
        done = first.run("submit", "--parsable", "-o", "/dev/null", "--wrap", script, env=clients)
        return int(done.stdout)

    accepted = [submit() for _ in range(5)]
    first.send(fault)
    failed = time.monotonic()
    accepted.append(submit())  # it waits for the standby
    record_property("seconds until a submission was accepted", time.monotonic() - failed)
    accepted += [submit() for _ in range(5)]
    if fault is signal.SIGSTOP:
        assert "was silent for" in second.log.read_text()
        first.send(signal.SIGCONT)
    assert first.exit_code() == (-9 if fault is signal.SIGKILL else 1)
    rows = second.until_ended()
    assert [row["job"] for row in rows] == accepted
    assert {row["state"] for row in rows} == {"completed"}
    assert Counter(ran.read_text().split()) == Counter(map(str, accepted))
    second.stop()
    second.replayed()


def test_workers_of_a_daemon_that_hangs_submit_nothing_that_its_standby_submits(
    tmp_path: Path, postgresql_server: Server, slurm_site: SlurmSite
) -> None:
    """Calls that the daemon wrote before it hung, and a command that has begun, come too late."""
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
    with closing(first), closing(second):
        start_both(first, second)
        script = f"echo $METASCHED_JOB_ID >> '{ran}'"
        options = ("-o", "/dev/null", "-c", "1")
        jobs = [first.submit(*options, "--wrap", script) for _ in range(8)]
        first.until(lambda: begun.exists() and len(begun.read_text()) >= 2)
        first.send(signal.SIGSTOP)
        rows = second.until_ended(*jobs)
        assert "was silent for" in second.log.read_text()
        assert {row["state"] for row in rows} == {"completed"}
        # the commands of the first within the 6 s for which it was certainly active
        assert len(begun.read_text()) < len(jobs)
        first.send(signal.SIGCONT)
        assert first.exit_code() == 1
        assert Counter(ran.read_text().split()) == Counter(map(str, jobs))
        assert "DUPLICATE" not in second.log.read_text()
        second.stop()
        second.replayed()


def test_a_daemon_that_runs_is_not_ended_by_its_standby(
    hosts: tuple[Host, Host],
) -> None:
    first, second = hosts
    time.sleep(12.0)  # longer than a silence
    assert "was silent for" not in second.log.read_text()
    job = first.submit("--wrap", "true")
    assert first.until_ended(job)[0]["state"] == "completed"
    first.stop()
    second.until(second.cluster_rows)
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
