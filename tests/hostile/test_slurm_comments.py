"""An account that never calls metasched submits to the bare Slurm of a site, with odd comments."""

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
    with site_over_slurm(common_folder / "hostile-comments", slurm_site["beta"]) as site:
        yield site


def submit_directly(cluster: SlurmCluster, comment: str, *options: str) -> None:
    """Let account a submit a held job with this comment, by sbatch."""
    subprocess.run(
        ["/usr/bin/sbatch", "-H", f"--comment={comment}", *options, "--wrap", "true"],
        env=cluster.environment,
        capture_output=True,
        check=True,
        **as_(A),
    )


def test_no_comment_of_an_account_stops_the_jobs_of_others(
    site: MultiUserSite, slurm_site: SlurmSite
) -> None:
    cluster, b = slurm_site["beta"], site.by(B)
    assert b.until_ended(b.submit("-o", "/dev/null", "--wrap", "true"))[0]["state"] == "completed"
    instance = site._client.health()["instance"]
    tag = f"ms-{instance}-1-1"
    for comment in (
        f"ms-{instance}-{'9' * 24}-1",
        f"ms-{instance}-1-{'9' * 24}",
        f"{tag}/{'9' * 24}",
        f"{tag}/{'9' * 800}",
        f"{tag}/a",
        f"{tag}\n{tag}|x|\t\u0661",
    ):
        submit_directly(cluster, comment)
    submit_directly(cluster, f"{tag}/a", "--array=0-99")
    for _ in range(2):
        job = b.submit("-o", "/dev/null", "--wrap", "true")
        assert b.until_ended(job)[0]["state"] == "completed"
    [row] = site.json("clusters")
    assert row["state"] == "up"
