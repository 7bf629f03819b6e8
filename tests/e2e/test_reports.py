"""`report`, `status --json` and the holders of licences, from a real daemon."""

from __future__ import annotations

import grp
import os
import pwd
import signal
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from metasched.db.integrity import check_database
from metasched.db.sqlite import Sqlite
from tests.e2e.conftest import TWO_LOCAL, Site
from tests.harness.http_calls import call

LICENCE = '[[licence]]\nname = "matlab"\ntotal = 4\n'
TOMORROW = (date.today() + timedelta(days=1)).isoformat()
# a test at midnight, or on the last day of a month, sees jobs of both days
PERIOD = ("--since", "2d", "--until", TOMORROW)


@pytest.fixture
def licensed(site: Site) -> Site:
    site.configure(LICENCE + TWO_LOCAL)
    site.start()
    return site


def report(site: Site, *options: str) -> dict[str, Any]:
    answer: dict[str, Any] = site.json("report", *options, *PERIOD)
    return answer


@pytest.mark.slow("starts a daemon three times; a dozen reports of what has run")
def test_reports_agree_with_the_jobs_and_survive_kill_and_pruning(licensed: Site) -> None:
    site = licensed
    quick = ["-o", "/dev/null", "--wrap"]
    jobs = [
        site.submit("-n", "2", "-t", "1", *quick, "sleep 1"),
        site.submit("-t", "1", "-L", "matlab:2", *quick, "exit 3"),
        site.submit("-t", "1", "--array", "1-3", "--deadline", "+1h", *quick, "true"),
    ]
    held = site.submit("--hold", *quick, "true")
    site.until_ended(*jobs)
    site.run("cancel", str(held))
    rows = [row for row in site.json("status", "--all") if row["job"] != held]

    use = report(site, "use", "--by", "account,cluster")
    total = use["total"]
    assert (total["jobs"], total["completed"], total["failed"], total["share"]) == (5, 4, 1, 1.0)
    assert len(rows) == 5
    allocated = sum(row["cpus"] * row["elapsed"] for row in rows)
    assert total["cpu_seconds"] == pytest.approx(allocated, abs=0.01)
    assert total["cpu_seconds_used"] == pytest.approx(sum(r["cpu_seconds"] for r in rows), abs=0.01)
    assert {row["cluster"] for row in use["rows"]} == {row["cluster"] for row in rows}
    [user] = report(site, "use", "--by", "user,group,class")["rows"]
    me = pwd.getpwuid(os.geteuid())
    names = (me.pw_name, grp.getgrgid(me.pw_gid).gr_name, "regular")
    assert (user["user"], user["group"], user["class"]) == names
    deadlines = report(site, "deadlines", "--by", "user")["total"]
    assert (deadlines["jobs"], deadlines["met"], deadlines["missed"]) == (3, 3, 0)
    assert report(site, "waits", "--by", "month,class")["total"]["jobs"] == 5
    [licence] = report(site, "licences")["rows"]
    assert (licence["licence"], licence["leases"], licence["peak"]) == ("matlab", 1, 2)
    assert licence["total"] == 4
    assert me.pw_name in site.run("report", "use", "--by", "user", *PERIOD).stdout

    site.stop(signal.SIGKILL)
    site.start()
    assert report(site, "use", "--by", "account,cluster") == use
    assert site.stop() == 0
    site.replayed()
    database = Sqlite(site.database)
    assert [check.text for check in check_database(database) if not check.ok] == []
    site.run("db", "prune", "--older-than", "1s")
    site.start()
    assert report(site, "use", "--by", "account,cluster") == use


def test_what_a_job_asks_for_is_in_json_and_who_holds_licences(licensed: Site) -> None:
    site = licensed
    job = site.submit(
        *("-n", "2", "-t", "5", "--mem", "100M", "-L", "matlab:3"),
        *("-o", "/dev/null", "--wrap", "sleep 60"),
    )
    site.until(lambda: site.row(job)["state"] == "running")
    [row] = site.json("status", str(job))
    asked = (row["cpus"], row["time_limit"], row["memory"], row["licences"])
    assert asked == (2, 300.0, 100, {"matlab": 3})
    assert 0.0 <= row["elapsed"] < 60.0
    [licence] = site.json("licences")
    [holder] = licence["holders"]
    assert (holder["job"], holder["user"], holder["count"]) == (job, row["user"], 3)
    assert licence["more_holders"] == 0
    assert f"matlab   3      {job}" in site.run("licences").stdout
    site.run("cancel", str(job))


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("use?since=2026-03-01&until=2026-03-01", "the period from 2026-03-01 until 2026-03-01 is"),
        ("use?since=2026-04-01&until=2026-03-01", "is empty; give a later day"),
        ("use?until=0001-01-01", "is empty"),
        ("use?since=9999-12-31", "is empty"),
        ("use?since=yesterday", "query.since"),
        ("use?by=day%20OR%201=1", "query.by.0"),
        ("usage", "path.kind"),
        ("use?licence=matlab", "report use is not of licences"),
        ("waits?largest=3", "report waits has a row for each value"),
        ("use?largest=0", "query.largest"),
        ("use?account=%1B[2J", "is no name, account"),
        ("use?account=" + "a" * 300, "query.account"),
        ("use?" + "&".join(["by=day"] * 20), "query.by"),
    ],
)
def test_bad_queries_are_one_line(shared: Site, query: str, problem: str) -> None:
    answer = call(Path(shared.folder, "ms.sock"), "GET", f"/reports/{query}")
    assert answer.status == 422
    assert problem in answer.json["error"]
    assert "\n" not in answer.json["error"]
