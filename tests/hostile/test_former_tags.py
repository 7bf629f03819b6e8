"""After a restored backup, an account writes others' old tags into jobs of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.multi_user_site import MultiUserSite, site_over_slurm
from tests.harness.accounts import A, B, as_
from tests.harness.slurm import SlurmCluster, SlurmSite

pytestmark = pytest.mark.root


@pytest.fixture
def site(common_folder: Path, slurm_site: SlurmSite) -> Iterator[MultiUserSite]:
    with site_over_slurm(common_folder / "former-tags", slurm_site["beta"]) as site:
        yield site


def run_with_tag(cluster: SlurmCluster, tag: str) -> str:
    """Run a job of account b that fails and has this tag; return its native id."""
    native_id: str = subprocess.run(
        ["/usr/bin/sbatch", "-W", "--parsable", f"--comment={tag}", "-o", "/dev/null"],
        env=cluster.environment,
        input="#!/bin/sh\nexit 3\n",
        capture_output=True,
        text=True,
        check=False,  # it waits for the job and returns its exit code
        timeout=120,
        **as_(B),
    ).stdout.strip()
    return native_id


@pytest.mark.slow("boots a site, restores a backup, and runs three jobs one by one")
def test_a_forged_old_tag_settles_no_job_of_another_account(
    site: MultiUserSite, slurm_site: SlurmSite
) -> None:
    cluster, a, b = slurm_site["beta"], site.by(A), site.by(B)
    job = a.submit("-t", "5", "-o", "/dev/null", "--wrap", "sleep 600")
    waiting = a.submit("--dependency", f"afterany:{job}", "-o", "/dev/null", "--wrap", "true")
    a.until(lambda: a.row(job)["state"] == "running")
    native_id, former = a.row(job)["native_id"], site.instance
    backup = site.folder / "backup.db"
    site.run("db", "backup", str(backup))
    site.stop()
    site.restore(backup)
    site.start()
    assert site.instance != former
    expected = {job: "running", waiting: "held"}
    a.until(lambda: {row["job"]: row["state"] for row in a.rows(job, waiting)} == expected)

    for id in (job, waiting):
        assert run_with_tag(cluster, f"ms-{former}-{id}-1").isdecimal()
    # a listing with the end of this job has the ends of the forged jobs, too
    other = b.submit("-t", "5", "-o", "/dev/null", "--wrap", "true")
    assert b.until_ended(other)[0]["state"] == "completed"
    rows = {row["job"]: row for row in a.rows(job, waiting)}
    assert (rows[job]["state"], rows[job]["native_id"]) == ("running", native_id)
    assert rows[waiting]["state"] == "held"
    # the owner's cancel reaches the job by its old tag
    a.run("cancel", str(job))
    assert a.until_ended(job)[0]["state"] == "cancelled"
