"""Limits and associations of slurmdbd affect only their user, and cause no failed attempts."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import require
from tests.e2e.conftest import COMMAND, ENDED
from tests.e2e.multi_user_site import MultiUserSite, running_site, slurm_tables
from tests.harness.accounts import OPERATOR, A, B
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite, accounting_missing, missing

pytestmark = pytest.mark.root

LIMIT = 2
TASKS = 3000  # of an array above the limit; more than may be on the way to a manager at a time
ENFORCED = ("AccountingStorageEnforce=associations,limits",)


@pytest.fixture(scope="module")
def cluster(common_folder: Path) -> Iterator[SlurmCluster]:
    """A Slurm cluster in whose default accounts `a` may have 2 jobs, and `b` any number."""
    if (reason := missing() or accounting_missing()) is not None:
        require("slurm", reason)
    spec = ClusterSpec("alpha", "a", nodes=2, cpus=8, settings=ENFORCED)
    with SlurmSite(common_folder / "limited-slurm", [spec], accounting=True) as slurm_site:
        cluster = slurm_site["alpha"]
        cluster.run("sacctmgr", "-i", "add", "account", "physics", "cluster=alpha")
        for user, limit in ((A, LIMIT), (B, -1)):
            cluster.run(
                *("sacctmgr", "-i", "add", "user", user, "account=physics"),
                f"maxsubmitjobs={limit}",
            )
        yield cluster


@pytest.fixture(scope="module")
def limited(common_folder: Path, cluster: SlurmCluster) -> Iterator[MultiUserSite]:
    options = 'map.account = { "*" = "*" }\n'
    tables = slurm_tables(cluster, options)
    with running_site(common_folder / "limited", *tables, inside=cluster.inside) as site:
        yield site


@pytest.mark.slow("boots a cluster with slurmdbd")
def test_a_limit_closes_a_cluster_to_its_user_alone(limited: MultiUserSite) -> None:
    a, b = limited.by(A), limited.by(B)
    go = limited.folder / A / "go"
    wait = f"until test -e {go}; do sleep 0.1; done"
    array = a.submit("--array", "0-4", "-t", "5", "-o", "/dev/null", "--wrap", wait)

    def states() -> list[str]:
        return sorted(row["state"] for row in a.rows(array))

    a.until(lambda: states() == ["queued"] * 3 + ["running"] * LIMIT)
    [row] = [row for row in a.rows(f"{array}_4") if row["state"] == "queued"]
    assert row["reason"] == "limit_manager"
    text = a.json("explain", f"{array}_4")["text"]
    assert "AssocMaxSubmitJobLimit" in text
    assert f"user {A}, the default account" in text
    jobs = [b.submit("-t", "5", "-o", "/dev/null", "--wrap", "true") for _ in range(3)]
    assert {row["state"] for row in b.until_ended(*jobs)} == {"completed"}
    assert states() == ["queued"] * 3 + ["running"] * LIMIT
    go.touch()
    go.chmod(0o644)
    assert {row["state"] for row in a.until_ended(array)} == {"completed"}


def test_a_large_array_above_the_limit_is_not_ahead_of_others(limited: MultiUserSite) -> None:
    """Jobs of b end while nearly all tasks of a wait; few of these were ever dispatched."""
    a, b = limited.by(A), limited.by(B)
    array = a.submit("--array", f"0-{TASKS - 1}", "-t", "5", "-o", "/dev/null", "--wrap", "true")
    jobs = [
        b.submit("--array", "0-19", "-t", "5", "-o", "/dev/null", "--wrap", "true"),
        b.submit("-t", "5", "-o", "/dev/null", "--wrap", "true"),
    ]
    assert {row["state"] for row in b.until_ended(*jobs)} == {"completed"}
    with closing(sqlite3.connect(f"file:{limited.database}?mode=ro", uri=True)) as database:
        query = "SELECT count(ended), count(nullif(attempts, 0)) FROM task WHERE job = ?"
        [(ended, dispatched)] = database.execute(query, (array,))
    assert ended < TASKS / 2
    # those on the way at the first refusal, and those that ran
    assert dispatched <= 1000 + ended + LIMIT + 1
    a.run("cancel", str(array))
    a.until(lambda: {row["state"] for row in a.rows(array)} <= ENDED)


@pytest.mark.slow("associations are read again after a minute at most")
def test_a_user_without_association_makes_no_attempt(
    limited: MultiUserSite, cluster: SlurmCluster
) -> None:
    """An association that is added later takes effect after at most a minute."""
    stranger, b = limited.by(OPERATOR), limited.by(B)
    # while it runs, polls are frequent
    job = b.submit("-t", "5", "-o", "/dev/null", "--wrap", "sleep 600")
    b.until(lambda: b.row(job)["state"] == "running")
    explanation = b.json("explain", str(job))
    assert [verdict["account"] for verdict in explanation["clusters"]] == ["physics"]
    assert explanation["text"].endswith(" It is charged to account physics on alpha.")
    submission = ("submit", "--parsable", "-t", "5", "-o", "/dev/null", "--wrap", "true")
    message = stranger.error(*submission, code=3)
    assert f"user {OPERATOR} has no account on the cluster" in message
    message = b.error(*submission, "--account", "chemistry", code=3)
    assert f"user {B} may not charge account chemistry on the cluster" in message
    assert OPERATOR not in {row["user"] for row in stranger.json("status", "--all")}
    cluster.run("sacctmgr", "-i", "add", "user", OPERATOR, "account=physics")

    def accepted() -> str:
        number: str = subprocess.run(
            [COMMAND, *submission],
            env=stranger.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
            **stranger.caller,
        ).stdout
        return number

    later = int(stranger.until(accepted, 90))
    assert stranger.until_ended(later)[0]["state"] == "completed"
    b.run("cancel", str(job))
    b.until_ended(job)
