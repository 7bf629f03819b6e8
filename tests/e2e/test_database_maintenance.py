"""Database maintenance by an admin while the daemon runs."""

from __future__ import annotations

import sqlite3

import pytest

from tests.e2e.conftest import Site


@pytest.mark.slow("starts a daemon twice, and a dozen db commands that load all of its code")
def test_backup_check_and_prune_while_the_daemon_runs(running: Site) -> None:
    old = running.submit("--wrap", "true")
    running.until_ended(old)
    held = running.submit("--hold", "--wrap", "true")
    assert {row["ok"] for row in running.json("db", "check")} == {True}
    copy = running.folder / "copy.db"
    assert running.json("db", "backup", str(copy))["bytes"] == copy.stat().st_size
    assert "already" in running.error("db", "backup", str(copy), code=1)
    assert "duration" in running.error("db", "prune", "--older-than", "soon", code=2)
    assert running.json("db", "prune")["jobs"] == 0
    running.until(lambda: running.json("db", "prune", "--older-than", "1s")["jobs"] == 1)
    assert [row["job"] for row in running.json("status", "--all")] == [held]
    running.error("status", str(old), code=5)
    running.run("release", str(held))
    assert running.until_ended(held)[0]["state"] == "completed"
    assert {row["ok"] for row in running.json("db", "check")} == {True}
    running.error("db", "upgrade", code=1)  # the daemon has the database open
    running.stop()
    assert running.json("db", "upgrade")["from"] == running.json("db", "upgrade")["to"]

    with sqlite3.connect(running.database) as other:
        other.execute("UPDATE task SET attempts = 9")
    other.close()
    output = running.run("db", "check", code=1).stdout
    assert "counts 9 attempts" in output

    # a restored backup has its former state, and what its cluster knows of the time since
    running.restore(copy)
    running.start()
    assert running.row(old)["state"] == "completed"
    assert running.until_ended(held)[0]["state"] == "completed"


def test_the_daemon_forgets_by_itself_what_ended_too_long_ago(site: Site) -> None:
    site.configure(extra='keep = "1s"\n')
    site.start()
    jobs = [site.submit("--wrap", "true") for _ in range(2)]
    site.until(lambda: [row["job"] for row in site.json("status", "--all")] == jobs[1:])
