"""Pulls between two real Slurm clusters with unequal memory, features and limits of a QOS."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest

from metasched.policies.policy import Policy
from tests.conftest import require
from tests.e2e.conftest import Site
from tests.harness.daemons import BootError, wait_until
from tests.harness.slurm import ClusterSpec, SlurmCluster, SlurmSite, accounting_missing, missing

LEFT = ClusterSpec("left", "l", 2, 8, memory=4000, features="any,large", accounting=False)
RIGHT = ClusterSpec(
    *("right", "r", 2, 8),
    memory=1500,
    features="any,fast",
    settings=("AccountingStorageEnforce=associations,limits,qos",),
)
BOOT_SECONDS = 60.0
QOS_CPUS = 14  # of a user on right, which has 16 processors
SMALL_JOBS = 60
LARGE_JOBS = 6  # their memory fits once on a node of right


POLLS_WITHOUT_PULL = 5  # of a second each
BACKFILL, BUILTIN = "sched/backfill", "sched/builtin"  # the latter starts jobs in order


@pytest.fixture
def unequal(common_folder: Path, request: pytest.FixtureRequest) -> Iterator[SlurmSite]:
    """Two Slurm clusters: right has less memory, other features, and a limit of its QOS.

    The parameter is the scheduler of right.
    """
    if (reason := missing() or accounting_missing()) is not None:
        require("slurm", reason)
    right_spec = replace(RIGHT, settings=(*RIGHT.settings, f"SchedulerType={request.param}"))
    folder = Path(mkdtemp(dir=common_folder))
    with SlurmSite(folder, [LEFT, right_spec], accounting=True) as booted:
        right, user = booted["right"], pwd.getpwuid(os.geteuid()).pw_name
        right.run("sacctmgr", "-i", "add", "account", "staff", "cluster=right")
        right.run("sacctmgr", "-i", "add", "user", user, "account=staff", "cluster=right")
        wait_until(lambda: _accepts_jobs(right), BOOT_SECONDS, "right accepts jobs", str)
        yield booted


def _accepts_jobs(cluster: SlurmCluster) -> bool:
    """Whether the controller knows the user's account; slurmdbd tells it some time later."""
    try:
        cluster.run("sbatch", "--test-only", "--wrap", "true")
    except BootError:
        return False
    return True


def occupy(cluster: SlurmCluster, limit: str, count: int) -> None:
    """Submit jobs past metasched that take all nodes one after another."""
    for _ in range(count):
        cluster.run("sbatch", "-t", limit, "-N2", "--exclusive", "--wrap", "sleep 9999")


@pytest.mark.slow("boots two clusters with slurmdbd; 67 jobs of three seconds run")
@pytest.mark.parametrize("unequal", [BACKFILL, BUILTIN], indirect=True)
def test_nine_of_ten_pulls_start_at_once(unequal: SlurmSite, site: Site) -> None:
    left, right = unequal["left"], unequal["right"]
    occupy(left, "60", 1)
    occupy(right, "1-0", 2)  # so jobs are sent to left
    site.before = left.inside
    site.configure(left.table("poll_interval = 1\n") + right.table("poll_interval = 1\n"))
    site.start()
    site.until(lambda: all(c["cpus"] == c["used"] for c in site.cluster_rows()))
    limit = f"MaxTRESPerUser=cpu={QOS_CPUS}"
    right.run("sacctmgr", "-i", "modify", "qos", "normal", "set", limit)

    common = ("-t", "5", "-o", "/dev/null", "--wrap", "sleep 3")
    pulled = [site.submit("--array", f"1-{SMALL_JOBS}", "--mem", "100", *common)]
    pulled.append(site.submit("--array", f"1-{LARGE_JOBS}", "--mem", "1200", *common))
    pulled.append(site.submit("-C", "any", *common))
    staying = [
        site.submit("--mem", "3000", *common),
        site.submit("-C", "large", *common),
    ]

    def pending_on_left() -> bool:
        rows = site.rows(*pulled, *staying)
        return all(row["reason"].startswith("manager:") for row in rows) and {
            row["cluster"] for row in rows
        } == {"left"}

    site.until(pending_on_left)
    right.run("scancel", "--name=wrap")
    ended = site.until_ended(*pulled)
    assert {(row["state"], row["cluster"]) for row in ended} == {("completed", "right")}
    assert {row["cluster"] for row in site.rows(*staying)} == {"left"}
    [row] = [row for row in site.cluster_rows() if row["cluster"] == "right"]
    assert row["pulls"] >= len(ended)
    assert row["pulls_started_at_once"] >= 0.9 * row["pulls"], row


def pulls_to_right(site: Site) -> tuple[int, int]:
    """Return the number of pulls to right, and of those that started at once."""
    [row] = [row for row in site.cluster_rows() if row["cluster"] == "right"]
    return row["pulls"], row["pulls_started_at_once"]


@pytest.mark.slow("boots two clusters with slurmdbd; observes that nothing is pulled")
@pytest.mark.parametrize("unequal", [BUILTIN], indirect=True)
def test_no_pull_behind_a_job_that_no_other_may_overtake(unequal: SlurmSite, site: Site) -> None:
    """A node of right is idle, but the job that waits there for both nodes comes first."""
    left, right = unequal["left"], unequal["right"]
    occupy(left, "60", 1)
    right.run("sbatch", "-t", "1-0", "-N1", "--exclusive", "--wrap", "sleep 9999")
    occupy(right, "1-0", 1)
    site.before = left.inside
    site.configure(left.table("poll_interval = 1\n") + right.table("poll_interval = 1\n"))
    site.start()
    site.until(lambda: sorted(c["used"] for c in site.cluster_rows()) == [8, 16])
    job = site.submit("-t", "5", "-o", "/dev/null", "--wrap", "sleep 3")
    site.until(lambda: [row["reason"][:8] for row in site.rows(job)] == ["manager:"])
    time.sleep(Policy.pull_after + POLLS_WITHOUT_PULL)
    assert {row["cluster"] for row in site.rows(job)} == {"left"}
    assert pulls_to_right(site) == (0, 0)
    right.run("scancel", "--name=wrap")
    [ended] = site.until_ended(job)
    assert (ended["state"], ended["cluster"]) == ("completed", "right")
    assert pulls_to_right(site) == (1, 1)
