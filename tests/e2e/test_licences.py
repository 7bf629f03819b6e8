"""Licences shared by two clusters: use never exceeds the total, also after kills."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.e2e.conftest import COMMAND, TWO_LOCAL, Site

LICENCES = """
[[licence]]
name = "matlab"
total = 4
[[licence]]
name = "ansys"
total = 2
clusters = ["left"]
"""


@pytest.fixture
def licensed(site: Site) -> Site:
    site.configure(LICENCES + TWO_LOCAL)
    site.start()
    return site


def standing(site: Site, name: str = "matlab") -> dict[str, Any]:
    [row] = [row for row in site.json("licences") if row["licence"] == name]
    assert isinstance(row, dict)
    return row


@contextmanager
def watching(site: Site) -> Iterator[Iterator[dict[str, Any]]]:
    """Iterate over the lists that `licences --watch` prints, each as rows by licence."""
    command = [str(COMMAND), "licences", "--watch", "--json"]
    with subprocess.Popen(
        command, env=site.environment, stdout=subprocess.PIPE, text=True
    ) as stream:
        assert stream.stdout is not None
        lines = iter(stream.stdout.readline, "")
        texts = iter(lambda: "".join(until_closed(lines)), "")
        try:
            yield ({row["licence"]: row for row in json.loads(text)} for text in texts)
        finally:
            stream.kill()


def until_closed(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines of a list."""
    for line in lines:
        yield line
        if line == "]\n":
            return


def completed(site: Site) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = site.json("status", "--state", "completed")
    return rows


def leases(site: Site) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(site.database)) as reading:
        query = "SELECT licence, job, tokens, since, until FROM lease ORDER BY id"
        return list(reading.execute(query))


def most_at_once(spans: list[tuple[float, float, int]]) -> int:
    """Return the largest sum of amounts whose spans overlap."""
    moments = sorted([(a, 1, n) for a, _, n in spans] + [(b, 0, -n) for _, b, n in spans])
    held = most = 0
    for *_, change in moments:
        held += change
        most = max(most, held)
    return most


@pytest.mark.slow("starts a daemon four times; eight jobs wait for each other's licences")
def test_no_more_run_than_there_are_licences_over_both_clusters_and_deaths(licensed: Site) -> None:
    sizes = [1, 3, 2, 1, 2, 4, 1, 3]
    log = licensed.folder / "begun"
    for tokens in sizes:
        payload = f"echo $(date +%s.%N) + {tokens} >> {log}; sleep 0.5; "
        payload += f"echo $(date +%s.%N) - {tokens} >> {log}"
        licensed.submit("-L", f"matlab:{tokens}", "-t", "1", "--wrap", payload)
    for ended in (2, 4, 6):
        licensed.until(lambda least=ended: len(completed(licensed)) >= least)  # type: ignore[misc]
        licensed.stop(signal.SIGKILL)
        licensed.start()
    rows = licensed.until_ended()
    assert [row["state"] for row in rows] == ["completed"] * len(sizes)
    used = most = 0
    for line in sorted(log.read_text().splitlines()):
        _, sign, count = line.split()
        used += int(f"{sign}{count}")
        most = max(most, used)
    assert 2 <= most <= 4
    stored = leases(licensed)
    assert [count for _, _, count, *_ in sorted(stored, key=lambda row: row[1])] == sizes
    assert most_at_once([(since, until, count) for *_, count, since, until in stored]) <= 4
    assert standing(licensed) | {"ours": 0, "free": 4, "waiting": 0} == standing(licensed)
    licensed.stop()
    licensed.replayed()
    checks = {row["check"]: row["ok"] for row in licensed.json("db", "check")}
    assert checks == {"integrity": True, "counters": True, "replay": True}


def test_a_local_queue_lets_first_go_who_has_leased_a_licence_that_others_wait_for(
    site: Site,
) -> None:
    table = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 1\npolicy = "fb-mod"\n'
    # with 20 licences, all jobs get the same priority
    names = ["matlab", *(f"l{n}" for n in range(19))]
    pools = "".join(f'[[licence]]\nname = "{name}"\ntotal = 1\n' for name in names)
    site.configure(pools + table + "poll_interval = 0.2\n")
    site.start()
    go = f"while [ ! -e {site.folder}/go ]; do sleep 0.1; done"
    first = site.submit("--wrap", go, "-t", "5")
    site.until(lambda: site.row(first)["state"] == "running")
    earlier = site.submit("--wrap", "true", "-t", "5")
    holder, *waiting = [site.submit("-L", "matlab", "--wrap", "true", "-t", "5") for _ in range(3)]
    assert standing(site)["rho"] == len(waiting)
    last = site.submit("--wrap", "true", "-t", "5")
    # the cluster has been polled since, and has received the licence demand
    site.until(lambda: (site.row(last)["reason"] or "").startswith("manager:"))
    (site.folder / "go").touch()
    site.until_ended()
    assert site.row(holder)["started"] < site.row(earlier)["started"]


def test_listings_and_explanations_of_licences(licensed: Site) -> None:
    first = licensed.submit("-L", "matlab:3", "--wrap", "sleep 60", "-t", "5")
    licensed.until(lambda: licensed.row(first)["state"] == "running")
    second = licensed.submit("-L", "matlab:2,ansys", "--wrap", "true", "-t", "5")
    row = licensed.row(second)
    assert (row["state"], row["reason"], row["cluster"]) == ("queued", "licence_busy", None)
    explanation = licensed.json("explain", str(second))
    assert explanation["text"].startswith(
        "It waits for its licences: licence matlab: 2 wanted, 1 of 4 "
    )
    [lacking] = explanation["licences"]
    assert (lacking["licence"], lacking["wanted"], lacking["free"]) == ("matlab", 2, 1)
    [holder] = lacking["holders"]
    assert (holder["job"], holder["count"]) == (first, 3)
    assert holder["expected"] in explanation["text"]
    assert standing(licensed) | {
        "total": 4,
        "ours": 3,
        "outside": 0,
        "free": 1,
        "waiting": 2,
        "rho": 0.25,
        "state": "ok",
    } == standing(licensed)
    with watching(licensed) as shown:
        assert next(shown)["matlab"]["total"] == 4
        [over] = licensed.json("licence", "set", "matlab", "2")
        assert next(shown)["matlab"] == over
    assert (over["state"], over["free"], over["rho"]) == ("over-committed by 1", 0, 0.5)
    licensed.stop(signal.SIGKILL)
    licensed.start()
    assert standing(licensed)["total"] == 2  # a total set by an operator survives a restart
    licensed.run("cancel", str(first))
    licensed.until_ended(second)
    [row] = licensed.json("licence", "set", "matlab", "configured")
    assert (row["total"], row["ours"], row["state"]) == (4, 0, "ok")
    [note] = licensed.json("licence", "release", str(second))
    assert (note["released"], note["note"]) == ({}, "it has no licences")
    for arguments, expected in (
        (["-L", "matlb"], "no licence 'matlb' is known; did you mean matlab?"),
        (["-L", "matlab:5"], "5 of licence matlab, there are 4; ask for at most 4"),
        (["-L", "ansys", "--cluster", "right"], "licence ansys cannot be used there"),
    ):
        assert expected in licensed.error("submit", *arguments, "--wrap", "true", code=3)
    assert "did you mean ansys?" in licensed.error("licence", "set", "ansis", "1", code=5)


def test_of_alternatives_a_job_has_the_first_that_is_free(licensed: Site) -> None:
    site = licensed

    def submit(*options: str) -> int:
        wrap = "echo $METASCHED_LICENCES $SLURM_JOB_LICENSES; sleep 300"
        return site.submit("-L", "ansys:2|matlab:4", "-o", "%j.out", *options, "--wrap", wrap)

    dry = site.json("submit", "--dry-run", "-L", "ansys:2|matlab", "--wrap", "x")
    assert dry["why"]["licence_choice"] == "ansys:2"
    first, second, waiting = submit(), submit(), submit()
    site.until(lambda: [site.row(job)["state"] for job in (first, second)] == ["running"] * 2)
    assert site.row(first)["cluster"] == "left"  # only there is ansys
    dry = site.json("submit", "--dry-run", "-L", "ansys:2|matlab", "--wrap", "x")
    assert dry["why"]["licence_choice"] is None
    site.stop(signal.SIGKILL)
    site.start()
    assert [site.details(job)["licences"] for job in (first, second, waiting)] == [
        *({"ansys": 2}, {"matlab": 4}, {"ansys": 2})
    ]
    text = site.run("explain", str(waiting)).stdout
    assert "licence ansys: 2 wanted, 0 of 2 free; or licence matlab: 4 wanted, 0 of 4 free" in text
    assert "Of its alternative licences it has matlab:4." in site.run("explain", str(second)).stdout
    assert [standing(site, name)["ours"] for name in ("ansys", "matlab")] == [2, 4]
    site.run("cancel", str(first))
    site.until(lambda: site.row(waiting)["state"] == "running")
    site.run("cancel", str(second), str(waiting))
    site.until_ended(first, second, waiting)
    assert "it had ansys:2." in site.run("explain", str(waiting)).stdout
    assert (site.folder / f"{first}.out").read_text() == "ansys:2 ansys:2\n"
    assert (site.folder / f"{second}.out").read_text() == "matlab:4 matlab:4\n"
    assert [row[:3] for row in leases(site)] == [
        *(("ansys", first, 2), ("matlab", second, 4), ("ansys", waiting, 2))
    ]
    mixed = site.error("submit", "-L", "a,b|c", "--wrap", "x", code=2)
    assert mixed.startswith('both , (all of them) and | (one of them) in licences "a,b|c"')
    unknown = site.error("submit", "-L", "ansys|matla", "--wrap", "x", code=3)
    assert "did you mean matlab?" in unknown
    assert site.stop() == 0
    site.replayed()
    assert "wrong" not in site.run("db", "check").stdout
