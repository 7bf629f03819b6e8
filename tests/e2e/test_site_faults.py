"""Faults of the site close a cluster until they are repaired; a user's own do not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.multi_user_site import SUPERVISE, MultiUserSite, slurm_tables
from tests.harness import accounts
from tests.harness.accounts import DENIED, DENIED_GROUP, KEEPER, A, B
from tests.harness.slurm import SlurmSite

pytestmark = pytest.mark.root

LOCAL = '[[cluster]]\nname = "left"\nadapter = "local"\ncpus = 4\npoll_interval = 0.2\n'
TRUE = ("-t", "5", "-o", "/dev/null", "--wrap", "true")


class FaultySite(MultiUserSite):
    @property
    def launcher_file(self) -> Path:
        return self.folder / "launcher.toml"

    @contextmanager
    def changed_launcher_file(self, change: Callable[[str], str]) -> Iterator[None]:
        """Change launcher.toml, and restore it in the end."""
        text = self.launcher_file.read_text()
        self.launcher_file.write_text(change(text))
        try:
            yield
        finally:
            self.launcher_file.write_text(text)

    def cause(self) -> str:
        """Return why the cluster is down, or "" if it is up."""
        [row] = self.cluster_rows()
        state: str = row["state"]
        return state.removeprefix("down: ") if state.startswith("down: ") else ""

    def until_down(self, cause: str) -> None:
        self.until(lambda: cause in self.cause())

    def findings(self) -> dict[str, dict[str, Any]]:
        """Return the results of the doctor by the name of the check."""
        with_faults = self.by(KEEPER).run("doctor", "--json", code=1).stdout
        return {finding["check"]: finding for finding in json.loads(with_faults)}

    def completes(self, user: MultiUserSite, job: int) -> None:
        [row] = user.until_ended(job)
        assert row["state"] == "completed", user.run("story", str(job)).stdout


@pytest.fixture(scope="module")
def local(common_folder: Path) -> Iterator[FaultySite]:
    """A site with a local cluster, whose launcher.toml denies a group."""
    accounts.make_denied()
    site = FaultySite(common_folder / "faults")
    policy = f'deny_groups = ["{DENIED_GROUP}"]\n'
    site.set_up(LOCAL, f"[cluster.left]\n{SUPERVISE}", policy=policy)
    try:
        site.start()
        yield site
    finally:
        site.close()


@pytest.fixture
def healthy(local: FaultySite) -> FaultySite:
    """The site, once it has recovered from the fault of the test before."""
    local.until(lambda: not local.cause())
    return local


def test_a_misspelt_cluster_is_down_until_it_is_corrected(healthy: FaultySite) -> None:
    cause = "launcher.toml has no cluster 'left', only lfet"
    a = healthy.by(A)
    job = a.submit("--hold", *TRUE)
    with healthy.changed_launcher_file(lambda text: text.replace("cluster.left", "cluster.lfet")):
        healthy.until_down(cause)
        healthy.run("release", str(job))
        finding = healthy.findings()["launcher.toml for left"]
        assert (finding["ok"], cause in finding["text"]) == (False, True)
        assert finding["mend"] == "make the names agree with metasched.toml"
        assert a.row(job)["state"] == "queued"
        assert cause in healthy.cause()
    healthy.completes(a, job)
    assert healthy.by(KEEPER).run("doctor").returncode == 0


def test_an_invalid_launcher_file_closes_the_cluster_and_rejects_nothing(
    healthy: FaultySite,
) -> None:
    a = healthy.by(A)
    job = a.submit("--hold", *TRUE)
    with healthy.changed_launcher_file(lambda text: f"{text}["):
        healthy.until_down("correct that line")
        healthy.run("release", str(job))
        assert "correct that line" in a.error("submit", *TRUE, code=4)
        assert a.row(job)["state"] == "queued"
    healthy.completes(a, job)


def test_a_state_folder_closed_to_users_ends_no_job(healthy: FaultySite) -> None:
    a = healthy.by(A)
    job = a.submit("--hold", *TRUE)
    healthy.state.chmod(0o700)
    try:
        healthy.run("release", str(job))
        healthy.until_down(f"{healthy.state} is closed to the owners of jobs; chmod o+x it")
        assert healthy.row(job)["state"] not in ("failed", "rejected")
    finally:
        healthy.state.chmod(0o711)
    healthy.completes(a, job)


def test_a_user_at_fault_closes_nothing_to_others(healthy: FaultySite) -> None:
    """A missing directory and a denied group are refused; the jobs of other users continue."""
    a, b = healthy.by(A), healthy.by(B)
    folder = healthy.folder / A / "gone"
    folder.mkdir()
    shutil.chown(folder, A)
    job = a.submit("--hold", "--chdir", folder, *TRUE)
    folder.rmdir()
    a.run("release", str(job))
    refused = healthy.by(DENIED).error("submit", *TRUE, code=3)
    assert f"user {DENIED} is in group {DENIED_GROUP}, which may not have jobs here" in refused
    assert a.until_ended(job)[0]["state"] == "rejected"
    healthy.completes(b, b.submit(*TRUE))
    [row] = healthy.cluster_rows()
    assert (row["state"], row["breaker"]["failures"]) == ("up", 0)


def test_local_jobs_gain_no_privileges_unless_the_site_allows_it(healthy: FaultySite) -> None:
    b = healthy.by(B)
    command = "grep NoNewPrivs /proc/self/status"
    healthy.completes(b, b.submit("-t", "5", "-o", "privileges", "--wrap", command))
    assert (healthy.folder / B / "privileges").read_text().split()[-1] == "1"


def test_the_launcher_logs_who_did_what(healthy: FaultySite) -> None:
    a = healthy.by(A)
    healthy.completes(a, a.submit(*TRUE))
    log = (healthy.folder / "launcher.log").read_text()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    started = re.compile(
        rf'{time} verb="supervise" cluster="left" uid=\d+ user="{A}" directory="/" {{"pid": \d+}}'
    )
    assert started.search(log), log


def test_a_fault_at_a_dispatch_keeps_the_job_queued(
    common_folder: Path, slurm_site: SlurmSite
) -> None:
    """Between two polls the launcher loses a program: the job is not rejected."""
    cluster = slurm_site["beta"]
    site = FaultySite(common_folder / "faults-slurm")
    site.set_up(*slurm_tables(cluster))
    try:
        site.start()
        a = site.by(A)
        job = a.submit("--hold", *TRUE)
        with site.changed_launcher_file(
            lambda text: text.replace('submit = ["/usr/bin/sbatch"]\n', "")
        ):
            site.run("release", str(job))
            site.until_down("launcher.toml has no 'submit' for cluster 'beta'; add its program")
            assert a.row(job)["state"] == "queued"
        site.completes(a, job)
        longer = a.submit("-t", "5", "-o", "/dev/null", "--wrap", "sleep 300")
        site.until(lambda: a.row(longer)["state"] == "running")
        a.run("cancel", str(longer))
        a.until_ended(longer)
        log = (site.folder / "launcher.log").read_text()
        for verb, logged in (("submit", job), ("cancel", longer)):
            line = f'verb="{verb}" cluster="beta" uid=\\d+ user="{A}" job="ms-[0-9a-f]+-{logged}-'
            assert re.search(line, log), log
    finally:
        site.close()
