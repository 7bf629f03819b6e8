"""The daemon is stopped, killed and restarted: no job is lost or run twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from typing import Any

import psutil
import pytest

from metasched.core.events import ListingReceived
from metasched.db.ledger import Ledger
from tests.e2e.conftest import COMMAND, TWO_LOCAL, Site
from tests.harness.databases import database_from_url
from tests.harness.http_calls import call


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_jobs_outlive_the_daemon_and_give_their_true_exit_code(
    running: Site, number: signal.Signals
) -> None:
    run_log, first, second = (running.folder / name for name in ("ran", "first", "second"))
    wait = "while [ ! -e '{}' ]; do sleep 0.1; done"
    short = running.submit("--wrap", f"{wait.format(first)}; echo a >> '{run_log}'; exit 5")
    long = running.submit("--wrap", f"{wait.format(second)}; echo b >> '{run_log}'; exit 6")
    queued = running.submit("--wrap", f"echo c >> '{run_log}'", "-n", "8")
    running.until(lambda: running.row(long)["state"] == "running")
    code = running.stop(number)
    assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    first.touch()  # this job ends without a daemon
    running.until(lambda: run_log.exists() and "a" in run_log.read_text())
    running.start()
    second.touch()
    rows = running.until_ended(short, long, queued)
    assert [row["exit_code"] for row in rows] == [5, 6, 0]
    assert Counter(run_log.read_text().split()) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.slow("kills and starts a daemon six times")
def test_killed_at_random_while_jobs_are_submitted(running: Site) -> None:
    """Six kills: every accepted job starts exactly once."""
    draw = random.Random(7)
    run_log = running.folder / "ran"
    accepted = []
    for _ in range(6):
        for _ in range(draw.randrange(3, 8)):
            accepted.append(running.submit("--wrap", f"echo $METASCHED_JOB_ID >> '{run_log}'"))
        time.sleep(draw.random() * 0.3)
        running.stop(signal.SIGKILL)
        running.start()
    rows = running.until_ended()
    assert sorted(row["job"] for row in rows) == sorted(accepted)
    assert {row["state"] for row in rows} == {"completed"}
    assert Counter(run_log.read_text().split()) == Counter(str(job) for job in accepted)
    running.stop()
    running.replayed()


@pytest.mark.parametrize("dies", ["daemon", "worker"])
def test_an_end_is_listed_once(running: Site, dies: str) -> None:
    """A local cluster lists ends after the position that the daemon has stored."""
    jobs = [running.submit("--wrap", "true", "-o", "/dev/null") for _ in range(2)]
    running.until_ended(*jobs)
    if dies == "daemon":
        running.stop(signal.SIGKILL)
        running.start()
    else:
        for worker in psutil.Process(running.pid).children():
            worker.kill()
    jobs.append(running.submit("--wrap", "true", "-o", "/dev/null", "--cluster", "left"))
    jobs.append(running.submit("--wrap", "true", "-o", "/dev/null", "--cluster", "right"))
    running.until_ended(*jobs)
    running.stop()
    ledger = Ledger(database_from_url(running.url, running.folder).open_existing())
    with closing(ledger):
        listings = [event for event in ledger.events() if isinstance(event, ListingReceived)]
    ended = Counter(row.tag for listing in listings for row in listing.rows if row.ended)
    assert set(ended.values()) == {1}
    assert len(ended) == len(jobs)
    running.replayed()


def test_a_worker_that_dies_is_started_again(running: Site) -> None:
    for worker in psutil.Process(running.pid).children():
        worker.kill()
    job = running.submit("--wrap", "true")
    assert running.until_ended(job)[0]["state"] == "completed"


def test_the_death_of_an_idle_worker_is_noticed_at_once(site: Site) -> None:
    site.configure('[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 8\npoll_interval = 600\n')
    site.start()
    [worker] = psutil.Process(site.pid).children()
    worker.kill()
    site.until(
        lambda: "left: its worker died of signal 9; a new worker in 0.5 s" in site.log_tail()
    )
    [new_worker] = site.until(lambda: psutil.Process(site.pid).children())
    assert new_worker.pid != worker.pid
    job = site.submit("--wrap", "true")  # to the new worker
    site.until(lambda: site.row(job)["native_id"])
    assert site.json("clusters")[0]["breaker"]["failures"] == 0
    assert "breaker_open" not in site.log_tail()


def test_a_worker_that_hangs_is_killed_and_nothing_is_lost(site: Site) -> None:
    site.configure(
        '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 8\n'
        "poll_interval = 0.2\ncall_timeout = 2\n"
    )
    site.start()
    run_log = site.folder / "ran"
    [worker] = psutil.Process(site.pid).children()
    worker.suspend()
    job = site.submit("--wrap", f"echo x >> '{run_log}'")
    assert site.until_ended(job)[0]["state"] == "completed"
    assert run_log.read_text() == "x\n"
    assert not worker.is_running()


@pytest.mark.slow("calls to a stopped worker fail at their time limit, twice")
def test_a_worker_that_hangs_again_and_again_is_paused_while_others_go_on(site: Site) -> None:
    """The breaker of the worker opens; its jobs are unknown until it works again."""
    hang, go, ran = (site.folder / name for name in ("hang", "go", "ran"))
    python = site.folder / "python"
    python.write_text(f'#!/bin/sh\n[ -e "{hang}" ] && exec sleep 600\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    keys = f'python = "{python}"\nenvironment = {{ OF_LEFT = "1" }}\ncall_timeout = 2\n'
    site.configure(TWO_LOCAL.replace('name = "left"\n', f'name = "left"\n{keys}'))
    site.start()

    def row(name: str) -> Any:
        return next(row for row in site.cluster_rows() if row["cluster"] == name)

    def metric() -> str:
        text = call(site.folder / "ms.sock", "GET", "/metrics").content.decode()
        sample = 'breaker_failures{operation="worker",source="cluster left"} '
        return next(line.rpartition(" ")[2] for line in text.splitlines() if sample in line)

    script = f"echo ran >> '{ran}'; while [ ! -e '{go}' ]; do sleep 0.1; done"
    job = site.submit("--cluster", "left", "--wrap", script)
    site.until(ran.exists)
    hang.touch()
    [worker] = [worker for worker in site.workers if "OF_LEFT" in worker.environ()]
    worker.suspend()
    site.until(lambda: site.row(job)["state"] == "unknown")
    paused = row("left")["worker"]
    assert paused["failures"] >= 2
    assert f"{paused['failures']} times in a row" in paused["words"]
    assert float(metric()) >= 2.0
    other = site.submit("--wrap", "true")
    assert site.until_ended(other)[0]["cluster"] == "right"
    assert row("right")["worker"]["failures"] == 0
    hang.unlink()
    for child in psutil.Process(site.pid).children():
        if child.cmdline() == ["sleep", "600"]:
            child.kill()  # no wait for its timeout
    site.until(lambda: site.row(job)["state"] == "running")
    go.touch()
    assert site.until_ended(job)[0]["state"] == "completed"
    assert ran.read_text() == "ran\n"
    assert row("left")["breaker"]["state"] == "closed"
    events = {event["kind"] for event in site.json("events", "--cluster", "left")}
    opened = {"breaker_open", "cluster_unreachable", "job_unknown"}
    assert events == opened | {"cluster_answers", "job_known", "breaker_closed"}
    site.stop()
    site.replayed()


def test_a_wait_continues_over_a_restart_of_the_daemon(running: Site) -> None:
    go = running.folder / "go"
    job = running.submit("--wrap", f"while [ ! -e '{go}' ]; do sleep 0.1; done; exit 9")
    with subprocess.Popen(
        [COMMAND, "wait", str(job)], env=running.environment, stderr=subprocess.PIPE
    ) as waiting:
        running.until(lambda: any(c.pid == waiting.pid for c in psutil.net_connections("unix")))
        running.stop()
        running.start()
        go.touch()
        assert waiting.wait(120) == 9


def test_a_closed_terminal_does_not_end_the_daemon(running: Site) -> None:
    psutil.Process(running.pid).send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert running.json("clusters")
    assert running.stop() == 0


@pytest.mark.slow("starts a daemon four times, with and without a cluster")
def test_an_operator_resolves_unknown_jobs(running: Site) -> None:
    job = running.submit("--wrap", "sleep 300", "--cluster", "right")
    running.until(lambda: running.row(job)["state"] == "running")
    whole = running.config.read_text()
    assert "only unknown jobs" in running.run("resolve", str(job), "lost").stdout
    running.stop()
    running.configure(TWO_LOCAL.partition('\n[[cluster]]\nname = "right"')[0])
    running.start()
    assert running.row(job)["state"] == "unknown"
    assert "resolve it" in running.run("cancel", str(job)).stdout
    running.stop()
    running.config.write_text(whole)
    running.start()
    assert running.until_ended(job)[0]["state"] == "cancelled"
    assert "cancelled; only unknown jobs" in running.run("resolve", str(job), "lost").stdout
    assert "lost or ran" in running.error("resolve", str(job), "gone", code=2)
    assert "nothing to resolve" in running.error("resolve", "ran", code=2)
    assert "no exit code" in running.error("resolve", str(job), "lost", "--exit-code", "3", code=2)

    jobs = [running.submit("--wrap", "sleep 300", "--cluster", "right") for _ in range(2)]
    running.until(lambda: {row["state"] for row in running.rows(*jobs)} == {"running"})
    running.stop()
    running.configure(TWO_LOCAL.partition('\n[[cluster]]\nname = "right"')[0])
    running.start()
    assert running.json("resolve", "ran", "--cluster", "left") == []
    rows = running.json("resolve", "ran", "--cluster", "right", "--exit-code", "3")
    assert [(row["job"], row["was"], row["state"]) for row in rows] == [
        (job, "unknown", "failed") for job in jobs
    ]
    assert [row["exit_code"] for row in running.rows(*jobs)] == [3, 3]


def test_no_worker_outlives_a_killed_daemon(running: Site) -> None:
    workers = psutil.Process(running.pid).children()
    assert len(workers) == 2
    running.stop(signal.SIGKILL)
    psutil.wait_procs(workers, timeout=30)
    assert not any(worker.is_running() for worker in workers)


def test_a_database_without_writes_loses_nothing(running: Site) -> None:
    """Another program locks the database: submissions are refused until it releases the lock."""
    import sqlite3

    job = running.submit("--wrap", "sleep 3; exit 4")
    running.until(lambda: running.row(job)["state"] == "running")
    holder = sqlite3.connect(running.database, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    message = running.error("submit", "--wrap", "true", code=4)
    assert "database" in message
    holder.execute("ROLLBACK")
    holder.close()
    running.until(running.cluster_rows)
    assert running.until_ended(job)[0]["exit_code"] == 4
    again = running.submit("--wrap", "true")
    assert running.until_ended(again)[0]["state"] == "completed"
    assert len(running.json("status", "--all")) == 2
