"""The database goes back in time: a copied file, a restored image, a server that lost commits."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sqlite3
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from tests.e2e.conftest import ONE_LOCAL, Site
from tests.e2e.test_restored_backup import Jobs, Manager, local, slurm_without_records
from tests.harness import postgresql
from tests.harness.postgresql import Server


def copied(site: Site, name: str) -> None:
    """Copy the database file and its log, as `cp` does beside a stopped daemon."""
    for suffix in ("", "-wal", "-shm"):
        source = site.database.with_name(site.database.name + suffix)
        if source.exists():
            shutil.copy(source, site.folder / (name + suffix))


def findings(site: Site, check: str, code: int = 1) -> list[dict[str, Any]]:
    printed = json.loads(site.run("doctor", "--json", code=code).stdout)
    return [finding for finding in printed if finding["check"] == check]


@pytest.mark.slow("boots a controller, and starts the daemon three times")
@pytest.mark.parametrize("boot", [local, slurm_without_records], ids=lambda b: b.__name__)
def test_a_copied_file_doubles_and_cancels_nothing(
    site: Site,
    boot: Callable[[Path, pytest.FixtureRequest], Manager],
    request: pytest.FixtureRequest,
) -> None:
    """10 tasks wait in the copy, and have run since under tags that it would use again."""
    manager = boot(site.folder, request)
    site.before = manager.inside
    site.configure(manager.table)
    site.start()
    jobs = Jobs(site, 1)
    jobs.submit("blocks", 4)
    jobs.until(blocks="running")
    names = [f"job{number}" for number in range(10)]
    after = f"afterany:{jobs.ids['blocks']}"
    for name in names:
        jobs.submit(name, 1, 3 if name == "job1" else 0, "--dependency", after)
    former = site.instance
    site.stop()
    copied(site, "copy.db")
    site.start()
    jobs.end("blocks", *names[:6])
    states = {name: "failed" if name == "job1" else "completed" for name in names[:6]}
    states |= dict.fromkeys(names[6:], "running")
    jobs.until(blocks="completed", **states)
    lost = [jobs.submit(f"lost{number}", 1) for number in range(4)]
    site.stop()
    site.restore(site.folder / "copy.db")
    [finding] = findings(site, "database history")
    assert finding["id"] == "database-went-back", finding
    site.start()

    # what the manager knows under the old tags settles the tasks
    assert site.instance != former
    jobs.until(blocks="completed", **states)
    [record] = [row for row in site.json("events") if row["kind"] == "database_went_back"]
    assert "its last event is" in record["cause"]
    assert "its mark says" in record["cause"]
    [finding] = findings(site, "database history")
    assert former in finding["mend"]
    jobs.end(*names, *(f"lost{number}" for number in range(4)))
    new = [f"new{number}" for number in range(6)]
    for name in new:
        assert jobs.submit(name, 1) > max(lost)
    jobs.end(*new)
    jobs.until(**dict.fromkeys(names, "completed") | {"job1": "failed"})
    jobs.until(**dict.fromkeys(new, "completed"))
    ran = Counter(jobs.ran.read_text().split())
    assert set(ran.values()) == {1}, ran
    assert {"blocks", *names, *new} <= set(ran)
    site.stop()
    site.replayed()

    # the finding stays until the database is adopted
    findings(site, "database history")
    assert "nobody can answer" in site.error("db", "adopt", code=2)
    assert site.json("db", "adopt", "--yes")["events"] > 0
    site.start()
    assert not findings(site, "database history", code=0)
    assert [row for row in site.json("events") if row["kind"] == "database_went_back"] == [record]


@pytest.mark.slow("boots a controller, and starts the daemon three times")
def test_a_restored_image_takes_the_mark_back_and_tags_tell_it(
    site: Site, request: pytest.FixtureRequest
) -> None:
    """A tag of a dispatch that the ledger never made proves it; a text without digest does not."""
    manager = slurm_without_records(site.folder, request)
    site.before = manager.inside
    site.configure(manager.table)
    site.start()
    jobs = Jobs(site, 1)
    jobs.submit("first", 1)
    jobs.until(first="running")
    names = [f"job{number}" for number in range(3)]
    after = f"afterany:{jobs.ids['first']}"
    for name in names:
        jobs.submit(name, 1, 0, "--dependency", after)
    former = site.instance
    site.stop()
    copied(site, "copy.db")
    shutil.copy(site.folder / "metasched.db.mark", site.folder / "copy.db.mark")
    site.start()
    forged = f"ms-{former}-{jobs.ids['job0']}-7"
    forge(manager, forged)
    forge(manager, forged + "-" + "a" * 12)
    forge(manager, f"ms-{former}-99999-1")
    site.until(lambda: "looks like a tag" in site.log.read_text())
    jobs.submit("lost", 1)
    jobs.end("first")
    jobs.until(lost="running", **dict.fromkeys(names, "running"))
    assert site.instance == former
    assert site.log.read_text().count("looks like a tag") == 1
    site.stop()
    site.restore(site.folder / "copy.db")
    shutil.copy(site.folder / "copy.db.mark", site.folder / "metasched.db.mark")

    site.start()
    site.until(lambda: site.instance != former)
    jobs.until(first="completed", **dict.fromkeys(names, "running"))
    [record] = [row for row in site.json("events") if row["kind"] == "database_went_back"]
    assert "the database lacks" in record["cause"]
    lost = jobs.ids["lost"]
    assert jobs.submit("new", 1) > lost
    jobs.end("new", "lost", *names)
    jobs.until(new="completed", **dict.fromkeys(names, "completed"))
    assert set(Counter(jobs.ran.read_text().split()).values()) == {1}
    site.stop()
    site.replayed()


def forge(manager: Manager, tag: str) -> None:
    """Submit a job of the daemon's account with a tag that metasched did not write."""
    [conf] = re.findall(r'config = "(.+)"', manager.table)
    command = ["sbatch", "--hold", f"--comment={tag}", "-o", "/dev/null", "--wrap=true"]
    subprocess.run(
        [*manager.inside, "env", f"SLURM_CONF={conf}", *command], check=True, cwd=Path(conf).parent
    )


@pytest.mark.slow("a daemon notices each change within seconds")
def test_a_file_that_is_moved_or_removed_below_the_daemon_loses_nothing(site: Site) -> None:
    site.configure(ONE_LOCAL)
    site.start()
    jobs = Jobs(site, 1)
    jobs.submit("first", 1)
    jobs.until(first="running")
    elsewhere = site.folder / "elsewhere.db"
    site.database.rename(elsewhere)
    refusal = site.error("submit", "--wrap", "true", code=4)
    assert f"moved to {elsewhere} below the daemon" in refusal
    assert f"mv {elsewhere} {site.database}" in refusal
    printed = site.run("doctor", code=1).stdout
    assert "start the daemon once" not in printed
    assert f"moved to {elsewhere}" in printed
    assert not site.database.exists()
    elsewhere.rename(site.database)
    site.until(lambda: site.instance)
    jobs.submit("second", 1)
    jobs.until(second="running")

    # removed: the open file has the last state, and doctor says how to save it
    for suffix in ("", "-wal", "-shm"):
        site.database.with_name(site.database.name + suffix).unlink(missing_ok=True)
    refusal = site.error("submit", "--wrap", "true", code=4)
    assert "was removed below the daemon" in refusal
    [rescue] = re.findall(r"cp /proc/\d+/fd/\d+ \S+(?=,)", refusal)
    site.until(lambda: site.run("doctor", code=1).stdout.count("below the daemon"))
    subprocess.run(rescue, shell=True, check=True)
    site.stop()
    site.start()
    jobs.until(first="running", second="running")
    assert not [row for row in site.json("events") if row["kind"] == "database_went_back"]
    site.stop()

    # without it no daemon begins an empty ledger
    for suffix in ("", "-wal", "-shm"):
        site.database.with_name(site.database.name + suffix).unlink(missing_ok=True)
    assert "was moved, removed or emptied" in site.error("serve", code=1)
    assert "start the daemon once" not in site.run("doctor", code=1).stdout
    assert not site.database.exists()
    with closing(sqlite3.connect(site.database)) as database:  # a file without its log
        database.execute("VACUUM")
    assert "was moved, removed or emptied" in site.error("serve", code=1)
    site.run("db", "adopt", "--yes")
    site.start()


@pytest.mark.slow("two daemons over local clusters")
def test_a_copy_that_starts_beside_the_original_is_told_apart(site: Site) -> None:
    site.configure(ONE_LOCAL)
    site.start()
    jobs = Jobs(site, 1)
    jobs.submit("held", 1, 0, "--begin", "now+1hour")
    former = site.instance
    other = Site(site.folder / "other")
    other.folder.mkdir()
    other.configure(ONE_LOCAL)
    site.run("db", "check")
    site.stop()
    copied(site, "other/metasched.db")
    site.start()
    try:
        other.start()
        assert other.instance != former
        assert site.instance == former
        [record] = [row for row in other.json("events") if row["kind"] == "database_went_back"]
        assert f"it is a copy of {site.database}" in record["cause"]
        assert other.row(jobs.ids["held"])["state"] == "held"
        assert jobs.row("held")["state"] == "queued"
        name = other.instance
        other.stop()
        other.start()
        assert other.instance == name
    finally:
        other.close()


@pytest.mark.slow("boots a database server of its own")
@pytest.mark.parametrize("daemon_runs", [True, False])
def test_a_server_that_lost_commits(
    site: Site, tmp_path_factory: pytest.TempPathFactory, daemon_runs: bool
) -> None:
    """A base backup takes the place of the server's data: that daemon, or the next, notices it."""
    if (reason := postgresql.missing()) is not None:
        require("postgresql", reason)
    with tempfile.TemporaryDirectory(prefix="pg") as folder, Server(Path(folder)) as server:
        site.url = server.create()
        site.configure(ONE_LOCAL)
        site.start()
        jobs = Jobs(site, 1)
        jobs.submit("first", 1)
        jobs.until(first="running")
        after = f"afterany:{jobs.ids['first']}"
        names = [f"job{number}" for number in range(3)]
        for name in names:
            jobs.submit(name, 1, 0, "--dependency", after)
        former = site.instance
        server.stop()
        copy = Path(folder, "copy")
        shutil.copytree(Path(folder, "data"), copy, symlinks=True)
        server.start()
        site.until(lambda: site.row(jobs.ids["first"])["state"] == "running")
        jobs.end("first")
        jobs.until(**dict.fromkeys(names, "running"))
        lost = jobs.submit("lost", 1)
        jobs.until(lost="running")
        if not daemon_runs:
            site.stop()
        server.stop()
        shutil.rmtree(Path(folder, "data"))
        copy.rename(Path(folder, "data"))
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "postgres", Path(folder, "data")], check=True)
        server.start()
        if not daemon_runs:
            site.start()
        site.until(lambda: site.instance != former)
        jobs.until(first="completed", **dict.fromkeys(names, "running"))
        [record] = [row for row in site.json("events") if row["kind"] == "database_went_back"]
        source = "this daemon remembers" if daemon_runs else "its mark says"
        assert source in record["cause"]
        assert jobs.submit("new", 1) > lost
        jobs.end("new", "lost", *names)
        jobs.until(new="completed", **dict.fromkeys(names, "completed"))
        assert set(Counter(jobs.ran.read_text().split()).values()) == {1}
        site.stop()
        site.replayed()


@pytest.mark.slow("the client repeats its request for 30 s")
def test_an_error_of_the_disk_in_a_commit_is_uncertain(
    site: Site,
) -> None:
    """The kernel refuses writes beyond a size: SQLite reports an I/O error of the COMMIT."""
    site.configure(ONE_LOCAL)
    site.start()
    log = site.database.with_name(site.database.name + "-wal")
    limits = resource.prlimit(site.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(site.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, limits[1]))
    padding = "#" * (1 << 20)
    script = site.folder / "script"
    script.write_text(f"#!/bin/sh\n{padding}\n")
    message = site.error("submit", script, code=1)
    assert "before the commit was confirmed" in message
    assert "nothing changed" not in message
    resource.prlimit(site.pid, resource.RLIMIT_FSIZE, limits)
    site.until(lambda: site.instance)
    assert site.rows() == []
    site.until_ended(site.submit(script))
    site.stop()
    site.replayed()
